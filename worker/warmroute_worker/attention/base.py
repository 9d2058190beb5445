"""The seam between the model and the way attention is computed."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor


class SequenceSpan(NamedTuple):
    """New tokens of one sequence: `slots` [end] are the pool slots of its tokens 0 to end - 1, the new ones last."""

    slots: Tensor
    start: int

    @property
    def length(self) -> int:
        return len(self.slots) - self.start


class Attention(Protocol):
    def plan(self, spans: Sequence[SequenceSpan]) -> None:
        """Prepare one step, once for all layers. The rows of q, k and v below are the spans' new tokens in order."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store k and v [tokens, kv_heads, head_dim] and attend with q [tokens, heads, head_dim]; same shape out."""
