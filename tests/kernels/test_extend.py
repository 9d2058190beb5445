"""The kernel against its naive form, in the interpreter; a tile has 64 rows there and 32 tokens, or 16 of float32."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.attention import (
    DTYPES,
    Cached,
    assert_close,
    random_cache,
    random_values,
    tolerances,
    unwritten,
)
from torch import Tensor
from warmroute_kernels.extend import extend, extend_naive, plan_extend
from warmroute_kernels.extend.kernel import tile
from warmroute_kernels.kv import FP8, PagedKV
from warmroute_kernels.paged_decode import paged_decode_naive
from warmroute_kernels.tuned import Config, padded

TYPES = [*((dtype, dtype) for dtype in DTYPES), *((dtype, FP8) for dtype in DTYPES)]
"""Of the new tokens and of the cache."""
RAGGED = ([5, 0, 40, 1, 33, 3], [15, 7, 0, 40, 16, 17])
"""New tokens and prefixes, in pages of 16: a page less one, whole, and one more; no new tokens, and no prefix."""


class New(NamedTuple):
    """The new tokens of a batch."""

    q: Tensor
    k: Tensor
    v: Tensor
    counts: list[int]

    @property
    def starts(self) -> list[int]:
        return [0, *accumulate(self.counts)]

    def tokens(self, first: int, last: int) -> "New":
        return New(self.q[first:last], self.k[first:last], self.v[first:last], [last - first])


def random_new(
    counts: Sequence[int], heads: int = 4, kv_heads: int = 2, head_dim: int = 16, dtype: torch.dtype = torch.float32
) -> New:
    shapes = ((heads, 1), (kv_heads, 2), (kv_heads, 3))
    q, k, v = (random_values(sum(counts), each, head_dim, dtype=dtype, seed=seed) for each, seed in shapes)
    return New(q, k, v, list(counts))


def run(new: New, cached: Cached, **options: Any) -> tuple[Tensor, Tensor]:
    """out and lse, from memory that was NaN."""
    kv, starts = cached.kv, new.starts
    heads = new.q.shape[1]
    plan = plan_extend(starts, cached.lengths.tolist(), heads, kv.kv_heads, kv.head_dim, device="cpu", fp8=kv.is_fp8)
    out, lse = unwritten(*new.q.shape, dtype=new.q.dtype), unwritten(len(new.q), heads, dtype=torch.float32)
    on_device = torch.tensor(starts, dtype=torch.int32)
    got = extend(*new[:3], kv, cached.page_table, cached.lengths, on_device, plan=plan, out=out, lse=lse, **options)
    assert got is out
    return out, lse


def check(new: New, cached: Cached, **options: Any) -> None:
    out, lse = run(new, cached, **options)
    starts = torch.tensor(new.starts, dtype=torch.int32)
    true_out, true_lse = extend_naive(*new[:3], cached.kv, cached.page_table, cached.lengths, starts, **options)
    keys, values = (torch.cat([old, own.double()]) for old, own in zip(cached.values, new[1:3], strict=True))
    limits = {name: options.get(name) for name in ("scale", "soft_cap")}
    of_out, of_lse = tolerances(new.q, keys, values, fp8=cached.kv.is_fp8, **limits)
    assert_close(out, true_out, of_out)
    assert_close(lse, true_lse, of_lse)


@pytest.mark.parametrize(("dtype", "cache"), TYPES, ids=str)
def test_ragged_batch(dtype: torch.dtype, cache: torch.dtype) -> None:
    counts, prefixes = RAGGED
    check(random_new(counts, dtype=dtype), random_cache(prefixes, page_size=16, dtype=cache))


@pytest.mark.parametrize(("dtype", "cache"), [(torch.float32, torch.float32), (torch.bfloat16, FP8)], ids=str)
@pytest.mark.parametrize(
    "options",
    [{"window": 1}, {"window": 9}, {"window": 40, "soft_cap": 1.5}, {"soft_cap": 3.0, "scale": 0.6}],
    ids=str,
)
def test_options(dtype: torch.dtype, cache: torch.dtype, options: dict[str, Any]) -> None:
    check(random_new([50, 1, 20], dtype=dtype), random_cache([70, 50, 3], dtype=cache), **options)


@pytest.mark.parametrize("window", [64, 1000])
def test_a_window_of_whole_blocks_and_more_than_all(window: int) -> None:
    """70 new tokens after 130: blocks before the window, at its edges, wholly within it, and on the diagonal."""
    check(random_new([70], 2, 2), random_cache([130], page_size=16), window=window)


def test_a_cap_that_all_scores_reach() -> None:
    """Scores of up to thousands: their power would overflow float32."""
    new = random_new([9])
    check(new._replace(q=new.q * 1000), random_cache([20]), soft_cap=2.0)


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (9, 3), (8, 1), (7, 1), (48, 1)])
def test_groups_of_heads(heads: int, kv_heads: int) -> None:
    """Tiles of 64 rows begin and end in the middle of a token's heads."""
    check(random_new([30, 3], heads, kv_heads), random_cache([5, 40], kv_heads=kv_heads))


@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize(("dtype", "cache"), [(torch.float32, torch.float32), (torch.float16, FP8)], ids=str)
def test_head_dims(head_dim: int, dtype: torch.dtype, cache: torch.dtype) -> None:
    new = random_new([20], 2, 1, head_dim, dtype)
    check(new, random_cache([37], kv_heads=1, head_dim=head_dim, dtype=cache))


@pytest.mark.parametrize("head_dim", [1, 8])
def test_small_head_dims_are_padded_to_what_a_gpu_multiplies(head_dim: int) -> None:
    assert padded(head_dim) == 16
    check(random_new([20], 2, 1, head_dim), random_cache([37], kv_heads=1, head_dim=head_dim))


def test_float32_takes_smaller_tiles() -> None:
    """With 128 rows of 256 dims, a thread spilled 66 KB of registers. The plan's tiles stay."""
    config = Config(128, 32, num_warps=8, num_stages=3)
    rows = {dim: tile(config, torch.float32, dim)["BLOCK_M"] for dim in (8, 64, 96, 128, 256)}
    assert rows == {8: 128, 64: 128, 96: 64, 128: 64, 256: 32}
    assert tile(config, torch.float32, 256)["PARTS"] == 4
    assert (tile(config, torch.bfloat16, 256)["BLOCK_M"], tile(config, torch.bfloat16, 256)["PARTS"]) == (128, 1)


def test_tiles_in_parts_of_which_the_last_are_not_used() -> None:
    """Two parts of 32 rows: 25 tokens of 2 heads are 50 rows, 3 are 6."""
    check(random_new([25, 3], 2, 1, 256), random_cache([20, 7], kv_heads=1, head_dim=256), window=9)


@pytest.mark.parametrize("page_size", [1, 3, 64])
def test_pages(page_size: int) -> None:
    check(random_new([3, 8]), random_cache([66, 2], page_size=page_size))


def test_one_long_and_many_short() -> None:
    check(random_new([100] + 6 * [2]), random_cache([3] + 6 * [20]))


@pytest.mark.parametrize(("block_m", "block_n"), [(16, 16), (128, 64)])
def test_other_tiles(block_m: int, block_n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """float32 takes a quarter of the configuration's block_n."""
    config = Config(block_m, 4 * block_n, num_warps=8, num_stages=3)
    monkeypatch.setattr("warmroute_kernels.extend.plan.config_of", lambda *_, **__: config)
    check(random_new([50, 7]), random_cache([68, 9]), window=45)
    check(random_new([50, 7]), random_cache([68, 9]))


@settings(max_examples=8, deadline=None)
@given(
    sequences=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 70)), min_size=1, max_size=3),
    page_size=st.integers(1, 20),
    group=st.integers(1, 5),
    window=st.none() | st.integers(1, 80),
)
def test_any_batch(sequences: list[tuple[int, int]], page_size: int, group: int, window: int | None) -> None:
    counts, prefixes = zip(*sequences, strict=True)
    check(random_new(counts, group, 1), random_cache(prefixes, kv_heads=1, page_size=page_size), window=window)


def test_nothing_new() -> None:
    out, lse = run(random_new([0, 0]), random_cache([4, 0]))
    assert out.shape == (0, 4, 16)
    assert lse.shape == (0, 4)


@pytest.mark.parametrize("options", [{}, {"window": 9}, {"soft_cap": 2.0}], ids=str)
def test_one_new_token_sees_what_decode_sees(options: dict[str, Any]) -> None:
    """The same tokens with all of them in pages: what decode is given."""
    whole = random_cache([18, 1, 33])
    last = whole.lengths.cumsum(0) - 1
    k, v = (each[last].float() for each in whole.values)
    q = random_values(3, 4, 16, dtype=torch.float32, seed=1)
    out, lse = run(New(q, k, v, [1, 1, 1]), whole._replace(lengths=whole.lengths - 1), **options)
    true_out, true_lse = paged_decode_naive(q, whole.kv, whole.page_table, whole.lengths, **options)
    of_out, of_lse = tolerances(q, *whole.values, soft_cap=options.get("soft_cap"))
    assert_close(out, true_out, of_out)
    assert_close(lse, true_lse, of_lse)


@pytest.mark.parametrize("window", [None, 25])
def test_in_chunks_as_at_once(window: int | None) -> None:
    """The truth of the whole prompt, met by each chunk over pages that hold those before it."""
    counts, tokens = [1, 30, 33, 6], 70
    at_once = random_new([tokens])
    cached = random_cache([tokens], page_size=16)
    slots = cached.owned
    empty = torch.zeros(1, dtype=torch.int32)
    truth = extend_naive(*at_once[:3], cached.kv, cached.page_table, empty, torch.tensor([0, tokens]), window=window)
    of_out, of_lse = tolerances(at_once.q, at_once.k, at_once.v)
    for kept, values in zip((cached.kv.k, cached.kv.v), at_once[1:3], strict=True):
        kept.fill_(torch.nan)
        kept.flatten(0, 1)[slots] = values
    begin = 0
    for count in counts:
        # What is not before the chunk is not cached yet, nor what is before its first token's window still.
        behind = cached._replace(lengths=empty + begin)
        seen_from = 0 if window is None else max(0, begin - window + 1)
        hidden = torch.ones(cached.kv.k.flatten(0, 1).shape[0], dtype=torch.bool)
        hidden[slots[seen_from:begin]] = False
        kv = PagedKV(*(each.clone() for each in cached.kv[:2] if each is not None))
        for part in kv[:2]:
            part.flatten(0, 1)[hidden] = torch.nan
        out, lse = run(at_once.tokens(begin, begin + count), behind._replace(kv=kv), window=window)
        assert_close(out, truth[0][begin : begin + count], of_out)
        assert_close(lse, truth[1][begin : begin + count], of_lse)
        begin += count
    assert begin == tokens


@pytest.mark.parametrize("cache", [torch.bfloat16, FP8], ids=str)
def test_the_same_to_the_bit_again_and_alone(cache: torch.dtype) -> None:
    counts, prefixes = RAGGED
    new, cached = random_new(counts, dtype=torch.bfloat16), random_cache(prefixes, page_size=16, dtype=cache)
    out, lse = run(new, cached)
    again = run(new, cached)
    assert torch.equal(out, again[0])
    assert torch.equal(lse, again[1])
    for row, first in enumerate(new.starts[:-1]):
        last = first + counts[row]
        alone = cached._replace(page_table=cached.page_table[row : row + 1], lengths=cached.lengths[row : row + 1])
        alone_out, alone_lse = run(new.tokens(first, last), alone)
        assert torch.equal(alone_out, out[first:last])
        assert torch.equal(alone_lse, lse[first:last])


@pytest.mark.parametrize("rotated", [False, True], ids=["k as projected", "k made anew"])
def test_strides(rotated: bool) -> None:
    """q, k and v as slices of one projection, k perhaps not any more, and a cache that is one layer's part of all."""
    kv = random_cache([20, 5])
    new = random_new([6, 9])
    projected = torch.cat([part.flatten(1) for part in new[:3]], 1)
    q, k, v = (part.view(len(part), -1, 16) for part in torch.split(projected, [64, 32, 32], 1))
    assert not q.is_contiguous()
    assert k.stride() == v.stride() != new.k.stride()
    k = k.contiguous() if rotated else k
    layers = [torch.stack([part, torch.full_like(part, torch.nan)], 1) for part in kv.kv[:2] if part is not None]
    sliced = kv._replace(kv=PagedKV(*(each[:, 0] for each in layers)))
    assert not sliced.kv.k.is_contiguous()
    expected = run(new, kv)
    got = run(New(q, k, v, new.counts), sliced)
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])


def test_outputs_are_made_where_none_are_given() -> None:
    new, cached = random_new([3]), random_cache([5])
    plan = plan_extend([0, 3], [5], 4, 2, 16, device="cpu")
    starts = torch.tensor([0, 3], dtype=torch.int32)
    out = extend(*new[:3], cached.kv, cached.page_table, cached.lengths, starts, plan=plan)
    assert torch.equal(out, run(new, cached)[0])
