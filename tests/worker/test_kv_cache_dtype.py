"""The KV cache in other types than the model's, with both backends."""

from array import array
from collections.abc import Callable

import pytest
import torch
from support.toy import ToyEngine
from torch import Tensor
from warmroute_kernels.kv import FP8
from warmroute_worker.attention.base import SequenceSpan

MakeEngine = Callable[..., ToyEngine]
Prompts = Callable[[int, int], "array[int]"]

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp8_e4m3": FP8}


@torch.inference_mode()
def logits(toy: ToyEngine, tokens: "array[int]") -> Tensor:
    """Of every token from the 16th on: a cold prefill, one over what it left in the cache, and four single tokens."""
    engine, rows = toy.engine, []
    slots = torch.randperm(64, generator=torch.Generator().manual_seed(3))[: len(tokens)]
    ends = [16, len(tokens) - 4, *range(len(tokens) - 3, len(tokens) + 1)]
    for start, end in zip([0, *ends], ends, strict=False):
        engine._attention.plan([SequenceSpan(slots[:end], start)])
        new = torch.tensor(tokens[start:end])
        rows.append(engine._model.logits(engine._model.forward(new, torch.arange(start, end), engine._attention)))
    return torch.cat(rows[1:])


def off(actual: Tensor, wanted: Tensor) -> float:
    """Root mean square of the difference."""
    return (actual - wanted).square().mean().sqrt().item()


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp8_e4m3"])
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_logits_are_off_by_what_the_type_rounds_off(
    flagged: MakeEngine, prompts: Prompts, backend: str, name: str
) -> None:
    """Against those of the model's own type, with an error in K and V that this test adds itself.

    It adds half an ulp of 1 to every value, relatively, with a random sign: the most that rounding may do. Rounding
    itself does less, and an error of the logits is, to first order, linear in those of K and V: so they are off by
    less. Twice that is allowed to Triton: its interpreter truncates bfloat16, by up to a whole ulp, and with a cache
    of half precision q, p and the outputs are rounded as well.
    """
    tokens = prompts(4, 30)
    exact = logits(flagged("--attention-backend", "torch"), tokens)
    toy = flagged("--attention-backend", backend, "--kv-cache-dtype", name)
    assert toy.engine.pool.k.dtype == DTYPES[name]
    disturbed = noisy(flagged("--attention-backend", "torch"), torch.finfo(DTYPES[name]).eps / 2)
    allowed = off(logits(disturbed, tokens), exact) * {"torch": 1, "triton": 2}[backend]
    assert 0 < off(logits(toy, tokens), exact) < allowed


def noisy(toy: ToyEngine, relative: float) -> ToyEngine:
    """K and V of this engine are stored with an error."""
    attention, random = toy.engine._attention, torch.Generator().manual_seed(9)
    attend = type(attention).__call__

    def disturbed(x: Tensor) -> Tensor:
        signs = torch.randint(0, 2, x.shape, generator=random) * 2 - 1
        return x * (1 + relative * signs)

    class Noisy:
        plan = attention.plan

        def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attend(attention, layer, q, disturbed(k), disturbed(v))

    toy.engine._attention = Noisy()
    return toy


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_fp8_takes_little_more_than_a_byte_for_a_number(flagged: MakeEngine, backend: str) -> None:
    pool = flagged("--attention-backend", backend, "--kv-cache-dtype", "fp8_e4m3").engine.pool
    assert pool.k.dtype == FP8
    assert pool.k_scale is not None
    assert pool.v_scale is not None
    assert pool.k_scale.shape == pool.v_scale.shape == pool.k.shape[:3]


@pytest.mark.parametrize("name", ["bf16", "fp8_e4m3"])
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_cached_tokens_and_answers_do_not_depend_on_whether_the_cache_was_warm(
    flagged: MakeEngine, prompts: Prompts, backend: str, name: str
) -> None:
    """The second time the prompt is one token over the cache: only FP8's own prefill is more exact than its cache."""
    toy = flagged("--attention-backend", backend, "--kv-cache-dtype", name, "--page-size", "4")
    prompt = prompts(10, 21)
    cold = toy.request(prompt, 3)
    toy.run()
    warm = toy.request(prompt, 3)
    toy.run()
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 20)
    assert toy.generated(cold) == toy.generated(warm)
