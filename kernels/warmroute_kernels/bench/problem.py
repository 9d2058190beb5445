"""Random tensors for a case, on a device: pages are scattered over the cache as after hours of serving."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..kv import FP8, PagedKV, slots_of
from .cases import Cascade, Case, Decode, Extend, Model, Store

DTYPE = torch.bfloat16


class Problem(NamedTuple):
    case: Case
    q: Tensor
    """[tokens, heads, head_dim]: one token of each sequence, or all new ones of the one sequence."""
    kv: PagedKV
    page_table: Tensor
    """int32 [batch, pages]."""
    lengths: list[int]
    """Tokens of each sequence that are in its pages: all it has, the new ones of an Extend too."""

    @property
    def model(self) -> Model:
        return self.case.model

    @property
    def device(self) -> torch.device:
        return self.q.device

    def new_kv(self) -> tuple[Tensor, Tensor]:
        """K and V of the last `q.shape[0]` tokens of the only sequence, in q's dtype."""
        slots = slots_of(self.page_table[0], self.lengths[0], self.kv.page_size)[-self.q.shape[0] :]
        k, v = self.kv.gathered(slots)
        return k.to(DTYPE), v.to(DTYPE)

    def of_head(self, head: int) -> tuple[Tensor, PagedKV]:
        """q of one query head, and the cache of the KV head it belongs to: a problem of its own."""
        at = head // (self.model.heads // self.model.kv_heads)
        k, v, k_scale, v_scale = (None if part is None else part[:, :, at : at + 1].contiguous() for part in self.kv)
        assert k is not None
        assert v is not None
        return self.q[:, head : head + 1].contiguous(), PagedKV(k, v, k_scale, v_scale)


class Contender(NamedTuple):
    """Somebody who solves a problem."""

    name: str
    run: Callable[[], object]
    """The work that is timed."""
    output: Callable[[], Tensor]
    """What the last run gave, shaped as q is."""
    chosen: bool = True
    """Whether the worker would run this: of ways to the same result, one."""


def problem_of(case: Case, device: torch.device) -> Problem:
    torch.manual_seed(0)
    match case:
        case Decode():
            return _problem(case, case.batch, [case.length] * case.batch, device)
        case Extend():
            return _problem(case, case.new, [case.prefix + case.new], device)
        case Store():
            return _problem(case, case.tokens, [case.tokens], device)
        case Cascade():
            problem = _problem(case, case.batch, [case.shared + case.own] * case.batch, device)
            for begin in range(0, case.batch, case.members):
                group = problem.page_table[begin : begin + case.members, : case.shared // case.page_size]
                group[:] = group[0].clone()
            return problem


def _problem(case: Case, rows: int, lengths: list[int], device: torch.device) -> Problem:
    model = case.model
    each = -(-max(lengths) // case.page_size)
    pages = each * len(lengths)
    page_table = torch.randperm(pages, device=device).int().view(len(lengths), each)
    q = torch.randn(rows, model.heads, model.head_dim, dtype=DTYPE, device=device)
    shape = (pages, case.page_size, model.kv_heads, model.head_dim)
    return Problem(case, q, _random_kv(shape, case.fp8, device), page_table, lengths)


def _random_kv(shape: tuple[int, ...], fp8: bool, device: torch.device) -> PagedKV:
    k, v = (torch.randn(shape, dtype=DTYPE, device=device) for _ in range(2))
    if not fp8:
        return PagedKV(k, v)
    # Any scales do: they are read and multiplied with, whatever they are.
    scales = (0.5 + torch.rand(shape[:3], device=device) for _ in range(2))
    return PagedKV(k.to(FP8), v.to(FP8), *scales)
