"""The plan; and a wrong argument is named before a kernel could read what is not its own."""

from typing import Any

import pytest
import torch
from support.attention import random_cache
from warmroute_kernels.extend import extend, plan_extend
from warmroute_kernels.kv import FP8

STARTS, PREFIXES = [0, 3, 7], [9, 4]


def call(**changed: Any) -> None:
    cached = random_cache(PREFIXES)
    arguments: dict[str, Any] = {
        "q": torch.zeros(7, 6, 16),
        "k": torch.zeros(7, 2, 16),
        "v": torch.zeros(7, 2, 16),
        "kv": cached.kv,
        "page_table": cached.page_table,
        "prefix_lengths": cached.lengths,
        "starts": torch.tensor(STARTS, dtype=torch.int32),
        "plan": plan_extend(STARTS, PREFIXES, 6, 2, 16, device="cpu"),
    }
    extend(**(arguments | changed))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"q": torch.empty(7, 5, 16)}, r"q has the shape \(7, 5, 16\): expected \[7, 6, 16\]"),
        ({"q": torch.empty(8, 6, 16)}, r"q has the shape \(8, 6, 16\): expected \[7, 6, 16\]"),
        ({"q": torch.empty(7, 6, 16).half()}, "q is float16: expected float32"),
        ({"q": torch.empty(7, 6, 32)[..., ::2]}, "q has the stride 2 in its last dim: expected 1"),
        ({"q": torch.empty(7, 6, 16, device="meta")}, "q is on meta: expected cpu"),
        ({"k": torch.empty(6, 2, 16)}, r"k has the shape \(6, 2, 16\): expected \[7, 2, 16\]"),
        ({"k": torch.empty(7, 2, 16).half()}, "k is float16: expected float32"),
        ({"v": torch.empty(7, 3, 16)}, r"v has the shape \(7, 3, 16\): expected \[7, 2, 16\]"),
        ({"v": torch.empty(7, 2, 16).half()}, "v is float16: expected float32"),
        ({"v": torch.empty(7, 2, 32)[..., ::2]}, "v has the stride 2 in its last dim: expected 1"),
        ({"kv": random_cache([9], kv_heads=3).kv}, r"\(3, 16, False\): the plan is for \(2, 16, False\)"),
        ({"kv": random_cache([9], head_dim=8).kv}, r"\(2, 8, False\): the plan is for \(2, 16, False\)"),
        ({"kv": random_cache([9], dtype=FP8).kv}, r"\(2, 16, True\): the plan is for \(2, 16, False\)"),
        ({"kv": random_cache([9]).kv._replace(v=torch.empty(1))}, "v has the shape"),
        ({"page_table": torch.zeros(1, 3, dtype=torch.int32)}, r"page_table has the shape \(1, 3\): expected"),
        ({"page_table": torch.zeros(2, 3, dtype=torch.int64)}, "page_table is int64: expected int32"),
        ({"page_table": torch.zeros(3, 2, dtype=torch.int32).t()}, "page_table is not contiguous"),
        ({"prefix_lengths": torch.zeros(2)}, "prefix_lengths is float32: expected int32"),
        ({"starts": torch.zeros(2, dtype=torch.int32)}, r"starts has the shape \(2,\): expected \[3\]"),
        ({"starts": torch.zeros(3, dtype=torch.int64)}, "starts is int64: expected int32"),
        ({"plan": plan_extend(STARTS, PREFIXES, 6, 2, 16, device="meta")}, "plan is on meta: expected cpu"),
        ({"scale": 0.0}, "scale is 0.0: expected more than 0"),
        ({"window": 0}, "window is 0: expected a number of tokens"),
        ({"window": 2**31}, "window is 2147483648: expected a number of tokens"),
        ({"soft_cap": -1.0}, "soft_cap is -1.0: expected more than 0"),
        ({"out": torch.empty(7, 6, 8)}, r"out has the shape \(7, 6, 8\): expected \[7, 6, 16\]"),
        ({"out": torch.empty(7, 6, 16).double()}, "out is float64: expected float32"),
        ({"out": torch.empty(7, 6, 32)[..., :16]}, "out is not contiguous"),
        ({"lse": torch.empty(7, 6).half()}, "lse is float16: expected float32"),
        ({"lse": torch.empty(7, 5)}, r"lse has the shape \(7, 5\): expected \[7, 6\]"),
    ],
)
def test_wrong_arguments(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(**wrong)


@pytest.mark.parametrize(
    ("starts", "prefixes", "heads", "message"),
    [
        ([0, 3], [1, 2], 6, "2 starts for 2 prefix lengths"),
        ([1, 3], [1], 6, "starts begin with 1: expected 0"),
        ([0, 3, 2], [1, 1], 6, r"starts do not ascend: \[0, 3, 2\]"),
        ([0, 3], [-1], 6, r"a prefix length is negative: \[-1\]"),
        ([0, 3], [1], 5, "5 heads are not a multiple of 2 kv heads"),
    ],
)
def test_wrong_plans(starts: list[int], prefixes: list[int], heads: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_extend(starts, prefixes, heads, 2, 16, device="cpu")


def test_tiles_cover_every_row_once_and_the_heaviest_come_first() -> None:
    """Tiles of 64 rows, which are a token's three heads and then the next one's."""
    plan = plan_extend([0, 50, 50, 60, 61], [10, 5, 100, 0], 6, 2, 16, device="cpu")
    assert plan.config.block_m == 64
    # The last token that each sees is at 49+10, 9+100 and so on: sequence 1 has no new token, and no tile.
    assert plan.tiles.tolist() == [[2, 0], [0, 128], [0, 64], [0, 0], [3, 0]]
    assert plan.tiles.dtype == torch.int32


def test_a_plan_for_nobody() -> None:
    assert plan_extend([0], [], 6, 2, 16, device="cpu").tiles.shape == (0, 2)
