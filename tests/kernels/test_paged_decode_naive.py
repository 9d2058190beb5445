"""The naive form against `scaled_dot_product_attention`, and against the formula, written out."""

import math

import pytest
import torch
from support.attention import DTYPES, Cached, edge_lengths, random_cache, random_values
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from warmroute_kernels.kv import FP8, slots_of
from warmroute_kernels.paged_decode import paged_decode_naive

HEADS, KV_HEADS, DIM = 6, 2, 16


def sequence(cached: Cached, row: int) -> tuple[Tensor, Tensor]:
    """K and V of one, [1, kv_heads, length, head_dim], in float64."""
    slots = slots_of(cached.page_table[row], int(cached.lengths[row]), cached.kv.page_size)
    k, v = (each.transpose(0, 1)[None] for each in cached.kv.gathered(slots))
    return k, v


@pytest.mark.parametrize("dtype", [*DTYPES, FP8], ids=str)
@pytest.mark.parametrize("window", [None, 1, 5, 100])
def test_as_pytorch_attends(dtype: torch.dtype, window: int | None) -> None:
    cached = random_cache(edge_lengths(4), kv_heads=KV_HEADS, head_dim=DIM, dtype=dtype)
    q = random_values(len(cached.lengths), HEADS, DIM, dtype=torch.float32, seed=7)
    out, _ = paged_decode_naive(q, cached.kv, cached.page_table, cached.lengths, window=window, scale=0.3)
    for row, length in enumerate(cached.lengths.tolist()):
        k, v = (each.repeat_interleave(HEADS // KV_HEADS, 1) for each in sequence(cached, row))
        seen = torch.arange(length) >= (0 if window is None else length - window)
        expected = scaled_dot_product_attention(q[row, None, :, None].double(), k, v, attn_mask=seen[None], scale=0.3)
        torch.testing.assert_close(out[row], expected[0, :, 0].nan_to_num(0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("soft_cap", [None, 1.5])
def test_as_the_formula_says(soft_cap: float | None) -> None:
    cached = random_cache([7], kv_heads=KV_HEADS, head_dim=DIM)
    q = random_values(1, HEADS, DIM, dtype=torch.float32, seed=7)
    out, lse = paged_decode_naive(q, cached.kv, cached.page_table, cached.lengths, soft_cap=soft_cap)
    k, v = sequence(cached, 0)
    for head in range(HEADS):
        of_head = head // (HEADS // KV_HEADS)
        scores = [
            sum(a * b for a, b in zip(q[0, head].tolist(), key, strict=True)) / math.sqrt(DIM)
            for key in k[0, of_head].tolist()
        ]
        if soft_cap is not None:
            scores = [soft_cap * math.tanh(score / soft_cap) for score in scores]
        weights = [math.exp(score) for score in scores]
        total = sum(weights)
        expected = sum(weight / total * value for weight, value in zip(weights, v[0, of_head], strict=True))
        torch.testing.assert_close(out[0, head], expected, rtol=1e-12, atol=1e-12)
        assert lse[0, head].item() == pytest.approx(math.log(total), rel=1e-12)


def test_nothing_to_see() -> None:
    cached = random_cache([0, 3], kv_heads=KV_HEADS, head_dim=DIM)
    q = random_values(2, HEADS, DIM, dtype=torch.float32, seed=7)
    out, lse = paged_decode_naive(q, cached.kv, cached.page_table, cached.lengths)
    assert torch.equal(out[0], torch.zeros(HEADS, DIM, dtype=torch.float64))
    assert (lse[0] == -math.inf).all()
    assert lse[1].isfinite().all()
