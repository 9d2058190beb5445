"""The kernel against its naive form, in Triton's interpreter; there a tile has 16 tokens and 16 query heads."""

from typing import Any

import pytest
import torch
from support.attention import (
    DTYPES,
    Cached,
    Tolerance,
    assert_close,
    edge_lengths,
    random_cache,
    random_values,
    tolerances,
    unwritten,
)
from torch import Tensor
from warmroute_kernels.kv import FP8, PagedKV
from warmroute_kernels.language import dot
from warmroute_kernels.paged_decode import paged_decode, paged_decode_naive, plan_decode
from warmroute_kernels.paged_decode.states import make_states, merge_items

TYPES = [*((dtype, dtype) for dtype in DTYPES), *((dtype, FP8) for dtype in DTYPES)]
"""Of q and of the cache."""


def check(
    cached: Cached,
    *,
    dtype: torch.dtype = torch.float32,
    heads: int = 6,
    planned: list[int] | None = None,
    fixed_split: int | None = None,
    q: Tensor | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
    scale: float | None = None,
) -> None:
    """planned: the lengths that the plan knows, if other than the real ones."""
    kv, lengths = cached.kv, cached.lengths.tolist()
    if q is None:
        q = random_values(len(lengths), heads, kv.head_dim, dtype=dtype, seed=7)
    plan = plan_decode(
        len(lengths),
        q.shape[1],
        kv.kv_heads,
        kv.head_dim,
        max_length=max(lengths + (planned or [])),
        device="cpu",
        lengths=lengths if planned is None else planned,
        fixed_split=fixed_split,
        fp8=kv.is_fp8,
    )
    plan.partial_out.fill_(torch.nan)
    plan.partial_lse.fill_(torch.nan)
    out, lse = unwritten(*q.shape, dtype=q.dtype), unwritten(*q.shape[:2], dtype=torch.float32)
    arguments: dict[str, Any] = {"scale": scale, "window": window, "soft_cap": soft_cap}
    got = paged_decode(q, kv, cached.page_table, cached.lengths, plan=plan, out=out, lse=lse, **arguments)
    assert got is out
    true_out, true_lse = paged_decode_naive(q, kv, cached.page_table, cached.lengths, **arguments)
    of_out, of_lse = tolerances(q, *cached.values, fp8=kv.is_fp8, scale=scale, soft_cap=soft_cap)
    assert_close(out, true_out, of_out)
    assert_close(lse, true_lse, of_lse)


@pytest.mark.parametrize(("dtype", "cache"), TYPES, ids=str)
@pytest.mark.parametrize("fixed_split", [None, 20])
def test_ragged_lengths(dtype: torch.dtype, cache: torch.dtype, fixed_split: int | None) -> None:
    check(random_cache(edge_lengths(16), page_size=16, dtype=cache), dtype=dtype, fixed_split=fixed_split)


@pytest.mark.parametrize(("dtype", "cache"), [(torch.float32, torch.float32), (torch.bfloat16, FP8)], ids=str)
@pytest.mark.parametrize(
    "options", [{"window": 6}, {"soft_cap": 1.5}, {"scale": 0.5}, {"window": 20, "soft_cap": 3.0}], ids=str
)
def test_options(dtype: torch.dtype, cache: torch.dtype, options: dict[str, Any]) -> None:
    check(random_cache([27, 8, 0, 1], page_size=8, dtype=cache), dtype=dtype, fixed_split=9, **options)


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (9, 3), (8, 2), (8, 1), (16, 1), (20, 1), (34, 2)])
def test_groups_of_heads(heads: int, kv_heads: int) -> None:
    """Up to 16 query heads of a kv head are one tile, 17 and 20 are two."""
    check(random_cache([5, 21], kv_heads=kv_heads, dtype=torch.float16), heads=heads, dtype=torch.float16)


@pytest.mark.parametrize(("dtype", "cache"), [(torch.bfloat16, torch.bfloat16), (torch.float16, FP8)], ids=str)
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_head_dims(dtype: torch.dtype, cache: torch.dtype, head_dim: int) -> None:
    check(random_cache([19, 1], head_dim=head_dim, dtype=cache), dtype=dtype)


@pytest.mark.parametrize("head_dim", [1, 8, 16])
def test_small_head_dims(head_dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU multiplies no fewer than 16 dims. The interpreter does: so it is told not to."""
    monkeypatch.setattr("warmroute_kernels.attend.dot", at_least_16(dot))
    check(random_cache([19, 1], head_dim=head_dim))


def at_least_16(dot: Any) -> Any:
    def checked(a: Any, b: Any) -> Any:
        assert min(*a.shape, *b.shape) >= 16, f"{a.shape} times {b.shape}"
        return dot(a, b)

    return checked


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (torch.float16, 2.0**-8),
        (torch.float16, 2.0**12),
        (torch.bfloat16, 2.0**-90),
        (torch.bfloat16, 2.0**90),
    ],
    ids=str,
)
def test_over_fp8_products_are_as_exact_as_in_float16(dtype: torch.dtype, size: float) -> None:
    """Whatever the size of q, and of V from page to page. Rounded to bfloat16, p would be 8 times as far off."""
    lengths = [2] * 12 + [50]
    cached = random_cache(lengths, dtype=FP8)
    assert cached.kv.v_scale is not None
    of_pages = torch.exp2(40 - 6.0 * (torch.arange(len(cached.kv.k)) % 4))[:, None, None]
    kv = cached.kv._replace(v_scale=cached.kv.v_scale * of_pages)
    cached = cached._replace(kv=kv)
    q = random_values(13, 6, 16, dtype=dtype, seed=7) * size
    plan = plan_decode(13, 6, 2, 16, max_length=50, lengths=lengths, device="cpu", fp8=True)
    options: dict[str, Any] = {"scale": 0.25 / size, "window": None, "soft_cap": None}
    make_states(q, kv, cached.page_table, cached.lengths, plan=plan, **options)
    out = unwritten(*q.shape, dtype=torch.float32)
    merge_items(plan, plan.counts, out, None)
    truth, _ = paged_decode_naive(q, kv, cached.page_table, cached.lengths, **options)
    of_float16, _ = tolerances((q.double() / size).half(), *cached.values, scale=0.25)
    assert_close(out, truth, Tolerance(of_float16.absolute, 0.0))


@pytest.mark.parametrize("page_size", [1, 3, 16, 64])
@pytest.mark.parametrize("window", [None, 20])
def test_page_sizes(page_size: int, window: int | None) -> None:
    check(random_cache(edge_lengths(page_size), page_size=page_size), window=window, fixed_split=page_size + 3)


@pytest.mark.parametrize("window", [1, 16, 17, 37, 39])
def test_windows_that_begin_anywhere_in_a_split(window: int) -> None:
    cached = random_cache([38, 20], page_size=4)
    check(cached, window=window, fixed_split=10)
    check(cached, window=window)


def test_one_long_among_many_short() -> None:
    lengths = [2, 700, 1, 0, 5, 3]
    plan = plan_decode(6, 6, 2, 16, max_length=700, device="cpu", lengths=lengths)
    assert plan.counts.tolist() == [1, 6, 1, 1, 1, 1]
    check(random_cache(lengths, page_size=16, dtype=torch.float16), dtype=torch.float16)


@pytest.mark.parametrize("planned", [[300, 90, 300], [1, 0, 2]])
@pytest.mark.parametrize("fixed_split", [None, 25])
def test_plan_of_other_lengths(planned: list[int], fixed_split: int | None) -> None:
    """With more splits than tokens, or fewer than there should be: slower, not wrong."""
    check(random_cache([40, 3, 0]), planned=planned, fixed_split=fixed_split)


def test_what_the_page_table_says_elsewhere_is_not_read() -> None:
    cached = random_cache([9, 0, 21], page_size=4)
    cached.page_table[0, 3:] = 2**30
    cached.page_table[1] = -(2**30)
    check(cached)


@pytest.mark.parametrize("fixed_split", [None, 6])
def test_pages_before_the_window_are_not_read(fixed_split: int | None) -> None:
    """They may be somebody else's by now."""
    cached = random_cache([21], page_size=4)
    values = cached.kv.k.clone(), cached.kv.v.clone()
    for before in cached.page_table[0, :4].tolist():
        cached.kv.k[before] = cached.kv.v[before] = torch.nan
    q = random_values(1, 6, 16, dtype=torch.float32, seed=7)
    cached.page_table[0, :3] = 2**30
    plan = plan_decode(1, 6, 2, 16, max_length=21, device="cpu", fixed_split=fixed_split)
    out = paged_decode(q, cached.kv, cached.page_table, cached.lengths, plan=plan, window=5)
    last = slice(16, 21)
    rows = cached.page_table[0, last.start // 4 :].long()
    k, v = (each[rows].flatten(0, 1)[:5].double() for each in values)
    scores = torch.einsum("hgd,nhd->hgn", q.double().view(2, 3, 16), k) / 4
    truth = torch.einsum("hgn,nhd->hgd", scores.softmax(-1), v).view(1, 6, 16)
    assert_close(out, truth, tolerances(q, k, v)[0])


def test_strided_tensors() -> None:
    """q and out as parts of wider rows; K and V side by side in each page."""
    cached = random_cache([9, 3], page_size=4)
    both = torch.stack([cached.kv.k, cached.kv.v], 1)
    product = random_values(2, 10, 16, dtype=torch.float32, seed=7)
    check(cached._replace(kv=PagedKV(both[:, 0], both[:, 1])), q=product[:, 2:8])
    wide = unwritten(2, 8, 16, dtype=torch.float32)
    plan = plan_decode(2, 6, 2, 16, max_length=9, device="cpu")
    paged_decode(product[:, 2:8], cached.kv, cached.page_table, cached.lengths, plan=plan, out=wide[:, 1:7])
    assert not wide[:, 1:7].isnan().any()
    assert wide[:, [0, 7]].isnan().all()


@pytest.mark.parametrize("fixed_split", [None, 8])
def test_addresses_beyond_the_reach_of_32_bits(fixed_split: int | None) -> None:
    """The pages are 2^30 elements apart; memory that is never touched is never given."""
    near = random_cache([9], kv_heads=2, page_size=8, dtype=torch.float16)
    far = [torch.empty(2**31 + 2**30 + 1024, dtype=torch.float16) for _ in range(2)]
    k, v = (each.as_strided(near.kv.k.shape, (2**30, 32, 16, 1)) for each in far)
    assert near.kv.k.shape[0] == 4
    for to, source in ((k, near.kv.k), (v, near.kv.v)):
        to.copy_(source)
    page_table = torch.tensor([[3, 2]], dtype=torch.int32)
    cached = Cached(PagedKV(k, v), page_table, near.lengths)
    for each in (k, v):
        each[page_table[0].long()] = random_values(2, 8, 2, 16, dtype=torch.float16, seed=3)
    check(cached, dtype=torch.float16, fixed_split=fixed_split)


def test_output_is_made_where_none_is_given() -> None:
    cached = random_cache([5, 9], dtype=torch.bfloat16)
    q = random_values(2, 6, 16, dtype=torch.bfloat16, seed=7)
    plan = plan_decode(2, 6, 2, 16, max_length=9, device="cpu")
    out = paged_decode(q, cached.kv, cached.page_table, cached.lengths, plan=plan)
    given = unwritten(*q.shape, dtype=q.dtype)
    paged_decode(q, cached.kv, cached.page_table, cached.lengths, plan=plan, out=given)
    assert torch.equal(out, given)


def test_no_sequences() -> None:
    cached = random_cache([5])
    plan = plan_decode(0, 6, 2, 16, max_length=5, device="cpu")
    q = torch.empty(0, 6, 16)
    assert paged_decode(q, cached.kv, cached.page_table[:0], cached.lengths[:0], plan=plan).shape == (0, 6, 16)
