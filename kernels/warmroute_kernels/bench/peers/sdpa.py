"""PyTorch's `scaled_dot_product_attention`. It knows no pages: K and V are made contiguous before it is timed."""

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from ...kv import slots_of
from ..cases import Decode, Extend
from ..problem import DTYPE, Contender, Problem

NAME = "torch SDPA, not paged"


def contender(problem: Problem) -> Contender | None:
    if problem.kv.is_fp8:
        return None
    match problem.case:
        case Decode():
            return _decode(problem)
        case Extend():
            return _extend(problem)
        case _:
            return None


def _decode(problem: Problem) -> Contender:
    k, v = _contiguous(problem)
    q = problem.q[:, :, None]
    out: list[Tensor] = []

    def run() -> None:
        out[:] = [scaled_dot_product_attention(q, k, v, enable_gqa=True)]

    return Contender(NAME, run, lambda: out[0][:, :, 0])


def _extend(problem: Problem) -> Contender:
    """Heads of K and V are repeated beforehand: its fast paths with a mask do not all know groups."""
    group = problem.model.heads // problem.model.kv_heads
    k, v = (each.repeat_interleave(group, dim=1) for each in _contiguous(problem))
    q = problem.q.transpose(0, 1)[None].contiguous()
    mask = causal_lower_right(q.shape[2], k.shape[2])
    out: list[Tensor] = []

    def run() -> None:
        out[:] = [scaled_dot_product_attention(q, k, v, attn_mask=mask)]

    return Contender(NAME, run, lambda: out[0][0].transpose(0, 1))


def _contiguous(problem: Problem) -> tuple[Tensor, Tensor]:
    """K and V, [batch, kv_heads, length, head_dim]; all sequences of a case are equally long."""
    page_size, length = problem.kv.page_size, problem.lengths[0]
    slots = torch.stack([slots_of(row, length, page_size) for row in problem.page_table])
    k, v = (each.flatten(0, 1)[slots].transpose(1, 2).contiguous() for each in problem.kv[:2] if each is not None)
    return k.to(DTYPE), v.to(DTYPE)
