from array import array

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from warmroute_worker.core import Request, SamplingParams
from warmroute_worker.sampling import Sampler, nucleus
from warmroute_worker.text import OutputText


def asking(*, temperature: float = 1.0, top_p: float = 1.0, seed: int | None = None) -> Request:
    params = SamplingParams(1, temperature=temperature, top_p=top_p, seed=seed)
    return Request(array("q", [1]), params, OutputText(lambda ids: ""), lambda output: None)


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
    kept = nucleus(probabilities[None], [top_p])[0]
    wanted = naive_nucleus(probabilities.tolist(), top_p)
    assert set(kept.nonzero().flatten().tolist()) == wanted
    assert all(kept[index] == probabilities[index] for index in wanted)


def test_top_p_of_one_keeps_everything() -> None:
    probabilities = torch.tensor([0.5, 0.5 - 1e-9, 1e-9])
    assert torch.equal(nucleus(probabilities[None], [1.0])[0], probabilities)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_samples_follow_the_softmax(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 draws with a fixed seed; 0.015 is four standard deviations of a frequency."""
    monkeypatch.setattr("torch.get_num_threads", lambda: 1000)
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0])
    draws = torch.tensor(
        Sampler().sample(logits.expand(20_000, 4), [asking(temperature=temperature, seed=3)] * 20_000)
    )
    frequencies = torch.bincount(draws, minlength=4) / len(draws)
    weights = [2.718281828 ** (value / temperature) for value in logits.tolist()]
    wanted = torch.tensor([weight / sum(weights) for weight in weights])
    assert (frequencies - wanted).abs().max() < 0.015


@pytest.mark.parametrize("temperature", [0.0, 1e-42, 1e-6])
def test_cold_is_greedy(temperature: float) -> None:
    assert Sampler().sample(torch.tensor([[-1000.0, 30.0, 31.0]]), [asking(temperature=temperature)]) == [2]


@pytest.mark.parametrize("top_p", [1e-300, 1e-42, 1e-6])
def test_the_smallest_nucleus_is_the_likeliest_token(top_p: float) -> None:
    kept = nucleus(torch.tensor([[0.2, 0.5, 0.3]]), [top_p])[0]
    assert kept.nonzero().flatten().tolist() == [1]


def test_the_nuclei_of_rows_are_their_own() -> None:
    """And of two equally likely tokens the first is taken."""
    row = torch.tensor([0.1, 0.2, 0.4, 0.2, 0.1])
    kept = nucleus(row.expand(4, 5), [0.3, 1.0, 0.5, 0.85])
    assert kept.count_nonzero(-1).tolist() == [1, 5, 2, 4]
    assert kept[2].nonzero().flatten().tolist() == [1, 2]


@pytest.mark.parametrize("rows_at_once", [1, 3, 64])
def test_a_row_gets_what_it_gets_alone(rows_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy ones, and those with a temperature and a nucleus of their own, in one batch; several tokens of each."""
    kinds: list[dict[str, float]] = [
        {"temperature": 0.0},
        {"temperature": 0.7},
        {"temperature": 1.3, "top_p": 0.8},
        {"top_p": 0.3},
    ]
    steps = torch.randn(5, 8, 200, generator=torch.Generator().manual_seed(1)) * 2

    def requests() -> list[Request]:
        return [asking(**kinds[row % 4], seed=row) for row in range(8)]

    alone = []
    for row, request in enumerate(requests()):
        sampler = Sampler()
        alone.append([sampler.sample(logits[row : row + 1], [request])[0] for logits in steps])
    monkeypatch.setattr("torch.get_num_threads", lambda: rows_at_once)
    sampler, everyone = Sampler(), requests()
    together = [sampler.sample(logits, everyone) for logits in steps]
    assert [list(tokens) for tokens in zip(*together, strict=True)] == alone
    assert alone[0] == steps[:, 0].argmax(-1).tolist()


def test_one_random_number_chooses_the_token_that_the_sum_of_probabilities_passes_it_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits = torch.tensor([[0.0, 0.1, 0.4, 0.2, 0.3]]).log()  # the first is impossible, and log(0) is -inf
    numbers = {0.0: 1, 0.0999: 1, 0.1001: 2, 0.4999: 2, 0.5001: 3, 0.7001: 4, 1 - 2**-53: 4}
    for number, wanted in numbers.items():
        monkeypatch.setattr("warmroute_worker.sampling.Random.random", lambda self, number=number: number)
        assert Sampler().sample(logits, [asking()]) == [wanted]
    # Of the nucleus, tokens 2 and 4 with 0.7 together, 0.4 is 4/7.
    for number, wanted in {0.0: 2, 0.5713: 2, 0.5715: 4, 1 - 2**-53: 4}.items():
        monkeypatch.setattr("warmroute_worker.sampling.Random.random", lambda self, number=number: number)
        assert Sampler().sample(logits, [asking(top_p=0.69)]) == [wanted]


def test_whatever_the_logits_are_the_token_is_one() -> None:
    """On a GPU an id behind the last would end the device's context, and with it the worker."""
    logits = torch.tensor([[float("nan")] * 3, [0.0, float("inf"), 0.0]])
    for temperature in (0.0, 1.0):
        assert all(token in range(3) for token in Sampler().sample(logits, [asking(temperature=temperature)] * 2))


def test_nothing_to_sample_is_nothing() -> None:
    assert Sampler().sample(torch.empty(0, 5), []) == []
