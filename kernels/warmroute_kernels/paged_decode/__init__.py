"""Attention of one new token per sequence over its paged cache (decode).

The cache is read once for all query heads that share a kv head (Ainslie et al., "GQA", 2023), as the rows of a matrix
product. Sequences are split, so that few long ones keep the whole GPU busy too, and the parts merged by their lse
(Dao et al., "Flash-Decoding", 2023).
"""

import torch
from torch import Tensor

from ..checks import check, check_tensor
from ..kv import PagedKV
from ..merge import merge_states
from .naive import paged_decode_naive
from .plan import DecodePlan, plan_decode

__all__ = ["DecodePlan", "paged_decode", "paged_decode_naive", "plan_decode"]

QUERIES = (torch.float32, torch.float16, torch.bfloat16)
ALL = 2**31 - 1
"""Longer than any sequence."""


def paged_decode(
    q: Tensor,
    kv: PagedKV,
    page_table: Tensor,
    lengths: Tensor,
    *,
    plan: DecodePlan,
    scale: float | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    """Returns `out`, [batch, heads, head_dim] of q's dtype; writes `lse`, float32 [batch, heads], where it is given.

    q: float32, float16 or bfloat16 [batch, heads, head_dim], last dim contiguous. kv: of the same dtype, or FP8.
    Query head h belongs to kv head h // (heads / kv_heads).
    page_table: int32 [batch, max_pages]; entries after a sequence's last page, and before its window, are not read.
    lengths: int32 [batch], up to the plan's `max_length`; the token at length - 1 is the query's own. A sequence of
    length 0 has the output 0 and the lse -inf.
    scale: 1 / sqrt(head_dim) unless given. window: how many of the last tokens are seen; None: all. soft_cap: c makes
    of a score s c * tanh(s / c).
    Waits for nothing on the GPU, and launches the same grids whatever the lengths: a CUDA graph can capture it.
    Layers that run one after another can share a plan; launches at the same time cannot.
    Raises ValueError that says what is wrong with an argument.
    """
    kv.checked()
    device = kv.k.device
    dtypes = QUERIES if kv.is_fp8 else (kv.k.dtype,)
    check_tensor("q", q, (plan.batch, plan.heads, plan.head_dim), dtypes, device, contiguous=False)
    planned, has = (plan.kv_heads, plan.head_dim, plan.fp8), (kv.kv_heads, kv.head_dim, kv.is_fp8)
    check(has == planned, f"kv has (kv_heads, head_dim, is it FP8) {has}: the plan is for {planned}")
    check_tensor("page_table", page_table, (plan.batch, None), (torch.int32,), device)
    check_tensor("lengths", lengths, (plan.batch,), (torch.int32,), device)
    check(plan.rows.device == device, f"plan is on {plan.rows.device}: expected {device}")
    check(window is None or 0 < window <= ALL, f"window is {window}: expected a number of tokens")
    check(soft_cap is None or soft_cap > 0, f"soft_cap is {soft_cap}: expected more than 0")
    if out is None:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    check_tensor("out", out, tuple(q.shape), (q.dtype,), device, contiguous=False)
    if lse is not None:
        check_tensor("lse", lse, (plan.batch, plan.heads), (torch.float32,), device)
    if plan.batch == 0:
        return out
    import triton

    from .kernel import paged_decode_kernel, tile

    group = plan.heads // plan.kv_heads
    block_m, block_n = tile(plan.config, group, q.dtype)
    grid = (plan.kv_heads * triton.cdiv(group, block_m), plan.items)
    paged_decode_kernel[grid](
        q,
        *kv,
        page_table,
        lengths,
        plan.rows,
        plan.first,
        plan.counts,
        plan.partial_out,
        plan.partial_lse,
        plan.head_dim**-0.5 if scale is None else float(scale),
        ALL if window is None else window,
        plan.items,
        *q.stride()[:2],
        *kv.k.stride()[:3],
        page_table.stride(0),
        SOFT_CAP=float(soft_cap or 0.0),
        GROUP=group,
        KV_HEADS=plan.kv_heads,
        HEAD_DIM=plan.head_dim,
        PADDED_DIM=triton.next_power_of_2(plan.head_dim),
        PAGE_SIZE=kv.page_size,
        FIXED_SPLIT=plan.fixed_split,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        num_warps=plan.config.num_warps,
        num_stages=plan.config.num_stages,
    )
    # All items are one list: every row is given the whole of it, and told where its own begin and how many they are.
    merge_states(
        plan.partial_out.transpose(0, 1).expand(plan.batch, -1, -1, -1),
        plan.partial_lse.expand(plan.batch, -1, -1),
        out,
        counts=plan.counts,
        first=plan.first,
        lse=lse,
    )
    return out
