"""`store_kv` against its naive form, value for value; and that against what FP8 can say at best."""

import pytest
import torch
from support.attention import DTYPES, UNIT, random_values, unwritten
from torch import Tensor
from warmroute_kernels.kv import FP8, FP8_MAX, PagedKV
from warmroute_kernels.store_kv import store_kv, store_kv_naive

PAGES, HEADS = 5, 3


def unwritten_cache(dtype: torch.dtype, *, page_size: int = 4, head_dim: int = 24) -> PagedKV:
    shape = (PAGES, page_size, HEADS, head_dim)
    k, v = unwritten(*shape, dtype=dtype), unwritten(*shape, dtype=dtype)
    if dtype != FP8:
        return PagedKV(k, v)
    return PagedKV(k, v, *(unwritten(*shape[:3], dtype=torch.float32) for _ in range(2)))


def some_slots(slots: int) -> Tensor:
    """In no order, some of them left out, and -1 here and there."""
    order = torch.randperm(slots, generator=torch.Generator().manual_seed(0))[: slots // 2]
    order[::3] = -1
    return order


def new_tokens(tokens: int, dtype: torch.dtype, head_dim: int = 24) -> tuple[Tensor, Tensor]:
    k, v = (random_values(tokens, HEADS, head_dim, dtype=dtype, seed=seed) for seed in range(2))
    return k, v


def assert_same(got: PagedKV, expected: PagedKV) -> None:
    """But for the sign of zero."""
    for one, other in zip(got, expected, strict=True):
        if one is not None and other is not None:
            torch.testing.assert_close(one.float(), other.float(), rtol=0, atol=0, equal_nan=True)


def of_every_size(values: Tensor) -> Tensor:
    """So that in FP8 there are subnormal ones, and all zero."""
    values[..., ::3] *= 1e-2
    values[..., 1::3] *= 1e-4
    values[-1, 0] = 0
    return values


@pytest.mark.parametrize(
    ("dtype", "cache"), [*((dtype, dtype) for dtype in DTYPES), *((dtype, FP8) for dtype in DTYPES)], ids=str
)
@pytest.mark.parametrize("page_size", [1, 4, 7])
def test_values_go_to_their_slots_and_nowhere_else(dtype: torch.dtype, cache: torch.dtype, page_size: int) -> None:
    got, expected = (unwritten_cache(cache, page_size=page_size) for _ in range(2))
    slots = some_slots(PAGES * page_size)
    k, v = map(of_every_size, new_tokens(len(slots), dtype))
    store_kv(k, v, got, slots)
    store_kv_naive(k, v, expected, slots)
    assert_same(got, expected)


def test_naive_form_writes_each_token_to_its_slot() -> None:
    kv = unwritten_cache(torch.float32)
    k, v = new_tokens(3, torch.float32)
    store_kv_naive(k, v, kv, torch.tensor([9, -1, 2]))
    assert torch.equal(kv.k[2, 1], k[0])
    assert torch.equal(kv.v[0, 2], v[2])
    assert int(kv.k.isnan().sum()) == kv.k.numel() - k[:2].numel()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_quantised_values_are_the_nearest(dtype: torch.dtype) -> None:
    """Half an ulp of e4m3 away: a sixteenth of the value, or 2^-10 scales where it is subnormal."""
    kv = unwritten_cache(FP8)
    slots = some_slots(PAGES * 4)
    k, v = new_tokens(len(slots), dtype)
    k[1, 0] *= 1e-3
    k[1, 1] = 0
    store_kv_naive(k, v, kv, slots)
    stored = slots >= 0
    for values, cache, scales in ((k, kv.k, kv.k_scale), (v, kv.v, kv.v_scale)):
        assert scales is not None
        wide = values[stored].double()
        got = cache.flatten(0, 1)[slots[stored]].double()
        scale = scales.flatten(0, 1)[slots[stored]].double()
        largest = wide.abs().amax(-1)
        torch.testing.assert_close(scale, torch.where(largest == 0, 1.0, largest / FP8_MAX), rtol=2 * UNIT, atol=0)
        off = (got * scale[..., None] - wide).abs()
        # Besides the rounding: the quotient in float32 by the rounded scale.
        assert (off <= torch.maximum(wide.abs() / 16, scale[..., None] / 1024) + 4 * UNIT * wide.abs()).all()
        assert (got.abs().amax(-1)[largest > 0] == FP8_MAX).all()
        untouched = torch.ones(PAGES * 4, dtype=torch.bool)
        untouched[slots[stored]] = False
        assert cache.flatten(0, 1).float()[untouched].isnan().all()
        assert scales.flatten(0, 1)[untouched].isnan().all()


def test_parts_of_one_projection_and_of_one_cache() -> None:
    """Strided on both sides: K and V as slices of one product, pages that hold K and V side by side."""
    product = random_values(4, 2 * HEADS, 24, dtype=torch.bfloat16, seed=0)
    k, v = product[:, :HEADS], product[:, HEADS:]
    both = unwritten(PAGES, 2, 4, HEADS, 24, dtype=torch.bfloat16)
    slots = torch.tensor([0, 19, 7, 4])
    store_kv(k, v, PagedKV(both[:, 0], both[:, 1]), slots)
    assert torch.equal(both[slots // 4, 0, slots % 4], k)
    assert torch.equal(both[slots // 4, 1, slots % 4], v)
    assert int(both.isnan().sum()) == both.numel() - product.numel()


def test_slots_beyond_the_reach_of_32_bits() -> None:
    """The pages are 2^30 elements apart; memory that is never touched is never given."""
    space = torch.empty(2**31 + 1024, dtype=torch.float16)
    pages = space.as_strided((3, 4, HEADS, 16), (2**30, 64, 16, 1))
    values = random_values(2, HEADS, 16, dtype=torch.float16, seed=0)
    store_kv(values, values, PagedKV(pages, pages), torch.tensor([9, 5]))
    assert torch.equal(pages[2, 1], values[0])
    assert torch.equal(pages[1, 1], values[1])


def test_no_tokens() -> None:
    store_kv(*new_tokens(0, torch.float32), unwritten_cache(torch.float32), torch.empty(0, dtype=torch.int64))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"k": torch.empty(2, HEADS, 8)}, r"k has the shape \(2, 3, 8\): expected \[any, 3, 24\]"),
        ({"k": torch.empty(2, HEADS, 24).half()}, "k is float16: expected float32"),
        ({"k": torch.empty(2, 24, HEADS).transpose(1, 2)}, "k has the stride 3 in its last dim"),
        ({"v": torch.empty(3, HEADS, 24)}, r"v has the shape \(3, 3, 24\)"),
        ({"v": torch.empty(2, HEADS, 24).half()}, "v is float16: expected float32"),
        ({"v": torch.empty(2, HEADS, 24, device="meta")}, "v is on meta: expected cpu"),
        ({"slots": torch.zeros(2, dtype=torch.int32)}, "slots is int32: expected int64"),
        ({"slots": torch.zeros(3, dtype=torch.int64)}, r"slots has the shape \(3,\): expected \[2\]"),
        ({"kv": unwritten_cache(FP8)._replace(k_scale=None)}, "k_scale goes with float8_e4m3fn"),
    ],
)
def test_a_wrong_argument_is_named(wrong: dict[str, object], message: str) -> None:
    right = {
        "k": torch.empty(2, HEADS, 24),
        "v": torch.empty(2, HEADS, 24),
        "kv": unwritten_cache(torch.float32),
        "slots": torch.zeros(2, dtype=torch.int64),
    }
    with pytest.raises(ValueError, match=message):
        store_kv(**(right | wrong))  # type: ignore[arg-type]
