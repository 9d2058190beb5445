"""The bytes and operations that attention needs at least: each tensor moved once, however a kernel goes about it.

What splits write and read again, or a page table read once per head, is a kernel's own affair and counts against it.
"""

from collections.abc import Sequence
from typing import NamedTuple

SCALE = 4
"""Bytes of an FP8 scale: float32."""
PAGE_NUMBER = 4
SLOT_NUMBER = 8


class Cost(NamedTuple):
    bytes: int
    flops: int
    """A multiplication and an addition are two. The exponentials of the softmax are not counted, as is the custom."""


class Shape(NamedTuple):
    """Of a model's attention, and its types: `element` bytes in q, k, v and the output, `cached` in the pages."""

    heads: int
    kv_heads: int
    head_dim: int
    element: int
    cached: int
    page_size: int

    @property
    def row(self) -> int:
        """Bytes of one token in q, or in the output."""
        return self.heads * self.head_dim * self.element

    @property
    def new_token(self) -> int:
        """Bytes of one token's K and V before they are cached."""
        return 2 * self.kv_heads * self.head_dim * self.element

    @property
    def cached_token(self) -> int:
        """Bytes of one token's K and V in the cache; FP8 has scales."""
        return 2 * self.kv_heads * (self.head_dim * self.cached + (SCALE if self.cached == 1 else 0))

    def pages(self, tokens: int) -> int:
        """Bytes of a page table's part for so many tokens."""
        return -(-tokens // self.page_size) * PAGE_NUMBER

    def scores(self, pairs: int) -> int:
        """Operations of so many pairs of a query's token and a key's token: q·k and p·v, in each head."""
        return 4 * self.heads * self.head_dim * pairs


def decode(shape: Shape, lengths: Sequence[int]) -> Cost:
    moved = sum(2 * shape.row + length * shape.cached_token + shape.pages(length) for length in lengths)
    return Cost(moved, shape.scores(sum(lengths)))


def extend(shape: Shape, new: Sequence[int], prefixes: Sequence[int]) -> Cost:
    """The n new tokens of a sequence see its prefix, and 1, 2, ... n of themselves."""
    moved = sum(
        n * (2 * shape.row + shape.new_token) + prefix * shape.cached_token + shape.pages(prefix)
        for n, prefix in zip(new, prefixes, strict=True)
    )
    pairs = sum(n * prefix + n * (n + 1) // 2 for n, prefix in zip(new, prefixes, strict=True))
    return Cost(moved, shape.scores(pairs))


def cascade(shape: Shape, members: int, groups: int, shared: int, own: int) -> Cost:
    """Operations as in decode; but what a group shares is moved once."""
    moved = groups * (shared * shape.cached_token + shape.pages(shared))
    moved += groups * members * (2 * shape.row + own * shape.cached_token + shape.pages(own))
    return Cost(moved, shape.scores(groups * members * (shared + own)))


def store(shape: Shape, tokens: int) -> Cost:
    return Cost(tokens * (shape.new_token + shape.cached_token + SLOT_NUMBER), 0)
