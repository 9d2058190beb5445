"""What `extend` computes, in float64 and with all scores at once."""

import torch
from torch import Tensor

from ..kv import PagedKV, slots_of


def extend_naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv: PagedKV,
    page_table: Tensor,
    prefix_lengths: Tensor,
    starts: Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """As `extend`. Returns out [tokens, heads, head_dim] and lse [tokens, heads], both float64."""
    scale = q.shape[2] ** -0.5 if scale is None else scale
    group = q.shape[1] // k.shape[1]
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    lse = torch.zeros(q.shape[:2], dtype=torch.float64, device=q.device)
    bounds = starts.tolist()
    for pages, prefix, first, last in zip(page_table, prefix_lengths.tolist(), bounds[:-1], bounds[1:], strict=True):
        cached_k, cached_v = kv.gathered(slots_of(pages, prefix, kv.page_size))
        keys = torch.cat([cached_k, k[first:last].double()]).repeat_interleave(group, 1)
        values = torch.cat([cached_v, v[first:last].double()]).repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q[first:last].double(), keys) * scale
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        at = torch.arange(len(keys), device=q.device)
        behind = at[prefix:, None] - at
        unseen = (behind < 0) | (behind >= (window or len(keys) + 1))
        scores = scores.masked_fill(unseen, -torch.inf)
        out[first:last] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
        lse[first:last] = scores.logsumexp(-1).T
    return out, lse
