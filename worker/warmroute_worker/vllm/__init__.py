"""vLLM: its server behind `warmroute worker --engine vllm`, and our kernels inside it."""
