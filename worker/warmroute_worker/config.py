"""The worker's configuration: read once, at the edge, and passed on as one frozen object."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    model: str
    """A GGUF file, a Hugging Face folder, or the name of a packaged model."""
    served_model_name: str | None
    host: str
    port: int
    """0 takes a free one."""
    device: str
    """auto, cpu or cuda."""
    dtype: str
    """Of weights and activations: auto, fp32, fp16 or bf16."""
    kv_cache_dtype: str
    """auto (the model's), fp32, fp16, bf16 or fp8_e4m3."""
    attention_backend: str
    """auto, torch or triton."""
    max_total_tokens: int | None
    """Size of the KV pool; None leaves it to the device: see `runtime`."""
    mem_fraction_static: float
    """Share of a GPU's memory for weights and KV pool together."""
    page_size: int
    chunked_prefill_size: int | None
    """Prompt tokens computed in one step, of all requests together; None leaves it to the device."""
    disable_cuda_graph: bool
    enable_deterministic_inference: bool
    max_running_requests: int
    context_length: int | None
    """None is the model's own."""
    threads: int | None
    """Of torch; None leaves it to torch."""
    log_level: str
