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
    max_total_tokens: int
    """Size of the KV pool."""
    page_size: int
    chunked_prefill_size: int
    """Prompt tokens computed in one step, of all requests together."""
    max_running_requests: int
    context_length: int | None
    """None is the model's own."""
    threads: int | None
    """Of torch; None leaves it to torch."""
    log_level: str
