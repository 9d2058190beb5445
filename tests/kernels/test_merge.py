"""`merge_states` against its naive form, and that against one softmax over all keys."""

import math

import pytest
import torch
from support.attention import DTYPES, UNIT, Tolerance, assert_close, random_values, rounding, unwritten
from torch import Tensor
from warmroute_kernels.merge import merge_states, merge_states_naive

ROWS, HEADS, STATES, DIM = 3, 2, 9, 24


def states(rows: int = ROWS, count: int = STATES) -> tuple[Tensor, Tensor]:
    """Some count nothing: what is in their outputs is NaN."""
    out = random_values(rows, HEADS, count, DIM, dtype=torch.float32, seed=1)
    lse = 5 * random_values(rows, HEADS, count, dtype=torch.float32, seed=2)
    nothing = random_values(rows, HEADS, count, dtype=torch.float32, seed=3) > 1
    lse[nothing] = -math.inf
    out[nothing] = math.nan
    return out, lse


def check(
    partial_out: Tensor,
    partial_lse: Tensor,
    *,
    dtype: torch.dtype = torch.float32,
    counts: Tensor | None = None,
    first: Tensor | None = None,
) -> None:
    """Sums of up to STATES terms whose weights add up to 1, each wrong by the few units of its exponential."""
    rows, heads, _, dim = partial_out.shape
    out, lse = unwritten(rows, heads, dim, dtype=dtype), unwritten(rows, heads, dtype=torch.float32)
    merge_states(partial_out, partial_lse, out, counts=counts, first=first, lse=lse)
    true_out, true_lse = merge_states_naive(partial_out, partial_lse, counts=counts, first=first)
    largest = partial_out.nan_to_num().abs().max().item()
    # exp(x) of a rounded difference x: as many units as x is large, here up to 40.
    units = (STATES + 40 + 8) * UNIT
    assert_close(out, true_out, Tolerance(2 * units * largest, rounding(dtype)))
    assert_close(lse, true_lse, Tolerance(units, 2 * UNIT))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_states_are_merged_by_their_weight(dtype: torch.dtype) -> None:
    check(*states(), dtype=dtype)


def test_parts_make_the_whole_softmax() -> None:
    scores = 3 * random_values(HEADS, 20, dtype=torch.float64, seed=4)
    values = random_values(20, DIM, dtype=torch.float64, seed=5)
    parts = [slice(0, 1), slice(1, 7), slice(7, 7), slice(7, 20)]
    out = torch.stack([scores[:, part].softmax(-1) @ values[part] for part in parts], 1)
    lse = torch.stack([scores[:, part].logsumexp(-1) for part in parts], 1)
    whole, whole_lse = merge_states_naive(out[None], lse[None])
    torch.testing.assert_close(whole[0], scores.softmax(-1) @ values, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(whole_lse[0], scores.logsumexp(-1), rtol=1e-12, atol=1e-12)


def test_nothing_at_all_is_zero() -> None:
    out, lse = unwritten(1, 1, DIM, dtype=torch.float32), unwritten(1, 1, dtype=torch.float32)
    nothing = torch.full((1, 1, 3), -math.inf)
    merge_states(unwritten(1, 1, 3, DIM, dtype=torch.float32), nothing, out, lse=lse)
    assert torch.equal(out, torch.zeros(1, 1, DIM))
    assert lse.item() == -math.inf


def test_large_lses_do_not_overflow() -> None:
    out, lse = states()
    check(out, lse + 1e4)
    check(out, lse - 1e4)


def test_states_beyond_a_rows_count_are_not_read() -> None:
    out, lse = states()
    counts = torch.tensor([STATES, 0, 5], dtype=torch.int32)
    for row, count in enumerate(counts):
        out[row, :, count:] = lse[row, :, count:] = math.nan
    check(out, lse, counts=counts)


def test_rows_of_one_packed_list() -> None:
    out, lse = states(rows=1, count=12)
    packed = out.expand(ROWS, -1, -1, -1), lse.expand(ROWS, -1, -1)
    counts, first = (torch.tensor(each, dtype=torch.int32) for each in ([5, 1, 6], [0, 5, 6]))
    check(*packed, counts=counts, first=first)
    alone = merge_states_naive(out[:, :, 6:], lse[:, :, 6:])
    merged = merge_states_naive(*packed, counts=counts, first=first)
    assert torch.equal(merged[0][2], alone[0][0])


def test_the_same_bits_whatever_number_of_states_there_might_be() -> None:
    out, lse = states()
    counts = torch.tensor([3, 4, 5], dtype=torch.int32)
    few, many = (unwritten(ROWS, HEADS, DIM, dtype=torch.float32) for _ in range(2))
    merge_states(out[:, :, :5], lse[:, :, :5], few, counts=counts)
    merge_states(out, lse, many, counts=counts)
    assert torch.equal(few, many)


def test_strided_tensors() -> None:
    out, lse = states()
    wide = unwritten(ROWS, 2 * HEADS, DIM, dtype=torch.float32)
    merge_states(out.transpose(0, 1).contiguous().transpose(0, 1), lse, wide[:, ::2])
    assert wide[:, 1::2].isnan().all()
    assert not wide[:, ::2].isnan().any()
    straight = unwritten(ROWS, HEADS, DIM, dtype=torch.float32)
    merge_states(out, lse, straight)
    assert torch.equal(wide[:, ::2], straight)


def test_no_rows() -> None:
    merge_states(torch.empty(0, 1, 1, 4), torch.empty(0, 1, 1), torch.empty(0, 1, 4))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"partial_out": torch.empty(3, 2, 9)}, r"partial_out has the shape \(3, 2, 9\)"),
        ({"partial_out": torch.empty(3, 2, 9, 8).half()}, "partial_out is float16: expected float32"),
        ({"partial_lse": torch.empty(3, 2, 8)}, r"partial_lse has the shape \(3, 2, 8\): expected \[3, 2, 9\]"),
        ({"out": torch.empty(3, 2, 4)}, r"out has the shape \(3, 2, 4\)"),
        ({"out": torch.empty(3, 2, 16)[..., ::2]}, "out has the stride 2 in its last dim"),
        ({"counts": torch.empty(3)}, "counts is float32: expected int32"),
        ({"first": torch.empty(2, dtype=torch.int32)}, r"first has the shape \(2,\)"),
        ({"lse": torch.empty(2, 3).t()}, "lse is not contiguous"),
        ({"lse": torch.empty(3, 2, device="meta")}, "lse is on meta: expected cpu"),
    ],
)
def test_a_wrong_tensor_is_named(wrong: dict[str, Tensor], message: str) -> None:
    right = {
        "partial_out": torch.empty(3, 2, 9, 8),
        "partial_lse": torch.empty(3, 2, 9),
        "out": torch.empty(3, 2, 8),
    }
    with pytest.raises(ValueError, match=message):
        merge_states(**(right | wrong))
