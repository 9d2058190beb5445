"""When sharing pays: what it saves against what it adds, both as bytes that the GPU's memory could have moved.

Bytes, as decoding is bound by memory. The constants are derived for an H200 (4.8 TB/s) and lean towards plain decode,
so that sharing is never slower. They are not measured: not yet run on a GPU.
"""

from typing import NamedTuple

from .tiles import SMALLEST_SPLIT

BANDWIDTH = 4.8e12
"""Bytes/s: what makes bytes of seconds."""
LAUNCH = 5e-6 * BANDWIDTH
"""The shared parts are a kernel more than plain decode has: about 5 us to start, fill the GPU and drain."""
READ_AGAIN = 0.5
"""What plain decode pays to read a shared page again, of what the first time costs. Rows that run at the same time
may find each other's pages in L2, whose bandwidth is about twice that of memory."""
FLOPS_PER_BYTE = 80
"""400 TFLOP/s, what a good Triton attention reaches on Hopper, to 4.8 TB/s."""


class Shape(NamedTuple):
    """Of the attention of one layer; all have the same."""

    heads: int
    kv_heads: int
    head_dim: int
    fp8: bool

    @property
    def token_bytes(self) -> int:
        """K and V of a token in half precision; or in FP8, with a float32 scale for each head in both."""
        return 2 * self.kv_heads * (self.head_dim + 4 if self.fp8 else 2 * self.head_dim)

    @property
    def token_flops(self) -> int:
        """The two products of a row's heads with a token."""
        return 2 * 2 * self.heads * self.head_dim

    @property
    def state_bytes(self) -> int:
        """Of a row: out and lse of each head in float32, written and read."""
        return 2 * 4 * self.heads * (self.head_dim + 1)


def plain_bytes(members: int, tokens: int, shape: Shape) -> float:
    """What plain decode pays for the shared tokens of a group."""
    return tokens * shape.token_bytes * (1 + READ_AGAIN * (members - 1))


def shared_bytes(members: int, tokens: int, splits: float, shape: Shape) -> float:
    """What `cascade` pays for them: one read, products as if they had to wait for it, and states with the own one."""
    products = members * tokens * shape.token_flops / FLOPS_PER_BYTE
    return tokens * shape.token_bytes + products + members * (splits + 1) * shape.state_bytes


def saving(members: int, tokens: int, most: int, shape: Shape) -> float:
    """In bytes, launches aside; negative where sharing loses. most: into how many splits tokens are divided at most.

    A group that saves saves no less with more members or more tokens. For that, splits are not counted whole: one
    more for one more token would make that token lose.
    """
    splits = min(most, max(1.0, tokens / SMALLEST_SPLIT))
    return plain_bytes(members, tokens, shape) - shared_bytes(members, tokens, splits, shape)


def pays(savings: float) -> bool:
    """savings: of all groups of a batch, which share the launch."""
    return savings > LAUNCH
