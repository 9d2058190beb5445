"""`extend` in Triton: FlashAttention-2 (Dao, arXiv:2307.08691), over the prefix in pages, then over the new tokens.

A program has `BLOCK_M` rows of one sequence and one kv head: a tile of the plan, or one of its `PARTS`. A row is a
query: rows count the heads of the group first and the tokens second, so that a tile of K and V is read once for the
whole group, whatever its size. Tokens to attend to come in blocks of `BLOCK_N`; a block that all rows see whole, as
most are, costs no mask.
"""

from collections.abc import Iterator
from itertools import product

import torch
import triton
import triton.language as tl

from ..language import LN2, LOG2E, dot
from ..specimen import Specimen
from ..tuned import Config, config_of, padded

LOWEST = tl.constexpr(-3.0e38)
"""A row's peak before its first score. Not -inf, which less itself is not a number."""


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["window", "max_pages"],
    do_not_specialize_on_alignment=["page_table", "prefix_lengths", "starts", "tiles"],
)
def extend_kernel(  # type: ignore[no-untyped-def]
    q,  # [tokens, heads, head_dim]
    k,  # [tokens, kv_heads, head_dim]
    v,
    k_pages,  # [pages, page_size, kv_heads, head_dim]
    v_pages,
    k_scale,  # [pages, page_size, kv_heads]
    v_scale,
    page_table,  # [batch, max_pages]
    prefix_lengths,  # [batch]
    starts,  # [batch + 1]
    tiles,  # [tiles, 2]: sequence, first row
    out,  # as q, contiguous
    lse,  # [tokens, heads]
    scale,
    soft_cap,
    window,
    max_pages,
    q_token_stride,
    q_head_stride,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    page_stride,
    page_token_stride,
    page_head_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    FP8: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    LSE: tl.constexpr,
):
    tile = tl.program_id(0) // KV_HEADS // PARTS
    kv_head = (tl.program_id(0) % KV_HEADS).to(tl.int64)
    skipped = tl.program_id(0) // KV_HEADS % PARTS * BLOCK_M
    sequence = tl.load(tiles + 2 * tile).to(tl.int64)
    first_row = tl.load(tiles + 2 * tile + 1) + skipped
    start = tl.load(starts + sequence).to(tl.int64)
    new = (tl.load(starts + sequence + 1) - start).to(tl.int32)
    if first_row >= new * GROUP:  # the last tile's parts need not all be used
        return
    prefix = tl.load(prefix_lengths + sequence)
    k += start * k_token_stride + kv_head * k_head_stride
    v += start * v_token_stride + kv_head * v_head_stride
    k_pages += kv_head * page_head_stride
    v_pages += kv_head * page_head_stride
    page_table += sequence * max_pages

    rows = first_row + tl.arange(0, BLOCK_M)
    token = tl.minimum(rows // GROUP, new - 1)  # rows after the last repeat its token: they see something as well
    head = kv_head * GROUP + rows % GROUP
    earliest = first_row // GROUP
    latest = tl.minimum((first_row + BLOCK_M - 1) // GROUP, new - 1)
    dim = tl.arange(0, PADDED_DIM)
    inside = dim < HEAD_DIM
    own = (rows < new * GROUP)[:, None] & inside[None, :]
    at = start + token
    queries = tl.load(q + (at * q_token_stride + head * q_head_stride)[:, None] + dim[None, :], mask=own, other=0.0)
    acc = tl.zeros([BLOCK_M, PADDED_DIM], dtype=tl.float32)
    peak = tl.full([BLOCK_M], LOWEST, dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    unit = (soft_cap if CAPPED else scale) * LOG2E  # scores times it are powers of two

    for part in tl.static_range(2):
        # Keys are counted from the beginning of the part, where new token 0 would be the key `zero`.
        if part == 0:  # the prefix
            zero = prefix
            end = prefix
            all_until = prefix // BLOCK_N * BLOCK_N
        else:  # the new tokens, until the last that the tile sees
            zero = 0
            end = latest + 1
            all_until = (earliest + 1) // BLOCK_N * BLOCK_N
        # Nobody sees what is before `low`; everybody, what is from `all_from` until before `all_until`.
        low = 0
        all_from = 0
        if WINDOWED:
            low = tl.maximum(zero + earliest - window + 1, 0)
            all_from = tl.cdiv(tl.maximum(zero + latest - window + 1, 0), BLOCK_N) * BLOCK_N

        for band in tl.static_range(0 if WINDOWED else 1, 3):
            if band == 0:
                first = low // BLOCK_N * BLOCK_N
                last = tl.minimum(all_from, end)
            elif band == 1:
                first = all_from
                last = all_until
            else:
                first = tl.maximum(all_from, all_until)
                last = end
            # A page's number is loaded before what is in it, and each of the two takes stages.
            for block in tl.range(
                first,
                last,
                BLOCK_N,
                num_stages=2 * STAGES - 1 if part == 0 else STAGES,
            ):
                key = block + tl.arange(0, BLOCK_N)
                readable = (key >= low) & (key < end)
                if part == 0:
                    page = _read(page_table + key // PAGE_SIZE, readable, band != 1).to(tl.int64)
                    offset = key % PAGE_SIZE
                    place = (page * page_stride + offset * page_token_stride)[:, None] + dim[None, :]
                    k_block = k_pages + place
                    v_block = v_pages + place
                else:
                    k_block = k + (key.to(tl.int64) * k_token_stride)[:, None] + dim[None, :]
                    v_block = v + (key.to(tl.int64) * v_token_stride)[:, None] + dim[None, :]
                wanted = inside[None, :] if band == 1 else inside[None, :] & readable[:, None]
                keys = _read(k_block, wanted, band != 1 or HEAD_DIM < PADDED_DIM)
                scores = dot(queries, tl.trans(keys.to(queries.dtype)))
                if FP8 and part == 0:
                    place = (page * PAGE_SIZE + offset) * KV_HEADS + kv_head
                    scores *= _read(k_scale + place, readable, band != 1)[None, :]
                if CAPPED:
                    scores = _tanh(scores * (scale / soft_cap))
                if band != 1:
                    behind = zero + token[:, None] - key[None, :]
                    seen = readable[None, :] & (behind >= 0)
                    if WINDOWED:
                        seen = seen & (behind < window)
                    scores = tl.where(seen, scores, -float("inf"))
                higher = tl.maximum(peak, tl.max(scores, 1) * unit)
                weights = tl.exp2(scores * unit - higher[:, None])
                decay = tl.exp2(peak - higher)
                peak = higher
                total = total * decay + tl.sum(weights, 1)
                values = _read(v_block, wanted, band != 1 or HEAD_DIM < PADDED_DIM)
                if FP8 and part == 0:
                    weights *= _read(v_scale + place, readable, band != 1)[None, :]
                    # float16 lacks the range for weights times scales.
                    values = values.to(tl.bfloat16 if queries.dtype == tl.float16 else queries.dtype)
                acc = acc * decay[:, None] + dot(weights.to(values.dtype), values)

    acc = acc / total[:, None]  # not 0: every token sees itself
    # Read once more, so that nothing of it takes up registers during the loops.
    rows = tl.load(tiles + 2 * tile + 1, volatile=True) + skipped + tl.arange(0, BLOCK_M)
    own = rows < new * GROUP
    to = (start + rows // GROUP) * (KV_HEADS * GROUP) + kv_head * GROUP + rows % GROUP
    tl.store(
        out + (to * HEAD_DIM)[:, None] + dim[None, :],
        acc.to(out.dtype.element_ty),
        mask=own[:, None] & inside[None, :],
    )
    if LSE:
        tl.store(lse + to, (peak + tl.log2(total)) * LN2, mask=own)


@triton.jit  # type: ignore[untyped-decorator]
def _read(pointers, wanted, MASKED: tl.constexpr):  # type: ignore[no-untyped-def]
    """What is not wanted is 0, and is not read."""
    return tl.load(pointers, mask=wanted, other=0.0) if MASKED else tl.load(pointers)


@triton.jit
def _tanh(x):  # type: ignore[no-untyped-def]
    """1 - 2 / (e^2x + 1). When the power is 2^64 that is 1 in float32; without bound it would overflow."""
    return 1.0 - 2.0 / (tl.exp2(tl.minimum(x * (2.0 * LOG2E), 64.0)) + 1.0)


def tile(config: Config, dtype: torch.dtype, head_dim: int) -> dict[str, int]:
    """What a launch gets of the configuration. float32 has no tensor cores: with tiles as large, registers spill."""
    wide = dtype == torch.float32
    block_m = min(config.block_m, 8192 // padded(head_dim)) if wide else config.block_m
    stages = 1 if wide else config.num_stages
    return {
        "PARTS": config.block_m // block_m,
        "BLOCK_M": block_m,
        "BLOCK_N": max(16, config.block_n // 4) if wide else config.block_n,
        "STAGES": stages,
        "num_warps": config.num_warps,
        "num_stages": stages,
    }


NAMED = {"NVIDIA H200": 90, "NVIDIA H100 80GB HBM3": 90}
"""GPUs with tiles of their own, and their compute capabilities."""


def specimens() -> Iterator[Specimen]:
    """Each head dim with the cache in q's type and in FP8; then the other types, and all that can be asked for.

    A named GPU's tiles for that GPU alone. What several would have alike is there once.
    """
    found: dict[str, Specimen] = {}
    for each in _specimens():
        found.setdefault(repr(each._replace(name="", only=None)), each)
    yield from found.values()


def _specimens() -> Iterator[Specimen]:
    for head_dim, fp8 in product((64, 96, 128, 256), (False, True)):
        yield _specimen("default", torch.bfloat16, head_dim, fp8)
    yield _specimen("default", torch.bfloat16, 8, fp8=False)
    for fp8 in (False, True):
        yield _specimen("default", torch.float16, 128, fp8)
        yield _specimen("default", torch.float32, 128, fp8)
    for gpu, head_dim, fp8 in product(NAMED, (128, 256), (False, True)):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            yield _specimen(gpu, dtype, head_dim, fp8)
        yield _specimen(gpu, torch.bfloat16, head_dim, fp8, special=True)


def _specimen(gpu: str, dtype: torch.dtype, head_dim: int, fp8: bool, *, special: bool = False) -> Specimen:
    meta = tile(config_of("extend", gpu, head_dim, fp8=fp8), dtype, head_dim)
    warps, stages = meta.pop("num_warps"), meta.pop("num_stages")
    constants = {
        **meta,
        "KV_HEADS": 8,
        "GROUP": 4,
        "HEAD_DIM": head_dim,
        "PADDED_DIM": padded(head_dim),
        "PAGE_SIZE": 16,
        "FP8": fp8,
        **dict.fromkeys(("WINDOWED", "CAPPED", "LSE"), special),
    }
    of_q = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[dtype]
    of_cache = "fp8e4nv" if fp8 else of_q
    types = {
        **dict.fromkeys(("q", "k", "v", "out"), f"*{of_q}"),
        **dict.fromkeys(("k_pages", "v_pages"), f"*{of_cache}"),
        **dict.fromkeys(("k_scale", "v_scale", "lse"), "*fp32"),
        **dict.fromkeys(("page_table", "prefix_lengths", "starts", "tiles"), "*i32"),
        **dict.fromkeys(("scale", "soft_cap"), "fp32"),
        **dict.fromkeys(constants, "constexpr"),
    }
    signature = {argument: types.get(argument, "i32") for argument in extend_kernel.arg_names}
    name = f"extend {of_q}, cache {of_cache}, d{head_dim}, {meta['BLOCK_M']}x{meta['BLOCK_N']}, {stages} stages"
    if special:
        name += ", window, cap, lse"
    return Specimen(f"{name} ({gpu})", extend_kernel, signature, constants, warps, stages, NAMED.get(gpu))
