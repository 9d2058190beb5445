"""The truth about `cascade`, in plain PyTorch and float64."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..kv import PagedKV, slots_of
from ..merge.naive import merge_states_naive
from .groups import SharedPrefix


def cascade_naive(
    q: Tensor,
    kv: PagedKV,
    groups: Sequence[SharedPrefix],
    page_table: Tensor,
    lengths: Tensor,
    *,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """out [batch, heads, head_dim] and lse [batch, heads], both float64. Arguments as of `plan_cascade`, `cascade`.

    The tokens that a group shares are attended to with the queries of all its members at once, what follows row by
    row: two states of a row, merged.
    """
    batch, heads, head_dim = q.shape
    scale = head_dim**-0.5 if scale is None else scale
    out = q.new_zeros(batch, heads, 2, head_dim, dtype=torch.float64)
    lse = q.new_full((batch, heads, 2), -torch.inf, dtype=torch.float64)
    shared = [0] * batch
    for group in groups:
        rows, pages = list(group.rows), torch.tensor(group.pages, device=q.device)
        slots = slots_of(pages, len(pages) * kv.page_size, kv.page_size)
        out[rows, :, 0], lse[rows, :, 0] = _attend(q[rows], *kv.gathered(slots), scale, soft_cap)
        for row in rows:
            shared[row] = len(slots)
    for row, length in enumerate(lengths.tolist()):
        slots = slots_of(page_table[row], length, kv.page_size)[shared[row] :]
        out[row, :, 1], lse[row, :, 1] = _attend(q[row][None], *kv.gathered(slots), scale, soft_cap)
    return merge_states_naive(out, lse)


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, soft_cap: float | None) -> tuple[Tensor, Tensor]:
    """q: [rows, heads, head_dim]; k, v: float64 [tokens, kv_heads, head_dim]. Of no tokens: 0 and -inf."""
    rows, heads, head_dim = q.shape
    grouped = q.double().view(rows, k.shape[1], heads // k.shape[1], head_dim)
    scores = torch.einsum("rkgd,tkd->rkgt", grouped, k) * scale
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    out = torch.einsum("rkgt,tkd->rkgd", scores.softmax(-1), v)
    return out.reshape(rows, heads, head_dim), scores.logsumexp(-1).reshape(rows, heads)
