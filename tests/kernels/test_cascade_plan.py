"""When `cascade` is planned, and what the plan says."""

from typing import Any

import pytest
import torch
import warmroute_kernels.cascade.kernel
import warmroute_kernels.merge.kernel
import warmroute_kernels.paged_decode.kernel
from hypothesis import given, settings
from hypothesis import strategies as st
from warmroute_kernels.cascade import CascadePlan, SharedPrefix, cascade, plan_cascade, plan_groups
from warmroute_kernels.cascade.cost import BANDWIDTH, LAUNCH, Shape, pays, plain_bytes, saving, shared_bytes
from warmroute_kernels.cascade.tiles import SMALLEST_SPLIT, Part, most_splits, rows_of_tile, split_of, tiles_of
from warmroute_kernels.kv import PagedKV

LLAMA_8B = Shape(32, 8, 128, fp8=False)
H200 = 132
"""Multiprocessors."""

shapes = st.builds(
    lambda kv_heads, group, head_dim, fp8: Shape(kv_heads * group, kv_heads, head_dim, fp8),
    st.sampled_from((1, 2, 8, 32)),
    st.integers(1, 64),
    st.sampled_from((64, 96, 128, 256)),
    st.booleans(),
)

lengths = st.integers(1, 40_000) | st.integers(1, 150).map(lambda splits: splits * SMALLEST_SPLIT)
"""Where one more token may be one more split, too."""


def planned(groups: list[SharedPrefix], lengths: list[int], **changed: Any) -> CascadePlan | None:
    page_size = changed.setdefault("page_size", 16)
    table = page_table(lengths, page_size)
    return plan_cascade(groups, table, lengths, 32, 8, 128, **({"device": "cpu"} | changed))


def page_table(lengths: list[int], page_size: int) -> torch.Tensor:
    """Row after row, without a page twice."""
    pages = max(-(-length // page_size) for length in lengths)
    return torch.arange(len(lengths) * pages, dtype=torch.int32).view(len(lengths), pages)


def of(rows: range, pages: int) -> SharedPrefix:
    return SharedPrefix(tuple(rows), tuple(range(pages)))


# The rule


@settings(max_examples=300)
@given(shapes, st.integers(2, 256), lengths, st.integers(1, 200), st.just(1) | st.integers(1, 4_000))
def test_with_more_to_share_what_pays_still_pays(
    shape: Shape, members: int, tokens: int, more_members: int, more_tokens: int
) -> None:
    def saved(members: int, tokens: int) -> float:
        tiles = -(-members * (shape.heads // shape.kv_heads) // 128)
        return saving(members, tokens, most_splits(tiles, shape.kv_heads, H200), shape)

    before = saved(members, tokens)
    if before > 0:
        assert saved(members + more_members, tokens) >= before
        assert saved(members, tokens + more_tokens) >= before


@settings(max_examples=100)
@given(shapes, st.integers(0, 100_000))
def test_nobody_saves_alone(shape: Shape, tokens: int) -> None:
    assert saving(1, tokens, 8, shape) < 0


@settings(max_examples=100)
@given(st.integers(2, 256), st.integers(1, 32), st.booleans())
def test_a_page_or_two_are_not_worth_the_launch(members: int, tokens: int, fp8: bool) -> None:
    """At most 256 * 32 reads of 4,096 bytes, half of which counts: 16.8 MB, where a launch is 24 MB."""
    assert not pays(saving(members, tokens, 1, LLAMA_8B._replace(fp8=fp8)))


def test_the_bytes_of_the_issues_target() -> None:
    """Batch 64, 16k shared and 256 own tokens each, 32 heads over 8 of 128, bf16: by hand.

    A token is 2 * 8 * 128 * 2 = 4,096 bytes, so the shared part is 64 MiB, and all own parts together are too. Plain
    decode reads 65 times 64 MiB. Two products of 64 * 32 rows with 16,384 tokens are 17.2 GFLOP: as many as 215 MB at
    80 to the byte. 64 rows of 4 heads are two tiles of 128, times 8 kv heads are 16 programs: in two rounds 132
    multiprocessors take 16 splits of them.
    """
    members, tokens, own = 64, 16_384, 64 * 256 * 4_096
    assert LLAMA_8B.token_bytes == 4_096
    assert most_splits(2, 8, H200) == 16
    shared = shared_bytes(members, tokens, 16, LLAMA_8B)
    states = 64 * 17 * 32 * 129 * 4 * 2
    assert shared == pytest.approx(2**26 + 64 * 32 * 16_384 * 128 * 4 / 80 + states)
    assert saving(members, tokens, 16, LLAMA_8B) == plain_bytes(members, tokens, LLAMA_8B) - shared
    everything = shared + own + LAUNCH
    assert 65 * 2**26 / everything == pytest.approx(10.7, abs=0.1)  # were every page read from memory
    assert (plain_bytes(members, tokens, LLAMA_8B) + own) / everything == pytest.approx(5.5, abs=0.1)  # half from L2


def test_groups_that_pay_together_pay_the_launch_once() -> None:
    lengths = [1_000] * 32
    one, other = of(range(16), 50), of(range(16, 32), 50)
    assert planned([one], lengths) is None
    both = planned([one, other], lengths)
    assert both is not None
    assert both.groups == (one, other)


def test_groups_that_do_not_pay_are_dropped() -> None:
    """A page of two rows costs more in states than it saves."""
    lengths = [2_100] * 64 + [40, 40]
    large, small = of(range(64), 128), of(range(64, 66), 1)
    plan = planned([small, large], lengths)
    assert plan is not None
    assert plan.groups == (large,)
    assert plan.own_lengths.tolist() == [2_100 - 128 * 16] * 64 + [40, 40]
    assert planned([small], lengths) is None
    assert planned([], lengths) is None


def test_what_the_caller_loses_has_to_be_saved_too() -> None:
    """Seconds per layer: at 4.8 TB/s as many bytes as that time could have moved."""
    group, lengths = of(range(64), 128), [2_100] * 64
    saved = saving(64, 2_048, most_splits(2, 8, 4), LLAMA_8B)
    spare = (saved - LAUNCH) / 4.8e12
    assert BANDWIDTH == 4.8e12
    assert planned([group], lengths, lost=0.999 * spare) is not None
    assert planned([group], lengths, lost=1.001 * spare) is None


# The plan


def test_own_parts_begin_after_the_shared_pages() -> None:
    lengths = [13, 3, 10, 0]
    table = page_table(lengths, 4)
    groups = [SharedPrefix((0, 2), (0, 1))]
    plan = plan_groups(groups, table, lengths, 6, 2, 16, page_size=4, device="cpu", split_tokens=1)
    assert plan.own_lengths.tolist() == [5, 3, 2, 0]
    assert plan.own_table[0, :2].tolist() == [2, 3]
    assert plan.own_table[1, :1].tolist() == [4]
    assert plan.own_table[2, :1].tolist() == [10]
    assert plan.own_table.dtype == torch.int32
    assert plan.splits == 1
    # Rows 0 and 2 have a state more, after their own.
    assert plan.own.plan.rows.tolist() == [0, -1, 1, 2, -1, 3]
    assert plan.own.plan.first.tolist() == [0, 2, 3, 5]
    assert plan.own.plan.counts.tolist() == [1, 1, 1, 1]
    assert plan.own.shared_first.tolist() == [1, 3, 4, 6]
    assert plan.own.counts.tolist() == [2, 1, 2, 1]
    # 3 heads of each of 2 members.
    assert plan.tiles.tolist() == [[0, 8, 0, 1, 2, 6, 7, 8, *[-1] * 10]]


def test_tiles() -> None:
    assert rows_of_tile([of(range(2), 1)], 4, most=128) == 16
    assert rows_of_tile([of(range(2), 1), of(range(5), 1)], 4, most=128) == 32
    assert rows_of_tile([of(range(64), 1)], 4, most=128) == 128
    assert tiles_of(SharedPrefix((3, 5), (7, 8, 9)), 16, 3, 4) == [[3, 48, 9, 10, 11, 15], [3, 48, 16, 17, -1, -1]]


@pytest.mark.parametrize(
    ("parts", "kv_heads", "tile_m", "split"),
    [
        # 16 programs for each split: 8 splits are 128 of 132 multiprocessors, and none waits for a second round.
        ([Part(2, 16_384)], 8, 128, 2_048),
        ([Part(1, 32_768)], 8, 16, 2_048),
        # Too short to be split for more than two states, or at all.
        ([Part(2, 512)], 8, 128, 256),
        ([Part(2, 300)], 8, 128, 320),
        # Two rounds whatever is done: 160 programs, then 320 in three rounds of half the length.
        ([Part(1, 1_000)] * 20, 8, 32, 1_024),
    ],
)
def test_splits_fill_the_multiprocessors(parts: list[Part], kv_heads: int, tile_m: int, split: int) -> None:
    assert split_of(parts, kv_heads, tile_m, 64, H200) == split


@pytest.mark.parametrize(
    ("groups", "changed", "message"),
    [
        ([((0, 3), 1)], {}, "row 3 of a group: the batch has 3"),
        ([((0, 1), 1), ((1, 2), 1)], {}, "row 1 is in two groups, or twice in one"),
        ([((), 1)], {}, "a group has no rows or no pages"),
        ([((0, 1), 0)], {}, "a group has no rows or no pages"),
        ([((0, 1), 2)], {}, "row 1 has 8 tokens and shares 8: the last one has to be its own"),
        ([((0, 1), 1)], {"lengths": [13, 80, 9]}, "row 1 has 20 pages, page_table 4"),
        ([((0, 1), 1)], {"lengths": [13, 8]}, r"page_table has the shape \(3, 4\): expected \[2, any\]"),
        ([((0, 1), 1)], {"heads": 7}, "7 heads cannot be divided among 2 kv heads"),
        ([((0, 1), 1)], {"page_size": 0}, "page_size is 0: expected more than 0"),
        ([((0, 1), 1)], {"lengths": [13, 8, -1]}, "a length is -1"),
        ([], {}, "there are no groups"),
    ],
)
def test_arguments_that_make_no_sense(groups: list[Any], changed: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {
        "lengths": [13, 8, 9],
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "page_size": 4,
        "device": "cpu",
    }
    table = torch.zeros(3, 4, dtype=torch.int32)
    shared = [SharedPrefix(tuple(rows), tuple(range(pages))) for rows, pages in groups]
    with pytest.raises(ValueError, match=message):
        plan_groups(shared, table, **(given | changed))


class Launches:
    """Stands in for a kernel, and notes its grids."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        self.grids.append(grid)
        return lambda *args, **kwargs: None


def test_neither_planning_nor_running_reads_what_is_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """So nothing waits, and it can be captured: tensors of the device "meta" have no values to read."""
    decode, shared, merge = Launches(), Launches(), Launches()
    monkeypatch.setattr(warmroute_kernels.paged_decode.kernel, "paged_decode_kernel", decode)
    monkeypatch.setattr(warmroute_kernels.cascade.kernel, "shared_part_kernel", shared)
    monkeypatch.setattr(warmroute_kernels.merge.kernel, "merge_states_kernel", merge)
    lengths = [2_100] * 64
    table = page_table(lengths, 16).to("meta")
    plan = plan_cascade([of(range(64), 128)], table, lengths, 32, 8, 128, page_size=16, device="meta")
    assert plan is not None
    q = torch.empty(64, 32, 128, dtype=torch.bfloat16, device="meta")
    cache = torch.empty(9_000, 16, 8, 128, dtype=torch.bfloat16, device="meta")
    cascade(q, PagedKV(cache, cache), plan=plan)
    assert shared.grids == [(2, 8, plan.splits)]
    assert decode.grids == [(8 * plan.own.plan.items,)]
    assert merge.grids == [(64, 32)]  # once: own states are not merged alone
