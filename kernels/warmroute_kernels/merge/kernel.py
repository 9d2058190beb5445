"""Merges partial attention, in Triton."""

from collections.abc import Iterator
from typing import Any

import triton
import triton.language as tl

from ..specimen import Specimen, signature_of
from ..tuned import config_of, padded


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["states", "stride_lse_row", "stride_lse_head"],
    do_not_specialize_on_alignment=["first", "counts"],
)
def merge_states_kernel(  # type: ignore[no-untyped-def]
    partial_out,
    partial_lse,
    out,
    lse,
    first,
    counts,
    states,
    stride_partial_row,
    stride_partial_head,
    stride_partial_state,
    stride_lse_row,
    stride_lse_head,
    stride_out_row,
    stride_out_head,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program for each head of each row. It takes BLOCK_N states at a time, in order.

    So the result does not depend on how many states there might have been, only on those that there are.
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    dims = tl.arange(0, PADDED_DIM)
    begin = 0 if first is None else tl.load(first + row)
    end = states if counts is None else begin + tl.load(counts + row)

    highest = -float("inf")
    total = 0.0
    mixed = tl.zeros([PADDED_DIM], tl.float32)
    for at in range(begin, end, BLOCK_N):
        state = (at + tl.arange(0, BLOCK_N)).to(tl.int64)
        lse_at = partial_lse + row * stride_lse_row + head * stride_lse_head + state
        known = tl.load(lse_at, mask=state < end, other=-float("inf"))
        told = known > -float("inf")
        # Zero where nothing was told yet: -inf less -inf is NaN.
        higher = tl.maximum(highest, tl.max(known, 0))
        base = tl.where(higher == -float("inf"), 0.0, higher)
        weight = tl.exp(known - base)
        kept = tl.exp(highest - base)
        out_at = partial_out + row * stride_partial_row + head * stride_partial_head + state * stride_partial_state
        # A state that counts nothing may hold anything, NaN too.
        parts = tl.load(out_at[:, None] + dims[None, :], mask=told[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
        mixed = mixed * kept + tl.sum(weight[:, None] * parts, 0)
        total = total * kept + tl.sum(weight, 0)
        highest = higher

    nothing = total == 0.0
    total = tl.where(nothing, 1.0, total)
    tl.store(
        out + row * stride_out_row + head * stride_out_head + dims,
        (mixed / total).to(out.dtype.element_ty),
        mask=dims < HEAD_DIM,
    )
    if lse is not None:
        tl.store(lse + row * HEADS + head, tl.where(nothing, -float("inf"), highest + tl.log(total)))


def specimens() -> Iterator[Specimen]:
    for dtype in ("bf16", "fp16", "fp32"):
        for head_dim in (64, 96, 128, 256):
            config = config_of("merge", "default", head_dim, fp8=False)
            types = {"partial_out": "*fp32", "partial_lse": "*fp32", "out": f"*{dtype}", "lse": "*fp32"}
            types |= {"first": "*i32", "counts": "*i32"}
            constants: dict[str, Any] = {
                "HEADS": 32,
                "HEAD_DIM": head_dim,
                "PADDED_DIM": padded(head_dim),
                "BLOCK_N": config.block_n,
            }
            signature = signature_of(merge_states_kernel, constants, types)
            yield Specimen(
                f"merge_states {dtype} d{head_dim}",
                merge_states_kernel,
                signature,
                constants,
                config.num_warps,
                config.num_stages,
            )
