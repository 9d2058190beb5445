"""What a mock worker is, in one frozen object."""

from dataclasses import dataclass
from typing import Literal

from warmroute_router.blocks import BYTES_PER_TOKEN

Failure = int | Literal["reset", "hang", "cut"]
"""A status; or the connection is reset, no answer comes, or it breaks off in the middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MockConfig:
    model: str = "mock"
    blocks: int = 0
    """Of the KV memory; 0 for no cache, and memory without a bound."""
    block_tokens: int = 16
    block_bytes: int = 16 * BYTES_PER_TOKEN
    """Of prompt text that make one block, and so `block_tokens` tokens."""
    prefill_rate: float = 0.0
    """Prompt tokens computed in a second; 0 for all at once."""
    tpot: float = 0.0
    """Seconds from one token to the next of a request that decodes alone; 0 for all at once."""
    max_running: int | None = None
    stream_interval: int = 1
    """Tokens of an event, but for the first, which has one, and the last."""
    default_max_tokens: int = 16
    metrics: Literal["vllm", "sglang"] = "vllm"
    fail_rate: float = 0.0
    """Of the requests for completions."""
    fail: Failure = 500
    seed: int = 0

    def prompt_tokens(self, text: bytes) -> int:
        return -(-len(text) * self.block_tokens // self.block_bytes)
