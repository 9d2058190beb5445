"""The shared part of `cascade` in Triton: FlashAttention-2 (Dao, arXiv:2307.08691) without a mask, of many rows.

A program has a tile of rows of one group and one kv head, and one split of the group's tokens. A row of a tile is one
query head of one member. As all of them see the same tokens, the scores are a matrix product with as many rows as the
group has members times heads, where decoding each member alone would have only the heads.
"""

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from ..attend import attend_block, ready
from ..language import LN2
from ..specimen import Specimen, signature_of
from ..tuned import Config, config_of, padded
from .tiles import SMALLEST_TILE


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["split_tokens", "items", "stride_table"],
    do_not_specialize_on_alignment=["page_table", "tiles", "first"],
)
def shared_part_kernel(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    k_scale,
    v_scale,
    page_table,
    tiles,
    first,
    partial_out,
    partial_lse,
    scale,
    split_tokens,
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
    TILE_M: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """A state for each row and head of a tile: in the list of `paged_decode`'s items, at the row's `first` + split.

    tiles: as of `CascadePlan`, of TILE_M rows; a program takes BLOCK_M of them. split_tokens: a multiple of BLOCK_N.
    Tiles of one split are neighbours in the grid: while one reads K and V from memory, the others have them in L2.
    """
    PROGRAMS: tl.constexpr = TILE_M // BLOCK_M
    tile = tiles + tl.program_id(0) // PROGRAMS * (2 + TILE_M)
    kv_head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    member = tl.load(tile).to(tl.int64)
    tokens = tl.load(tile + 1)
    begin = split * split_tokens
    if begin >= tokens:
        return
    end = tl.minimum(begin + split_tokens, tokens)

    packed = tl.load(tile + 2 + tl.program_id(0) % PROGRAMS * BLOCK_M + tl.arange(0, BLOCK_M))
    used = packed >= 0
    row = (packed // GROUP).to(tl.int64)
    head = kv_head * GROUP + packed % GROUP
    dims = tl.arange(0, PADDED_DIM)
    within = (dims < HEAD_DIM)[None, :]
    queried = used[:, None] & within
    queries_at = row[:, None] * stride_q_row + head[:, None] * stride_q_head + dims[None, :]
    queries = tl.load(q + queries_at, mask=queried, other=0.0)
    queries, scale = ready(queries, scale, k_scale is not None)

    highest = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, PADDED_DIM], tl.float32)
    for at in range(begin, end, BLOCK_N):
        token = at + tl.arange(0, BLOCK_N)
        seen = token < end
        highest, total, mixed = attend_block(
            queries,
            k,
            v,
            k_scale,
            v_scale,
            page_table + member * stride_table,
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

    # Every split has a token, and every row sees it: no total is 0.
    item = tl.load(first + row, mask=used, other=0).to(tl.int64) + split
    out_at = (item * KV_HEADS * GROUP + head)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(partial_out + out_at, mixed / total[:, None], mask=queried)
    tl.store(partial_lse + head * items + item, (highest + tl.log2(total)) * LN2, mask=used)


def blocks_of(config: Config, q_dtype: torch.dtype, tile_m: int) -> tuple[int, int]:
    """BLOCK_M and BLOCK_N. The exact product of float32 has no tensor cores: a tile has to fit into registers."""
    return (SMALLEST_TILE, min(16, config.block_n)) if q_dtype == torch.float32 else (tile_m, config.block_n)


def specimens() -> Iterator[Specimen]:
    """Tiles of large groups for all types, of the smallest for those that serve, and what else is compiled in."""
    for q, cache in (("bf16", "bf16"), ("bf16", "fp8e4nv"), ("fp16", "fp16"), ("fp16", "fp8e4nv"), ("fp32", "fp32")):
        for head_dim in (64, 96, 128, 256):
            yield _specimen(q, cache, head_dim, 4, 16)
            if q == "bf16":
                yield _specimen(q, cache, head_dim, 8, 1, small=True)
    yield _specimen("bf16", "bf16", 8, 4, 16)
    yield _specimen("fp32", "fp8e4nv", 128, 4, 16)
    yield _specimen("bf16", "bf16", 128, 3, 1)
    yield _specimen("bf16", "bf16", 256, 2, 16, soft_cap=50.0)


def _specimen(
    q: str, cache: str, head_dim: int, group: int, page_size: int, *, small: bool = False, soft_cap: float = 0.0
) -> Specimen:
    fp8 = cache == "fp8e4nv"
    config = config_of("cascade", "default", head_dim, fp8=fp8)
    tile_m = SMALLEST_TILE if small else config.block_m
    block_m, block_n = blocks_of(config, torch.float32 if q == "fp32" else torch.float16, tile_m)
    constants: dict[str, Any] = {
        "SOFT_CAP": soft_cap,
        "GROUP": group,
        "KV_HEADS": 8,
        "HEAD_DIM": head_dim,
        "PADDED_DIM": padded(head_dim),
        "PAGE_SIZE": page_size,
        "TILE_M": tile_m,
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
    }
    if not fp8:
        constants |= {"k_scale": None, "v_scale": None}
    types = {"q": f"*{q}", "k": f"*{cache}", "v": f"*{cache}", "scale": "fp32"}
    types |= dict.fromkeys(("k_scale", "v_scale", "partial_out", "partial_lse"), "*fp32")
    types |= dict.fromkeys(("page_table", "tiles", "first"), "*i32")
    signature = signature_of(shared_part_kernel, constants, types)
    cap = " cap" if soft_cap else ""
    return Specimen(
        f"cascade {q} over {cache} d{head_dim} group{group} page{page_size} tile{tile_m}{cap}",
        shared_part_kernel,
        signature,
        constants,
        config.num_warps,
        config.num_stages,
    )
