"""What the plan promises: busy multiprocessors, even parts, graphs that stay valid, the same bits in any batch."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.attention import Cached, assert_close, random_cache, random_values, tolerances, unwritten
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from warmroute_kernels.kv import FP8, PagedKV
from warmroute_kernels.paged_decode import paged_decode, paged_decode_naive, plan, plan_decode
from warmroute_kernels.tuned import multiprocessors

HEADS, KV_HEADS, DIM = 6, 2, 16


def decode(cached: Cached, q: Tensor, *, fixed_split: int | None, max_length: int = 64) -> tuple[Tensor, Tensor]:
    made = plan_decode(
        len(q),
        HEADS,
        KV_HEADS,
        DIM,
        max_length=max_length,
        device="cpu",
        lengths=cached.lengths.tolist(),
        fixed_split=fixed_split,
        fp8=cached.kv.is_fp8,
    )
    out, lse = unwritten(*q.shape, dtype=q.dtype), unwritten(*q.shape[:2], dtype=torch.float32)
    paged_decode(q, cached.kv, cached.page_table, cached.lengths, plan=made, out=out, lse=lse, window=40)
    return out, lse


@pytest.mark.parametrize(
    ("dtype", "cache", "fixed_split"), [(torch.float32, torch.float32, 9), (torch.bfloat16, FP8, 16)], ids=str
)
def test_fixed_splits_give_the_same_bits_alone_and_in_a_batch(
    dtype: torch.dtype, cache: torch.dtype, fixed_split: int
) -> None:
    cached = random_cache([50, 0, 1, 17], page_size=8, dtype=cache)
    q = random_values(len(cached.lengths), HEADS, DIM, dtype=dtype, seed=7)
    out, lse = decode(cached, q, fixed_split=fixed_split)
    for row in range(len(q)):
        one = slice(row, row + 1)
        alone = Cached(cached.kv, cached.page_table[one].contiguous(), cached.lengths[one])
        alone_out, alone_lse = decode(alone, q[one], fixed_split=fixed_split, max_length=50)
        assert torch.equal(alone_out[0], out[row])
        assert torch.equal(alone_lse[0], lse[row])


@given(
    lengths=st.lists(st.integers(0, 5000), min_size=1, max_size=20),
    kv_heads=st.sampled_from([1, 2, 8]),
    fixed_split=st.sampled_from([None, 64, 1000]),
)
@settings(max_examples=40)
def test_every_sequence_has_its_items(lengths: list[int], kv_heads: int, fixed_split: int | None) -> None:
    made = plan_decode(
        len(lengths),
        8,
        kv_heads,
        DIM,
        max_length=max(lengths),
        device="cpu",
        lengths=lengths,
        fixed_split=fixed_split,
    )
    rows, first, counts = (each.tolist() for each in (made.rows, made.first, made.counts))
    expected = [row for row, count in enumerate(counts) for _ in range(count)]
    assert rows == expected + [-1] * (made.items - len(expected))
    assert [expected.index(row) for row in range(len(lengths))] == first
    if fixed_split is not None:
        assert counts == [max(1, -(-length // fixed_split)) for length in lengths]
        return
    # The tokens of all, evened out: nobody's part is longer than a share of them, or than is worth a part.
    parts = [-(-length // count) for length, count in zip(lengths, counts, strict=True)]
    longest = max(plan.SMALLEST_SPLIT, -(-sum(lengths) // made.share))
    assert max(parts) <= longest
    assert all(part > longest / 2 for part, count in zip(parts, counts, strict=True) if count > 1)


@pytest.mark.parametrize(("batch", "kv_heads"), [(1, 8), (1, 1), (64, 8), (256, 1)])
def test_all_multiprocessors_have_work(monkeypatch: pytest.MonkeyPatch, batch: int, kv_heads: int) -> None:
    """132 as an H200 has, and enough programs for each that the last round is short."""
    monkeypatch.setattr(plan, "multiprocessors", lambda _: 132)
    made = plan_decode(batch, 32, kv_heads, 128, max_length=131072, device="cpu", lengths=[131072] * batch)
    programs = kv_heads * int(made.counts.sum())
    assert 0.9 * 8 * 132 < programs < 8 * 132 + kv_heads * (batch + 1)
    # Workspace and grid are bound by the chip, not by the longest sequence there might be.
    assert kv_heads * made.items <= 8 * 132 + kv_heads * (batch + 1)


def test_the_number_of_multiprocessors_is_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []

    def properties(device: torch.device) -> SimpleNamespace:
        asked.append(device)
        return SimpleNamespace(multi_processor_count=7)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    device = torch.device("cuda", 3)
    assert multiprocessors(device) == 7
    assert asked == [device]


class NoSync(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`.item()`, `.tolist()` and whatever else asks for a value on the host are this operation."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "waits for the device"
        return func(*args, **(kwargs or {}))


def test_a_step_asks_the_device_for_nothing() -> None:
    cached = random_cache([9, 3])
    q = random_values(2, HEADS, DIM, dtype=torch.float32, seed=7)
    made = plan_decode(2, HEADS, KV_HEADS, DIM, max_length=9, device="cpu")
    with NoSync():  # type: ignore[no-untyped-call]
        paged_decode(q, cached.kv, cached.page_table, cached.lengths, plan=made)
    with pytest.raises(AssertionError, match="waits for the device"), NoSync():  # type: ignore[no-untyped-call]
        cached.lengths[0].item()


@pytest.mark.parametrize("fixed_split", [None, 128])
def test_an_update_keeps_grid_and_addresses(fixed_split: int | None) -> None:
    """So a CUDA graph that was captured with the plan computes the next step."""
    lengths = [3, 300]
    cached = random_cache(lengths, page_size=16)
    q = random_values(2, HEADS, DIM, dtype=torch.float32, seed=7)
    made = plan_decode(2, HEADS, KV_HEADS, DIM, max_length=300, device="cpu", lengths=[1, 1], fixed_split=fixed_split)
    tensors = made.rows, made.first, made.counts, made.partial_out, made.partial_lse
    before = [(each.data_ptr(), each.shape) for each in tensors]
    assert made.counts.tolist() == [1, 1]
    made.update(lengths)
    assert made.counts.tolist() == [1, 3]
    assert [(each.data_ptr(), each.shape) for each in tensors] == before
    out = paged_decode(q, cached.kv, cached.page_table, cached.lengths, plan=made)
    truth, _ = paged_decode_naive(q, cached.kv, cached.page_table, cached.lengths)
    assert_close(out, truth, tolerances(q, *cached.values)[0])


def test_a_grid_of_more_items_than_a_second_dim_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """512 sequences of 128k in splits of 1024 are 65,536 items; CUDA ends at 65,535 in all dims but the first."""
    grids: list[tuple[int, ...]] = []

    class Launches:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            grids.append(grid)
            return lambda *args, **kwargs: None

    monkeypatch.setattr("warmroute_kernels.paged_decode.kernel.paged_decode_kernel", Launches())
    monkeypatch.setattr("warmroute_kernels.merge.kernel.merge_states_kernel", Launches())
    made = plan_decode(512, 32, 8, 128, max_length=131_072, device="meta", fixed_split=1024)
    assert made.items == 65_536
    q = torch.empty(512, 32, 128, device="meta")
    cache = torch.empty(1, 16, 8, 128, device="meta")
    table, lengths = (torch.empty(*shape, dtype=torch.int32, device="meta") for shape in ((512, 8192), (512,)))
    paged_decode(q, PagedKV(cache, cache), table, lengths, plan=made)
    assert grids == [(8 * 65_536,), (512, 32)]


def test_lengths_unknown_are_planned_as_the_longest() -> None:
    made = plan_decode(2, HEADS, KV_HEADS, DIM, max_length=1000, device="cpu", fixed_split=400)
    assert made.counts.tolist() == [3, 3]


def test_programs_are_in_the_order_of_the_sequences() -> None:
    made = plan_decode(3, HEADS, KV_HEADS, DIM, max_length=900, device="cpu", lengths=[900, 0, 500])
    assert all(one <= other for one, other in pairwise(row for row in made.rows.tolist() if row >= 0))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"heads": 7}, "7 heads cannot be divided among 2 kv heads"),
        ({"batch": -1}, "batch -1 and max_length 64 must not be negative"),
        ({"fixed_split": 0}, "fixed_split is 0"),
        ({"lengths": [1]}, "1 lengths for a plan of 2 sequences"),
        ({"lengths": [1, 65]}, "lengths are 1 to 65: the plan is for 0 to 64"),
        ({"lengths": [-1, 3]}, "lengths are -1 to 3: the plan is for 0 to 64"),
    ],
)
def test_a_plan_that_cannot_be(wrong: dict[str, Any], message: str) -> None:
    right: dict[str, Any] = {"batch": 2, "heads": 6, "kv_heads": 2, "head_dim": 16, "max_length": 64, "device": "cpu"}
    with pytest.raises(ValueError, match=message):
        plan_decode(**(right | wrong))
