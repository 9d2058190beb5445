"""A wrong argument is named before a kernel could read what is not its own."""

from typing import Any

import pytest
import torch
from support.attention import random_cache
from warmroute_kernels.kv import FP8
from warmroute_kernels.paged_decode import paged_decode, plan_decode

PLAN = plan_decode(2, 6, 2, 16, max_length=9, device="cpu")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"q": torch.empty(2, 5, 16)}, r"q has the shape \(2, 5, 16\): expected \[2, 6, 16\]"),
        ({"q": torch.empty(3, 6, 16)}, r"q has the shape \(3, 6, 16\): expected \[2, 6, 16\]"),
        ({"q": torch.empty(2, 6, 16).half()}, "q is float16: expected float32"),
        ({"q": torch.empty(2, 6, 32)[..., ::2]}, "q has the stride 2 in its last dim: expected 1"),
        ({"q": torch.empty(2, 6, 16, device="meta")}, "q is on meta: expected cpu"),
        (
            {"kv": random_cache([9, 3], kv_heads=3).kv},
            r"\(3, 16, False\): the plan is for \(2, 16, False\)",
        ),
        ({"kv": random_cache([9, 3], head_dim=8).kv}, r"\(2, 8, False\): the plan is for \(2, 16, False\)"),
        ({"kv": random_cache([9, 3], dtype=FP8).kv}, r"kv has .* \(2, 16, True\): the plan is for"),
        ({"kv": random_cache([9, 3]).kv._replace(v=torch.empty(1))}, "v has the shape"),
        ({"kv": random_cache([9, 3], head_dim=257).kv}, "head_dim is 257: expected 1 to 256"),
        (
            {"page_table": torch.zeros(1, 3, dtype=torch.int32)},
            r"page_table has the shape \(1, 3\): expected",
        ),
        ({"page_table": torch.zeros(2, 3, dtype=torch.int64)}, "page_table is int64: expected int32"),
        ({"page_table": torch.zeros(3, 2, dtype=torch.int32).t()}, "page_table is not contiguous"),
        ({"lengths": torch.zeros(2, dtype=torch.int64)}, "lengths is int64: expected int32"),
        ({"lengths": torch.zeros(3, dtype=torch.int32)}, r"lengths has the shape \(3,\): expected \[2\]"),
        ({"plan": plan_decode(2, 6, 2, 16, max_length=9, device="meta")}, "plan is on meta: expected cpu"),
        ({"window": 0}, "window is 0: expected a number of tokens"),
        ({"soft_cap": -1.0}, "soft_cap is -1.0: expected more than 0"),
        ({"out": torch.empty(2, 6, 8)}, r"out has the shape \(2, 6, 8\): expected \[2, 6, 16\]"),
        ({"out": torch.empty(2, 6, 16).half()}, "out is float16: expected float32"),
        ({"lse": torch.empty(2, 6).half()}, "lse is float16: expected float32"),
        ({"lse": torch.empty(6, 2).t()}, "lse is not contiguous"),
    ],
)
def test_wrong_arguments(wrong: dict[str, Any], message: str) -> None:
    cached = random_cache([9, 3])
    right: dict[str, Any] = {
        "q": torch.empty(2, 6, 16),
        "kv": cached.kv,
        "page_table": cached.page_table,
        "lengths": cached.lengths,
        "plan": PLAN,
    }
    with pytest.raises(ValueError, match=message):
        paged_decode(**(right | wrong))
