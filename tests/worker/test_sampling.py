from array import array

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from warmroute_worker.core import Request, SamplingParams
from warmroute_worker.sampling import Sampler, nucleus
from warmroute_worker.text import OutputText


def naive_nucleus(probabilities: list[float], top_p: float) -> set[int]:
    """The likeliest tokens, one after the other, until their sum reaches top_p."""
    chosen: set[int] = set()
    total = 0.0
    for index in sorted(range(len(probabilities)), key=lambda each: -probabilities[each]):
        if total >= top_p:
            break
        chosen.add(index)
        total += probabilities[index]
    return chosen


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=12, unique=True), st.integers(1, 99))
def test_the_nucleus_is_the_smallest_set_that_reaches_top_p(weights: list[int], percent: int) -> None:
    total = sum(weights)
    top_p = percent / 100 + 1e-7  # away from sums that rounding could put on either side
    probabilities = torch.tensor([weight / total for weight in weights], dtype=torch.float64)
    kept = nucleus(probabilities, top_p)
    wanted = naive_nucleus(probabilities.tolist(), top_p)
    assert set(kept.nonzero().flatten().tolist()) == wanted
    assert all(kept[index] == probabilities[index] for index in wanted)


def test_top_p_of_one_keeps_everything() -> None:
    probabilities = torch.tensor([0.5, 0.5 - 1e-9, 1e-9])
    assert torch.equal(nucleus(probabilities, 1.0), probabilities)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_samples_follow_the_softmax(temperature: float) -> None:
    """20,000 draws with a fixed seed; 0.015 is four standard deviations of a frequency."""
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0])
    params = SamplingParams(1, temperature=temperature, seed=3)
    request = Request(array("q", [1]), params, OutputText(lambda ids: ""), lambda output: None)
    sampler = Sampler()
    draws = torch.tensor([sampler.sample(logits, request) for _ in range(20_000)])
    frequencies = torch.bincount(draws, minlength=4) / len(draws)
    weights = [2.718281828 ** (value / temperature) for value in logits.tolist()]
    wanted = torch.tensor([weight / sum(weights) for weight in weights])
    assert (frequencies - wanted).abs().max() < 0.015


@pytest.mark.parametrize("temperature", [0.0, 1e-42, 1e-6])
def test_cold_is_greedy(temperature: float) -> None:
    params = SamplingParams(1, temperature=temperature)
    request = Request(array("q", [1]), params, OutputText(lambda ids: ""), lambda output: None)
    assert Sampler().sample(torch.tensor([-1000.0, 30.0, 31.0]), request) == 2


@pytest.mark.parametrize("top_p", [1e-300, 1e-42, 1e-6])
def test_the_smallest_nucleus_is_the_likeliest_token(top_p: float) -> None:
    kept = nucleus(torch.tensor([0.2, 0.5, 0.3]), top_p)
    assert kept.nonzero().flatten().tolist() == [1]
