"""What is measured, and the same in tiny for a machine without a GPU."""

from dataclasses import dataclass
from itertools import product
from typing import ClassVar, NamedTuple

from . import costs
from .costs import Cost, Shape


class Model(NamedTuple):
    """Heads as in Llama 3 8B."""

    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128

    def shape(self, page_size: int, fp8: bool) -> Shape:
        return Shape(self.heads, self.kv_heads, self.head_dim, 2, 1 if fp8 else 2, page_size)


@dataclass(frozen=True)
class Decode:
    """`batch` sequences of `length` tokens, one more of each."""

    model: Model
    batch: int
    length: int
    page_size: int
    fp8: bool

    kernel: ClassVar = "paged_decode"

    @property
    def name(self) -> str:
        return f"batch {self.batch}, {tokens(self.length)}, page {self.page_size}, {cache_name(self.fp8)}"

    @property
    def cost(self) -> Cost:
        return costs.decode(self.model.shape(self.page_size, self.fp8), [self.length] * self.batch)


@dataclass(frozen=True)
class Extend:
    """One sequence: `new` tokens after `prefix` cached ones."""

    model: Model
    new: int
    prefix: int
    page_size: int
    fp8: bool

    kernel: ClassVar = "extend"

    @property
    def name(self) -> str:
        return f"{tokens(self.new)} new after {tokens(self.prefix)}, {cache_name(self.fp8)}"

    @property
    def cost(self) -> Cost:
        return costs.extend(self.model.shape(self.page_size, self.fp8), [self.new], [self.prefix])


@dataclass(frozen=True)
class Cascade:
    """`groups` times `members` sequences: those of a group begin with the same `shared` tokens."""

    model: Model
    members: int
    groups: int
    shared: int
    own: int
    page_size: int

    kernel: ClassVar = "cascade"
    fp8: ClassVar = False

    @property
    def batch(self) -> int:
        return self.members * self.groups

    @property
    def name(self) -> str:
        return f"{self.groups} × {self.members} sequences, {tokens(self.shared)} shared, {tokens(self.own)} own"

    @property
    def cost(self) -> Cost:
        shape = self.model.shape(self.page_size, self.fp8)
        return costs.cascade(shape, self.members, self.groups, self.shared, self.own)


@dataclass(frozen=True)
class Store:
    """So many tokens into pages."""

    model: Model
    tokens: int
    page_size: int
    fp8: bool

    kernel: ClassVar = "store_kv"

    @property
    def name(self) -> str:
        return f"{tokens(self.tokens)} tokens, {cache_name(self.fp8)}"

    @property
    def cost(self) -> Cost:
        return costs.store(self.model.shape(self.page_size, self.fp8), self.tokens)


Case = Decode | Extend | Cascade | Store

LLAMA = Model()
K = 1024


def all_cases() -> list[Case]:
    decode = [
        Decode(LLAMA, batch, length, page_size, fp8)
        for fp8, page_size, batch, length in product(
            (False, True), (1, 16, 64), (1, 8, 64), (1 * K, 4 * K, 8 * K, 16 * K, 32 * K)
        )
    ]
    extend = [Extend(LLAMA, 8 * K, prefix, 16, fp8) for fp8, prefix in ((False, 0), (False, 32 * K), (True, 32 * K))]
    cascade = [
        Cascade(LLAMA, members, 64 // members, shared, 256, 16)
        for members, shared in product((64, 16, 4, 2), (64, 256, 1 * K, 4 * K, 16 * K))
    ]
    store = [Store(LLAMA, 8 * K, 16, fp8) for fp8 in (False, True)]
    return [*decode, *extend, *cascade, *store]


def tiny_cases() -> list[Case]:
    """One of each kind of `all_cases`, for an interpreter: what they prove is that the benchmark itself works."""
    model = Model(heads=4, kv_heads=2, head_dim=16)
    return [
        *(Decode(model, 2, 40, page_size, fp8) for fp8, page_size in product((False, True), (1, 16, 64))),
        *(Extend(model, 24, prefix, 16, fp8) for fp8, prefix in ((False, 0), (False, 32), (True, 32))),
        *(Cascade(model, members, 4 // members, shared, 8, 16) for members, shared in ((4, 64), (2, 16))),
        *(Store(model, 24, 16, fp8) for fp8 in (False, True)),
    ]


def tokens(count: int) -> str:
    return f"{count // K}k" if count >= K and count % K == 0 else str(count)


def cache_name(fp8: bool) -> str:
    return "FP8" if fp8 else "bf16"
