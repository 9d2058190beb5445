"""Attention of one token per sequence over pages, in Triton: one part of the tokens, for one kv head."""

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from ..attend import attend_block, ready
from ..language import LN2
from ..specimen import Specimen, signature_of
from ..tuned import Config, config_of, padded

TYPES = (("bf16", "bf16"), ("bf16", "fp8e4nv"), ("fp16", "fp16"), ("fp16", "fp8e4nv"), ("fp32", "fp32"))


def tile(config: Config, group: int, dtype: torch.dtype) -> tuple[int, int]:
    """BLOCK_M and BLOCK_N. `block_m` is the most query heads that one program takes, `block_n` its tokens at a time.

    All query heads that share a kv head go together where they fit. 16 is the least that `tl.dot` takes. In float32
    half as many tokens are as many bytes. dtype: of q.
    """
    block_n = config.block_n // 2 if dtype == torch.float32 else config.block_n
    return min(config.block_m, padded(group)), max(16, block_n)


@triton.jit  # type: ignore[untyped-decorator]
def _part(split, count, length, window, FIXED_SPLIT: tl.constexpr, BLOCK_N: tl.constexpr):  # type: ignore[no-untyped-def]
    """From which token on the sequence is seen, and this split's first token and the one after its last.

    Fixed splits are counted from the first token of the sequence, others from the first block that is seen.
    """
    seen_from = tl.maximum(length - window, 0)
    if FIXED_SPLIT == 0:
        base = seen_from // BLOCK_N * BLOCK_N
        tokens = tl.cdiv(tl.cdiv(length - base, BLOCK_N), count) * BLOCK_N
    else:
        base = 0
        tokens = FIXED_SPLIT
    start = base + split * tokens
    # The last one takes all that is left, should the sequence be longer than the plan knows.
    end = tl.where(split == count - 1, length, tl.minimum(start + tokens, length))
    # Whole blocks before the window are passed over.
    start += tl.maximum(seen_from - start, 0) // BLOCK_N * BLOCK_N
    return seen_from, tl.where(seen_from < end, start, end), end


# What changes from step to step does not make another variant: requests would wait for its compilation.
@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["window", "items", "stride_table"],
    do_not_specialize_on_alignment=["page_table", "lengths", "rows", "first", "counts"],
)
def paged_decode_kernel(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    k_scale,
    v_scale,
    page_table,
    lengths,
    rows,
    first,
    counts,
    partial_out,
    partial_lse,
    scale,
    window,
    items,
    stride_q_row,
    stride_q_head,
    stride_page,
    stride_slot,
    stride_head,
    stride_table,
    SOFT_CAP: tl.constexpr,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    FIXED_SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """BLOCK_M query heads of one kv head against one split of one sequence, BLOCK_N tokens at a time.

    The grid goes over kv heads first (and over tiles of a large group), so that programs which run together read
    neighbours in memory, then over the plan's items. It has one dim: others end at 65,535.
    """
    TILES: tl.constexpr = (GROUP + BLOCK_M - 1) // BLOCK_M
    item = tl.program_id(0) // (KV_HEADS * TILES)
    part = tl.program_id(0) % (KV_HEADS * TILES)
    row = tl.load(rows + item).to(tl.int64)
    if row < 0:
        return
    kv_head = (part // TILES).to(tl.int64)
    member = part % TILES * BLOCK_M + tl.arange(0, BLOCK_M)
    head = kv_head * GROUP + member
    dims = tl.arange(0, PADDED_DIM)
    within = (dims < HEAD_DIM)[None, :]
    queried = (member < GROUP)[:, None] & within
    seen_from, start, end = _part(
        item - tl.load(first + row), tl.load(counts + row), tl.load(lengths + row), window, FIXED_SPLIT, BLOCK_N
    )
    queries = tl.load(q + row * stride_q_row + head[:, None] * stride_q_head + dims[None, :], mask=queried, other=0.0)
    queries, scale = ready(queries, scale, k_scale is not None)

    highest = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, PADDED_DIM], tl.float32)
    for at in range(start, end, BLOCK_N):
        token = at + tl.arange(0, BLOCK_N)
        seen = (token >= seen_from) & (token < end)
        highest, total, mixed = attend_block(
            queries,
            k,
            v,
            k_scale,
            v_scale,
            page_table + row * stride_table,
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
            SOFT_CAP,
            KV_HEADS,
            PAGE_SIZE,
        )

    nothing = total == 0.0
    total = tl.where(nothing, 1.0, total)
    out_at = (item.to(tl.int64) * KV_HEADS * GROUP + head)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(partial_out + out_at, mixed / total[:, None], mask=queried)
    lse = tl.where(nothing, -float("inf"), (highest + tl.log2(total)) * LN2)
    tl.store(partial_lse + head * items + item, lse, mask=member < GROUP)


def specimens() -> Iterator[Specimen]:
    for dtype, cache in TYPES:
        for head_dim in (64, 96, 128, 256):
            for group, page_size in ((4, 16), (8, 1)):
                yield _specimen(dtype, cache, head_dim, group, page_size)
    yield _specimen("bf16", "bf16", 8, 4, 16)
    yield _specimen("bf16", "fp8e4nv", 8, 4, 16)
    yield _specimen("fp32", "fp8e4nv", 256, 4, 16)
    yield _specimen("bf16", "bf16", 128, 3, 16)
    yield _specimen("bf16", "bf16", 128, 20, 64, fixed_split=4096)
    yield _specimen("bf16", "bf16", 256, 2, 16, soft_cap=50.0)


def _specimen(
    dtype: str,
    cache: str,
    head_dim: int,
    group: int,
    page_size: int,
    *,
    soft_cap: float = 0.0,
    fixed_split: int = 0,
) -> Specimen:
    fp8 = cache == "fp8e4nv"
    config = config_of("paged_decode", "default", head_dim, fp8=fp8)
    block_m, block_n = tile(config, group, torch.float32 if dtype == "fp32" else torch.bfloat16)
    constants: dict[str, Any] = {
        "SOFT_CAP": soft_cap,
        "GROUP": group,
        "KV_HEADS": 8,
        "HEAD_DIM": head_dim,
        "PADDED_DIM": padded(head_dim),
        "PAGE_SIZE": page_size,
        "FIXED_SPLIT": fixed_split,
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
    }
    if not fp8:
        constants |= {"k_scale": None, "v_scale": None}
    types = {"q": f"*{dtype}", "k": f"*{cache}", "v": f"*{cache}", "scale": "fp32"}
    types |= dict.fromkeys(("k_scale", "v_scale", "partial_out", "partial_lse"), "*fp32")
    types |= dict.fromkeys(("page_table", "lengths", "rows", "first", "counts"), "*i32")
    signature = signature_of(paged_decode_kernel, constants, types)
    special = f"{' cap' if soft_cap else ''}{' fixed' if fixed_split else ''}"
    return Specimen(
        f"paged_decode {dtype} over {cache} d{head_dim} group{group} page{page_size}{special}",
        paged_decode_kernel,
        signature,
        constants,
        config.num_warps,
        config.num_stages,
    )
