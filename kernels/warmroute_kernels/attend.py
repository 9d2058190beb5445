"""One block of tokens from the pages, for many queries: what decode and shared prefixes do in their loops."""

import triton
import triton.language as tl

from .language import LOG2E, dot

# FP8 is multiplied as float16. It is exact there, as in bfloat16, but one instruction makes it of two elements where
# bfloat16 takes four. For the range there are powers of two: what is multiplied is at most 2^15, exact from 2^-14 on.
TOP = tl.constexpr(2.0**15)
LEAST = tl.constexpr(2.0**-100)
"""A largest value of less counts as this: its inverse is no infinity."""


@triton.jit  # type: ignore[untyped-decorator]
def ready(queries, scale, FP8: tl.constexpr):  # type: ignore[no-untyped-def]
    """Queries as `attend_block` takes them, and the scale of their scores: one of each row, [rows, 1], over FP8."""
    if FP8 and queries.dtype != tl.float32:
        wide = queries.to(tl.float32)
        largest = tl.maximum(tl.max(tl.abs(wide), 1), LEAST)
        power = (largest.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)  # of two, rounded down
        unit = (power * (2 / TOP))[:, None]
        queries = (wide / unit).to(tl.float16)
        scale = unit * scale
    return queries, scale


@triton.jit  # type: ignore[untyped-decorator]
def attend_block(  # type: ignore[no-untyped-def]
    queries,
    k,
    v,
    k_scale,
    v_scale,
    pages,
    token,
    seen,
    kv_head,
    dims,
    within,
    scale,
    stride_page,
    stride_slot,
    stride_head,
    highest,
    total,
    mixed,
    SOFT_CAP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
):
    """A step of the online softmax (Milakov and Gimelshein, arXiv:1805.02867): the new highest, total and mixed.

    queries, scale: as `ready` gives them. pages: where the sequence's page table begins. token, seen: of the block;
    what is not seen is not read. highest: of the scores so far, in powers of two; total: the sum of the weights;
    mixed: that of V by them.
    """
    page = tl.load(pages + token // PAGE_SIZE, mask=seen, other=0).to(tl.int64)
    offset = (token % PAGE_SIZE).to(tl.int64)
    place = page * stride_page + offset * stride_slot + kv_head * stride_head
    place = place[:, None] + dims[None, :]
    scale_at = (page * PAGE_SIZE + offset) * KV_HEADS + kv_head

    keys = tl.load(k + place, mask=seen[:, None] & within, other=0.0)
    scores = dot(queries, tl.trans(keys.to(queries.dtype))) * scale
    if k_scale is not None:
        scores *= tl.load(k_scale + scale_at, mask=seen, other=0.0)[None, :]
    if SOFT_CAP != 0.0:
        # tanh(x) = 1 - 2 / (exp(2x) + 1)
        scores = SOFT_CAP - 2 * SOFT_CAP / (tl.exp2(scores * (2 * LOG2E / SOFT_CAP)) + 1)
    scores = tl.where(seen[None, :], scores * LOG2E, -float("inf"))

    higher = tl.maximum(highest, tl.max(scores, 1))
    p = tl.exp2(scores - higher[:, None])
    kept = tl.exp2(highest - higher)
    total = total * kept + tl.sum(p, 1)
    largest = 1.0
    if v_scale is not None:
        of_v = tl.load(v_scale + scale_at, mask=seen, other=0.0)
        largest = tl.maximum(tl.max(of_v, 0), LEAST) / TOP
        p *= (of_v / largest)[None, :]
    values = tl.load(v + place, mask=seen[:, None] & within, other=0.0)
    mixed = mixed * kept[:, None] + dot(p.to(queries.dtype), values.to(queries.dtype)) * largest
    return higher, total, mixed
