"""The naive form against `scaled_dot_product_attention` with a mask, and against the formula, written out."""

import math

import pytest
import torch
from support.attention import DTYPES, random_cache, random_values
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from warmroute_kernels.extend import extend_naive
from warmroute_kernels.kv import FP8, slots_of

HEADS, KV_HEADS, DIM = 6, 2, 16


def new_tokens(count: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (
        random_values(count, heads, DIM, dtype=torch.float32, seed=seed)
        for heads, seed in ((HEADS, 1), (KV_HEADS, 2), (KV_HEADS, 3))
    )
    return q, k, v


@pytest.mark.parametrize("dtype", [*DTYPES, FP8], ids=str)
@pytest.mark.parametrize("window", [None, 1, 5, 100])
def test_as_pytorch_attends(dtype: torch.dtype, window: int | None) -> None:
    prefixes, starts = [4, 0, 3, 5, 9], [0, 3, 8, 8, 9, 15]
    cached = random_cache(prefixes, kv_heads=KV_HEADS, head_dim=DIM, page_size=4, dtype=dtype)
    q, k, v = new_tokens(15)
    out, _ = extend_naive(
        q, k, v, cached.kv, cached.page_table, cached.lengths, torch.tensor(starts), window=window, scale=0.3
    )
    assert out.isfinite().all()
    for row, (prefix, first, last) in enumerate(zip(prefixes, starts[:-1], starts[1:], strict=True)):
        old = cached.kv.gathered(slots_of(cached.page_table[row], prefix, 4))
        keys, values = (torch.cat([was, own[first:last].double()]) for was, own in zip(old, (k, v), strict=True))
        # The diagonal of the new tokens lies `prefix` columns to the right.
        causal = torch.ones(last - first, len(keys), dtype=torch.bool).tril(prefix)
        seen = causal if window is None else causal.triu(prefix - window + 1)
        k_of_heads, v_of_heads = (
            each.transpose(0, 1).repeat_interleave(HEADS // KV_HEADS, 0)[None] for each in (keys, values)
        )
        mine = q[first:last].double().transpose(0, 1)[None]
        expected = scaled_dot_product_attention(mine, k_of_heads, v_of_heads, attn_mask=seen, scale=0.3)
        torch.testing.assert_close(out[first:last], expected[0].transpose(0, 1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("soft_cap", [None, 1.5])
def test_as_the_formula_says(soft_cap: float | None) -> None:
    cached = random_cache([3], kv_heads=KV_HEADS, head_dim=DIM)
    q, k, v = new_tokens(2)
    out, lse = extend_naive(
        q, k, v, cached.kv, cached.page_table, cached.lengths, torch.tensor([0, 2]), soft_cap=soft_cap
    )
    keys, values = (torch.cat([old, own.double()]) for old, own in zip(cached.values, (k, v), strict=True))
    for token in range(2):
        for head in range(HEADS):
            of_head = head // (HEADS // KV_HEADS)
            seen = range(3 + token + 1)
            scores = [
                sum(a * b for a, b in zip(q[token, head].tolist(), keys[at, of_head].tolist(), strict=True)) / 4
                for at in seen
            ]
            if soft_cap is not None:
                scores = [soft_cap * math.tanh(score / soft_cap) for score in scores]
            weights = [math.exp(score) for score in scores]
            expected = torch.zeros(DIM, dtype=torch.float64)
            for at in seen:
                expected += weights[at] / sum(weights) * values[at, of_head]
            torch.testing.assert_close(out[token, head], expected, rtol=1e-12, atol=1e-12)
            assert lse[token, head].item() == pytest.approx(math.log(sum(weights)), rel=1e-12)
