"""The seam between the model and the way attention is computed."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from ..prefix_cache import Node


class SequenceSpan(NamedTuple):
    """New tokens of one sequence: `slots` [end] are the pool slots of its tokens 0 to end - 1, the new ones last."""

    slots: Tensor
    """int64, on the host."""
    start: int
    shared: int = 0
    """So many of the first slots belong to the prefix cache: others may have the same."""
    node: Node | None = None
    """Where they end in the cache's tree. While a sequence has this node, they do not change."""
    row: int | None = None
    """A number below the number of sequences that run, its own while it runs; None: its place in the batch."""
    told: int = 0
    """So many of the first slots are as they were when `row` was last planned."""

    @property
    def length(self) -> int:
        return len(self.slots) - self.start


class Attention(Protocol):
    def plan(self, spans: Sequence[SequenceSpan]) -> None:
        """Prepare one step, once for all layers. The rows of q, k and v below are the spans' new tokens in order.

        Spans of one token come first.
        """

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store k and v [tokens, kv_heads, head_dim] and attend with q [tokens, heads, head_dim]; same shape out."""
