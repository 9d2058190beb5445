"""Scatters new K and V into pages, in Triton."""

from collections.abc import Iterator
from typing import Any

import triton
import triton.language as tl

from ..kv import FP8_MAX
from ..language import INTERPRET
from ..specimen import Specimen
from ..tuned import config_of, padded

LARGEST = tl.constexpr(FP8_MAX)
SMALLEST_NORMAL = tl.constexpr(2.0**-6)
TYPES = (("bf16", "bf16"), ("bf16", "fp8e4nv"), ("fp16", "fp16"), ("fp16", "fp8e4nv"), ("fp32", "fp32"))


@triton.jit
def _to_fp8(values):  # type: ignore[no-untyped-def]
    """Rounds to nearest. float32 up to LARGEST."""
    if INTERPRET:
        # Its own rounding loses a carry (1.97 would become 1), so it is given what needs none: a sum with a number
        # whose last bit is the last of the result has no bits after that.
        power = (values.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
        large = tl.maximum(power, SMALLEST_NORMAL) * (1.5 * 2**20)
        values = values + large - large
    return values.to(tl.float8e4nv)


@triton.jit
def _store(source, target, scale_at, stored, mask):  # type: ignore[no-untyped-def]
    """Rows of one tensor. Each is quantised by its own largest value where there are scales."""
    values = tl.load(source, mask=mask, other=0.0)
    if scale_at is not None:
        values = values.to(tl.float32)
        largest = tl.max(tl.abs(values), 1)
        scale = tl.where(largest == 0.0, 1.0, largest / LARGEST)
        # The quotient may be an ulp above the largest value: FP8 has no infinity to round it to, but a NaN.
        values = _to_fp8(tl.clamp(values / scale[:, None], -LARGEST, LARGEST))
        tl.store(scale_at, scale, mask=stored)
    tl.store(target, values, mask=mask)


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["slots"])  # type: ignore[untyped-decorator]
def store_kv_kernel(  # type: ignore[no-untyped-def]
    k,
    v,
    k_cache,
    v_cache,
    k_scale,
    v_scale,
    slots,
    rows,
    stride_k_token,
    stride_k_head,
    stride_v_token,
    stride_v_head,
    stride_page,
    stride_slot,
    stride_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """A row is one head of one token: BLOCK_M of them to a program, so that neighbours in memory go together."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    token, head = row // KV_HEADS, row % KV_HEADS
    slot = tl.load(slots + token, mask=row < rows, other=-1)
    stored = slot >= 0
    dims = tl.arange(0, PADDED_DIM)
    mask = stored[:, None] & (dims < HEAD_DIM)[None, :]
    target = (slot // PAGE_SIZE) * stride_page + (slot % PAGE_SIZE) * stride_slot + head * stride_head
    target = target[:, None] + dims[None, :]
    k_at = k + (token * stride_k_token + head * stride_k_head)[:, None] + dims[None, :]
    v_at = v + (token * stride_v_token + head * stride_v_head)[:, None] + dims[None, :]
    if k_scale is None:
        _store(k_at, k_cache + target, None, stored, mask)
        _store(v_at, v_cache + target, None, stored, mask)
    else:
        _store(k_at, k_cache + target, k_scale + slot * KV_HEADS + head, stored, mask)
        _store(v_at, v_cache + target, v_scale + slot * KV_HEADS + head, stored, mask)


def specimens() -> Iterator[Specimen]:
    for dtype, cache in TYPES:
        for head_dim in (64, 96, 128, 256):
            for page_size in (16,) if head_dim != 128 else (1, 16):
                fp8 = cache == "fp8e4nv"
                config = config_of("store_kv", "default", head_dim, fp8=fp8)
                constants: dict[str, Any] = {
                    "KV_HEADS": 8,
                    "HEAD_DIM": head_dim,
                    "PADDED_DIM": padded(head_dim),
                    "PAGE_SIZE": page_size,
                    "BLOCK_M": config.block_m,
                }
                if not fp8:
                    constants |= {"k_scale": None, "v_scale": None}
                pointers = {
                    "k": f"*{dtype}",
                    "v": f"*{dtype}",
                    "k_cache": f"*{cache}",
                    "v_cache": f"*{cache}",
                    "k_scale": "*fp32",
                    "v_scale": "*fp32",
                    "slots": "*i64",
                }
                yield Specimen(
                    f"store_kv {dtype} to {cache} d{head_dim} page{page_size}",
                    store_kv_kernel,
                    {
                        name: "constexpr" if name in constants else pointers.get(name, "i32")
                        for name in store_kv_kernel.arg_names
                    },
                    constants,
                    config.num_warps,
                    config.num_stages,
                )
