"""Whether what is timed is right: compared with the naive form, in float64, on the inputs that are timed."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..extend import extend_naive
from ..paged_decode import paged_decode_naive
from .cases import Extend, Store
from .problem import DTYPE, Problem


class Truth(NamedTuple):
    values: Tensor
    """float64 [rows, heads that were chosen, head_dim]."""
    chosen: list[int]
    """Of the output's heads. The naive form of all of them would not fit into memory where sequences are long."""
    tolerance: float

    def error_of(self, output: Tensor) -> float:
        """Of the chosen heads, the norm of what is wrong by the norm of what is right; NaN for NaN."""
        wrong = output[:, self.chosen].double() - self.values
        return float(wrong.norm() / self.values.norm())


def truth_of(problem: Problem) -> Truth:
    """To be asked before anybody runs: `store_kv` overwrites the cache."""
    if isinstance(problem.case, Store):
        stored = torch.cat(problem.new_kv(), dim=1).double()
        return Truth(stored, list(range(stored.shape[1])), _of_storing(problem))
    chosen = [0, problem.model.heads - 1]
    return Truth(torch.cat([_attended(problem, head) for head in chosen], dim=1), chosen, OF_ATTENTION)


OF_ATTENTION = 2 * torch.finfo(DTYPE).eps
"""The weights p are rounded to bfloat16 before the second product, and the output is at the end: each is wrong by one
ulp at most, relatively (half of one where it is rounded to nearest; Triton's interpreter truncates). Errors of p
times random values v add up as p times v do, so both are relative to the output's norm. Sums in float32 are far
below that."""


def _of_storing(problem: Problem) -> float:
    """bfloat16 is copied; FP8 is wrong by one ulp at most, with subnormals negligible beside the largest of a row."""
    return torch.finfo(problem.kv.k.dtype).eps if problem.kv.is_fp8 else 0.0


def _attended(problem: Problem, head: int) -> Tensor:
    q, kv = problem.of_head(head)
    lengths = torch.tensor(problem.lengths, dtype=torch.int32, device=problem.device)
    if not isinstance(problem.case, Extend):
        return paged_decode_naive(q, kv, problem.page_table, lengths)[0]
    at = head // (problem.model.heads // problem.model.kv_heads)
    k, v = (each[:, at : at + 1].contiguous() for each in problem.new_kv())
    starts = torch.tensor([0, len(q)], dtype=torch.int32, device=problem.device)
    return extend_naive(q, k, v, kv, problem.page_table, lengths - len(q), starts)[0]
