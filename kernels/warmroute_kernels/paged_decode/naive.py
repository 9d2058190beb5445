"""The truth about `paged_decode`, in plain PyTorch and float64."""

import torch
from torch import Tensor

from ..kv import PagedKV, slots_of


def paged_decode_naive(
    q: Tensor,
    kv: PagedKV,
    page_table: Tensor,
    lengths: Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """out [batch, heads, head_dim] and lse [batch, heads], both float64. Arguments as of `paged_decode`."""
    batch, heads, head_dim = q.shape
    group = heads // kv.kv_heads
    scale = head_dim**-0.5 if scale is None else scale
    out = q.new_zeros(q.shape, dtype=torch.float64)
    lse = q.new_full((batch, heads), -torch.inf, dtype=torch.float64)
    for row, length in enumerate(lengths.tolist()):
        if length == 0:
            continue
        slots = slots_of(page_table[row], length, kv.page_size)
        k, v = kv.gathered(slots if window is None else slots[-window:])
        queries = q[row].double().view(kv.kv_heads, group, head_dim)
        scores = torch.einsum("hgd,nhd->hgn", queries, k) * scale
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        out[row] = torch.einsum("hgn,nhd->hgd", scores.softmax(-1), v).reshape(heads, head_dim)
        lse[row] = scores.logsumexp(-1).flatten()
    return out, lse
