"""What a plan's items become: a state of each, an output with its lse; and these one output of each sequence."""

import torch
from torch import Tensor

from ..checks import check, check_tensor
from ..kv import PagedKV
from ..merge import merge_states
from ..tuned import padded
from .plan import DecodePlan

QUERIES = (torch.float32, torch.float16, torch.bfloat16)
ALL = 2**31 - 1
"""Longer than any sequence."""


def checked_out(q: Tensor, out: Tensor | None, lse: Tensor | None) -> Tensor:
    """`out`, made where it is not given. Raises ValueError where it, or `lse`, is not as q wants it."""
    if out is None:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    check_tensor("out", out, tuple(q.shape), (q.dtype,), q.device, contiguous=False)
    if lse is not None:
        check_tensor("lse", lse, tuple(q.shape[:2]), (torch.float32,), q.device)
    return out


def make_states(
    q: Tensor,
    kv: PagedKV,
    page_table: Tensor,
    lengths: Tensor,
    *,
    plan: DecodePlan,
    scale: float | None,
    window: int | None,
    soft_cap: float | None,
) -> None:
    """Writes the plan's `partial_out` and `partial_lse`. Arguments as of `paged_decode`, and checked here."""
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
    if plan.batch == 0:
        return
    import triton

    from .kernel import paged_decode_kernel, tile

    group = plan.heads // plan.kv_heads
    block_m, block_n = tile(plan.config, group, q.dtype)
    paged_decode_kernel[(plan.items * plan.kv_heads * triton.cdiv(group, block_m),)](
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
        PADDED_DIM=padded(plan.head_dim),
        PAGE_SIZE=kv.page_size,
        FIXED_SPLIT=plan.fixed_split,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        num_warps=plan.config.num_warps,
        num_stages=plan.config.num_stages,
    )


def merge_items(plan: DecodePlan, counts: Tensor, out: Tensor, lse: Tensor | None) -> None:
    """counts: int32 [batch], how many states a row has from its first item on."""
    # All items are one list: every row is given the whole of it, and told where its own begin and how many they are.
    merge_states(
        plan.partial_out.transpose(0, 1).expand(plan.batch, -1, -1, -1),
        plan.partial_lse.expand(plan.batch, -1, -1),
        out,
        counts=counts,
        first=plan.first,
        lse=lse,
    )
