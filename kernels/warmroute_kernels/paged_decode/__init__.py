"""Attention of one new token per sequence over its paged cache (decode).

The cache is read once for all query heads that share a kv head (Ainslie et al., "GQA", 2023), as the rows of a matrix
product. Sequences are split, so that few long ones keep the whole GPU busy too, and the parts merged by their lse
(Dao et al., "Flash-Decoding", 2023).
"""

from torch import Tensor

from ..kv import PagedKV
from .naive import paged_decode_naive
from .plan import DecodePlan, plan_decode
from .states import checked_out, make_states, merge_items

__all__ = ["DecodePlan", "paged_decode", "paged_decode_naive", "plan_decode"]


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
    out = checked_out(q, out, lse)
    make_states(q, kv, page_table, lengths, plan=plan, scale=scale, window=window, soft_cap=soft_cap)
    merge_items(plan, plan.counts, out, lse)
    return out
