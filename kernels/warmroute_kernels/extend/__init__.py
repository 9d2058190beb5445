"""Attention of new tokens over a cached prefix and over each other: prefill, whole or in chunks.

The prefix is in pages, and all of it is seen; the new tokens are given as they come from the projection, and each
sees itself and those before it. All query heads that share a kv head are rows of one matrix product (Ainslie et al.,
"GQA", 2023), and no score is ever written to memory (Dao, "FlashAttention-2", 2023).
"""

import torch
from torch import Tensor

from ..checks import check, check_tensor
from ..kv import PagedKV
from ..tuned import padded
from .naive import extend_naive
from .plan import ExtendPlan, plan_extend

__all__ = ["ExtendPlan", "extend", "extend_naive", "plan_extend"]

QUERIES = (torch.float32, torch.float16, torch.bfloat16)


def extend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv: PagedKV,
    page_table: Tensor,
    prefix_lengths: Tensor,
    starts: Tensor,
    *,
    plan: ExtendPlan,
    scale: float | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    """Returns `out`, q's dtype [tokens, heads, head_dim]; writes `lse`, float32 [tokens, heads], where it is given.

    q: float32, float16 or bfloat16 [tokens, heads, head_dim]; k, v: of the same dtype [tokens, kv_heads, head_dim].
    Their last dims are contiguous. Query head h belongs to kv head h // (heads / kv_heads).
    The new tokens of sequence i are the rows starts[i] until before starts[i + 1] of all three; there may be none.
    kv: of q's dtype, or FP8; it is read for the prefix alone, so the new tokens need not be stored yet.
    page_table: int32 [batch, max_pages]; entries after a prefix's last page, and before all windows, are not read.
    prefix_lengths: int32 [batch], 0 for none. starts: int32 [batch + 1]. Both have the values of the plan: nobody
    looks, for that would be to wait for the GPU.
    scale: more than 0; 1 / sqrt(head_dim) unless given. window: how many of the last tokens are seen, the query's own
    among them; None: all. soft_cap: c makes of a score s c * tanh(s / c).
    lse: the natural logarithm of the sum of exp(score).
    Waits for nothing on the GPU. A CUDA graph that captured it holds for the plan's lengths alone.
    Raises ValueError that says what is wrong with an argument.
    """
    kv.checked()
    device = kv.k.device
    check_tensor(
        "q",
        q,
        (plan.tokens, plan.heads, plan.head_dim),
        QUERIES if kv.is_fp8 else (kv.k.dtype,),
        device,
        contiguous=False,
    )
    check_tensor("k", k, (plan.tokens, plan.kv_heads, plan.head_dim), (q.dtype,), device, contiguous=False)
    check_tensor("v", v, tuple(k.shape), (q.dtype,), device, contiguous=False)
    planned, has = (plan.kv_heads, plan.head_dim, plan.fp8), (kv.kv_heads, kv.head_dim, kv.is_fp8)
    check(has == planned, f"kv has (kv_heads, head_dim, is it FP8) {has}: the plan is for {planned}")
    check_tensor("page_table", page_table, (plan.batch, None), (torch.int32,), device)
    check_tensor("prefix_lengths", prefix_lengths, (plan.batch,), (torch.int32,), device)
    check_tensor("starts", starts, (plan.batch + 1,), (torch.int32,), device)
    check(plan.tiles.device == device, f"plan is on {plan.tiles.device}: expected {device}")
    check(scale is None or scale > 0, f"scale is {scale}: expected more than 0")
    check(window is None or 0 < window < 2**31, f"window is {window}: expected a number of tokens")
    check(soft_cap is None or soft_cap > 0, f"soft_cap is {soft_cap}: expected more than 0")
    if out is None:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    check_tensor("out", out, tuple(q.shape), (q.dtype,), device)
    if lse is not None:
        check_tensor("lse", lse, (plan.tokens, plan.heads), (torch.float32,), device)
    if plan.tokens == 0:
        return out
    from .kernel import extend_kernel, tile

    launch = tile(plan.config, q.dtype, plan.head_dim)
    extend_kernel[(len(plan.tiles) * launch["PARTS"] * plan.kv_heads,)](
        q,
        k,
        v,
        *kv,
        page_table,
        prefix_lengths,
        starts,
        plan.tiles,
        out,
        lse,
        plan.head_dim**-0.5 if scale is None else float(scale),
        float(soft_cap or 0.0),
        window or 0,
        page_table.stride(0),
        *q.stride()[:2],
        *k.stride()[:2],
        *v.stride()[:2],
        *kv.k.stride()[:3],
        KV_HEADS=plan.kv_heads,
        GROUP=plan.heads // plan.kv_heads,
        HEAD_DIM=plan.head_dim,
        PADDED_DIM=padded(plan.head_dim),
        PAGE_SIZE=kv.page_size,
        FP8=plan.fp8,
        WINDOWED=window is not None,
        CAPPED=soft_cap is not None,
        LSE=lse is not None,
        **launch,
    )
    return out
