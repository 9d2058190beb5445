"""Decode of a batch whose rows share prefixes: what a group of rows shares is attended to once, for all of them.

Decoding reads all of K and V for one token of each row, and is bound by memory. The shared part becomes a matrix
product with the queries of all members, so its K and V are read once per group (Juravsky et al., "Hydragen", 2024;
Ye et al., "Cascade Inference", 2024); the own parts are `paged_decode`, and the states are merged by their lse.
"""

from torch import Tensor

from ..checks import check
from ..kv import PagedKV
from ..paged_decode.states import checked_out, make_states, merge_items
from ..tuned import padded
from .groups import SharedPrefix, groups_of
from .naive import cascade_naive
from .plan import CascadePlan, plan_cascade, plan_groups

__all__ = ["CascadePlan", "SharedPrefix", "cascade", "cascade_naive", "groups_of", "plan_cascade", "plan_groups"]


def cascade(
    q: Tensor,
    kv: PagedKV,
    *,
    plan: CascadePlan,
    scale: float | None = None,
    soft_cap: float | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    """What `paged_decode` gives of the page table and lengths that were planned, up to rounding.

    Returns `out`, [batch, heads, head_dim] of q's dtype; writes `lse`, float32 [batch, heads], where it is given.
    q, kv, scale, soft_cap: as of `paged_decode`. The plan's page table must still be what it was.
    Waits for nothing on the GPU; its grids are the plan's. Layers that run one after another can share a plan,
    launches at the same time cannot.
    Raises ValueError that says what is wrong with an argument.
    """
    kv.checked()
    own = plan.own.plan
    check(kv.page_size == plan.page_size, f"kv has pages of {kv.page_size}: planned were {plan.page_size}")
    out = checked_out(q, out, lse)
    make_states(q, kv, plan.own_table, plan.own_lengths, plan=own, scale=scale, window=None, soft_cap=soft_cap)
    from .kernel import blocks_of, shared_part_kernel

    tiles, tile_m = plan.tiles.shape[0], plan.tiles.shape[1] - 2
    block_m, block_n = blocks_of(plan.config, q.dtype, tile_m)
    shared_part_kernel[(tiles * (tile_m // block_m), own.kv_heads, plan.splits)](
        q,
        *kv,
        plan.page_table,
        plan.tiles,
        plan.own.shared_first,
        own.partial_out,
        own.partial_lse,
        own.head_dim**-0.5 if scale is None else float(scale),
        plan.split_tokens,
        own.items,
        *q.stride()[:2],
        *kv.k.stride()[:3],
        plan.page_table.stride(0),
        SOFT_CAP=float(soft_cap or 0.0),
        GROUP=own.heads // own.kv_heads,
        KV_HEADS=own.kv_heads,
        HEAD_DIM=own.head_dim,
        PADDED_DIM=padded(own.head_dim),
        PAGE_SIZE=kv.page_size,
        TILE_M=tile_m,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        num_warps=plan.config.num_warps,
        num_stages=plan.config.num_stages,
    )
    merge_items(own, plan.own.counts, out, lse)
    return out
