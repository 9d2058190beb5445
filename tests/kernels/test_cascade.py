"""What `cascade` computes: against the definition, over every way in which rows share."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from support.attention import Cached, assert_close, random_cache, random_values, tolerances, unwritten
from torch import Tensor
from warmroute_kernels.cascade import CascadePlan, SharedPrefix, cascade, cascade_naive, plan_groups
from warmroute_kernels.kv import FP8, PagedKV
from warmroute_kernels.paged_decode import paged_decode_naive

SPLIT = 64
"""The shortest that there is: one block of the kernel's."""


class Batch(NamedTuple):
    cached: Cached
    groups: list[SharedPrefix]
    q: Tensor

    def planned(self, *, split_tokens: int | None = SPLIT) -> CascadePlan:
        """With workspaces that nobody has written to."""
        _, heads, head_dim = self.q.shape
        kv, page_table, lengths = self.cached
        plan = plan_groups(
            self.groups,
            page_table,
            lengths.tolist(),
            heads,
            kv.kv_heads,
            head_dim,
            page_size=kv.page_size,
            device="cpu",
            fp8=kv.is_fp8,
            split_tokens=split_tokens,
        )
        plan.own.plan.partial_out.fill_(math.nan)
        plan.own.plan.partial_lse.fill_(math.nan)
        return plan


def sharing(
    lengths: Sequence[int],
    groups: Sequence[tuple[Sequence[int], int]],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    page_size: int = 4,
    q_dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
) -> Batch:
    """groups: which rows share how many pages. Those are the first row's; the pages that others had are NaN."""
    kv_dtype = q_dtype if kv_dtype is None else kv_dtype
    cached = random_cache(lengths, kv_heads=kv_heads, head_dim=head_dim, page_size=page_size, dtype=kv_dtype)
    for rows, pages in groups:
        cached.page_table[list(rows), :pages] = cached.page_table[rows[0], :pages].clone()
    cached.poison()
    shared = [SharedPrefix(tuple(rows), tuple(cached.page_table[rows[0], :pages].tolist())) for rows, pages in groups]
    return Batch(cached, shared, random_values(len(lengths), heads, head_dim, dtype=q_dtype, seed=7))


def check(
    batch: Batch, *, split_tokens: int | None = SPLIT, scale: float | None = None, soft_cap: float | None = None
) -> None:
    """Raises AssertionError where `cascade` is not what plain decode should give."""
    q, (kv, page_table, lengths) = batch.q, batch.cached
    out, lse = unwritten(*q.shape, dtype=q.dtype), unwritten(*q.shape[:2], dtype=torch.float32)
    plan = batch.planned(split_tokens=split_tokens)
    assert cascade(q, kv, plan=plan, scale=scale, soft_cap=soft_cap, out=out, lse=lse) is out
    true_out, true_lse = paged_decode_naive(q, kv, page_table, lengths, scale=scale, soft_cap=soft_cap)
    of_out, of_lse = tolerances(q, *batch.cached.values, fp8=kv.is_fp8, scale=scale, soft_cap=soft_cap)
    assert_close(out, true_out, of_out)
    assert_close(lse, true_lse, of_lse)


LENGTHS = (135, 9, 143, 0, 133, 21, 9, 1)
GROUPS = (((0, 2, 4), 33), ((1, 6), 2))
"""One group with three splits, one with one; some members have nothing of their own but one token."""
MIXED = sharing(LENGTHS, GROUPS)


@pytest.mark.parametrize(
    ("q_dtype", "kv_dtype"),
    [
        (torch.float32, torch.float32),
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.bfloat16),
        (torch.float32, FP8),
        (torch.float16, FP8),
        (torch.bfloat16, FP8),
    ],
    ids=str,
)
def test_types(q_dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    check(sharing(LENGTHS, GROUPS, q_dtype=q_dtype, kv_dtype=kv_dtype))


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (9, 3), (8, 1), (20, 1), (2, 2)])
def test_head_groups(heads: int, kv_heads: int) -> None:
    check(sharing([30, 26, 41, 3], [((0, 1, 2), 6)], heads=heads, kv_heads=kv_heads))


@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("q_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_head_dims(head_dim: int, q_dtype: torch.dtype) -> None:
    check(sharing([90, 85, 7], [((0, 1), 20)], head_dim=head_dim, q_dtype=q_dtype))


@pytest.mark.parametrize(("page_size", "pages"), [(1, 1), (1, 70), (16, 1), (16, 9), (3, 5), (64, 2)])
@pytest.mark.parametrize("own", [1, 5])
def test_shared_pages(page_size: int, pages: int, own: int) -> None:
    """One and many; blocks of 64 tokens that end on pages, and within; the query's own token alone, and more."""
    tokens = page_size * pages
    check(sharing([tokens + own, tokens + 1], [((1, 0), pages)], page_size=page_size, kv_heads=1))


@pytest.mark.parametrize("split_tokens", [1, 64, 65, 128, 10_000, None])
def test_splits(split_tokens: int | None) -> None:
    check(MIXED, split_tokens=split_tokens)


@pytest.mark.parametrize("members", [1, 2, 7, 33])
def test_members(members: int) -> None:
    """Up to more than fill a tile: 33 rows of 4 heads, where a tile has 128."""
    batch = sharing(
        [9 + row % 3 for row in range(members)], [(range(members), 2)], kv_heads=1, q_dtype=torch.bfloat16
    )
    assert batch.planned().tiles.shape[0] == (2 if members == 33 else 1)
    check(batch)


def test_long_own_parts_are_split_too() -> None:
    batch = sharing([270, 20, 17], [((0, 1), 4)])
    assert batch.planned().own.plan.counts.tolist() == [2, 1, 1]
    check(batch)


def test_scale_and_soft_cap() -> None:
    exact = sharing([90, 85, 7], [((0, 1), 20)])
    check(exact, scale=0.7)
    check(exact, soft_cap=1.5)
    fp8 = sharing([90, 85, 7], [((0, 1), 20)], q_dtype=torch.bfloat16, kv_dtype=FP8)
    check(fp8, scale=0.7, soft_cap=1.5)


def test_tensors_that_are_parts_of_others() -> None:
    """Strides are followed: of q and out, and of a cache whose pages hold K beside V."""
    batch = sharing([30, 26, 41, 3], [((0, 1, 2), 6)])
    kv, page_table, lengths = batch.cached
    apart = PagedKV(*torch.cat((kv.k, kv.v), dim=-1).chunk(2, dim=-1))
    q = torch.cat((batch.q, batch.q), dim=1)[:, 4:]
    out = unwritten(4, 12, 16, dtype=torch.float32)
    cascade(q, apart, plan=batch.planned(), out=out[:, 4:8])
    truth, _ = paged_decode_naive(batch.q, kv, page_table, lengths)
    tolerance, _ = tolerances(q, *batch.cached.values)
    assert_close(out[:, 4:8], truth, tolerance)
    assert out[:, :4].isnan().all()
    assert out[:, 8:].isnan().all()


def test_pages_further_apart_than_32_bits_count() -> None:
    """4 GB, of which nothing but a few kilobytes is ever touched. The shared page is the last one."""
    batch = sharing([9, 6], [((0, 1), 1)], kv_heads=1, q_dtype=torch.float16)
    kv, page_table, _ = batch.cached
    expected = cascade(batch.q, kv, plan=batch.planned())
    last = kv.k.shape[0] - 1
    step = 2**31 // last + 1
    memory = torch.empty(last * step + 128, dtype=torch.float16)
    far = PagedKV(*(memory.as_strided(kv.k.shape, (step, 16, 16, 1), start) for start in (0, 64)))
    for source, target in ((kv.k, far.k), (kv.v, far.v)):
        target.copy_(source)
        target[last] = source[page_table[0, 0]]
    page_table[:, 0] = last
    assert torch.equal(cascade(batch.q, far, plan=batch.planned()), expected)


def test_the_same_bits_every_time_and_in_every_layer() -> None:
    batch = sharing([90, 85, 7], [((0, 1), 20)])
    kv, plan = batch.cached.kv, batch.planned()
    first = cascade(batch.q, kv, plan=plan)
    cascade(batch.q * 2, kv, plan=plan)
    assert torch.equal(cascade(batch.q, kv, plan=plan), first)


@pytest.mark.parametrize("kv_dtype", [torch.float32, FP8], ids=str)
@pytest.mark.parametrize("soft_cap", [None, 1.5])
def test_the_definition_is_that_of_plain_decode(kv_dtype: torch.dtype, soft_cap: float | None) -> None:
    """Both in float64, to 12 digits, whatever the groups."""
    batch = sharing(LENGTHS, GROUPS, heads=9, kv_heads=3, kv_dtype=kv_dtype)
    q, (kv, page_table, lengths) = batch.q, batch.cached
    plain = paged_decode_naive(q, kv, page_table, lengths, soft_cap=soft_cap)
    for groups in (batch.groups, []):
        got = cascade_naive(q, kv, groups, page_table, lengths, soft_cap=soft_cap)
        for mine, theirs in zip(got, plain, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_arguments_that_do_not_fit_the_plan() -> None:
    kv, q, plan = MIXED.cached.kv, MIXED.q, MIXED.planned()
    with pytest.raises(ValueError, match=r"q has the shape \(7, 4, 16\): expected \[8, 4, 16\]"):
        cascade(q[:7], kv, plan=plan)
    with pytest.raises(ValueError, match="q is bfloat16: expected float32"):
        cascade(q.bfloat16(), kv, plan=plan)
    with pytest.raises(ValueError, match="kv has pages of 2: planned were 4"):
        cascade(q, PagedKV(kv.k[:, :2], kv.v[:, :2]), plan=plan)
    with pytest.raises(ValueError, match="out is float16: expected float32"):
        cascade(q, kv, plan=plan, out=q.half())
    with pytest.raises(ValueError, match="lse has the shape"):
        cascade(q, kv, plan=plan, lse=q[:, :3, 0])
    with pytest.raises(ValueError, match="soft_cap is -1"):
        cascade(q, kv, plan=plan, soft_cap=-1.0)
