"""CUDA graphs for decoding, with a stand-in for the graphs: a replay computes anew from the same tensors."""

from array import array
from collections.abc import Callable
from typing import Any

import pytest
from support.toy import ToyEngine
from torch import Tensor
from warmroute_worker.attention import triton
from warmroute_worker.attention.triton import Decode, TritonAttention
from warmroute_worker.cuda_graphs import GraphedModel, batch_sizes
from warmroute_worker.model.llama import Llama
from warmroute_worker.warm_up import warm_up

MakeEngine = Callable[..., ToyEngine]
Prompts = Callable[[int, int], "array[int]"]

TRITON = ("--attention-backend", "triton")


class Recorder:
    """What is replayed uses nothing but what was there when it was recorded."""

    def __init__(self, attention: TritonAttention) -> None:
        self.attention = attention
        self.sizes: list[int] = []
        self.replayed: list[int] = []

    def __call__(self, compute: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        attention, step = self.attention, self.attention.step
        result = compute().clone()
        self.sizes.append(len(result))

        def replay() -> None:
            attention.step = step
            result.copy_(compute())
            self.replayed.append(len(result))

        return replay, result


def graphed(toy: ToyEngine, *, max_batch: int) -> Recorder:
    """The engine's model with graphs, as on a GPU."""
    attention, model = toy.engine._attention, toy.engine._model
    assert isinstance(attention, TritonAttention)
    assert isinstance(model, Llama)
    recorder = Recorder(attention)
    toy.engine._model = GraphedModel(model, attention, recorder, max_batch=max_batch, context=256)
    return recorder


@pytest.mark.parametrize(
    ("largest", "sizes"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (20, [1, 2, 4, 8, 16, 20])]
)
def test_sizes_are_powers_of_two_and_the_largest(largest: int, sizes: list[int]) -> None:
    assert batch_sizes(largest) == sizes


@pytest.mark.parametrize("page_size", ["1", "4"])
def test_answers_are_the_same_and_each_batch_takes_the_smallest_graph_it_fits_in(
    flagged: MakeEngine, prompts: Prompts, page_size: str
) -> None:
    everyone = [(prompts(number, 5 + number), 3 + 2 * number) for number in range(3)]
    plain = flagged("--attention-backend", "torch", "--page-size", page_size)
    wanted = [plain.generate(prompt, count) for prompt, count in everyone]
    toy = flagged(*TRITON, "--page-size", page_size)
    recorder = graphed(toy, max_batch=6)
    assert recorder.sizes == [6, 4, 2, 1], "the largest first"
    requests = [toy.request(prompt, count) for prompt, count in everyone]
    toy.run()
    assert [toy.generated(request) for request in requests] == wanted
    # After the prefill of all: two steps of three rows, two of two, two of one.
    assert recorder.replayed == [4, 4, 2, 2, 1, 1]


def test_rows_behind_the_batch_store_nothing_and_have_no_length(flagged: MakeEngine, prompts: Prompts) -> None:
    toy = flagged(*TRITON)
    recorder = graphed(toy, max_batch=4)
    requests = [toy.request(prompts(number, 5), 4) for number in range(3)]
    pool = toy.engine.pool
    pool.k.zero_()  # memory that nobody wrote may be NaN, which differs from itself
    toy.step()
    before = pool.k.clone()
    toy.step()
    assert recorder.replayed == [4]
    step = recorder.attention.step
    assert step is not None
    assert isinstance(step.decode, Decode)
    assert step.slots.tolist()[3:] == [-1]
    assert step.decode.lengths.tolist() == [6, 6, 6, 0]
    changed = (pool.k != before).flatten(2).any(-1).any(0).nonzero().flatten()
    own = [int(toy.engine.scheduler.slots(request, 6)[-1]) for request in requests]
    assert sorted(changed.tolist()) == sorted(own)
    toy.run()


def test_tensors_stay_where_they_are_and_what_a_larger_batch_left_is_overwritten(
    flagged: MakeEngine, prompts: Prompts
) -> None:
    toy = flagged(*TRITON)
    recorder = graphed(toy, max_batch=4)
    attention, addresses = recorder.attention, set()
    for number in (4, 3):
        for each in range(number):
            toy.request(prompts(10 * number + each, 5 + each), 3)
        for _ in range(2):
            toy.step()
        step = attention.step
        assert step is not None
        assert isinstance(step.decode, Decode)
        addresses.add(tuple(part.data_ptr() for part in (step.slots, step.decode.page_table, step.decode.lengths)))
        assert step.decode.lengths.tolist() == [*(6 + each for each in range(number)), *[0] * (4 - number)]
        toy.run()
    assert len(addresses) == 1


def test_a_step_with_a_prefill_and_a_batch_too_large_are_computed_as_ever(
    flagged: MakeEngine, prompts: Prompts
) -> None:
    toy = flagged(*TRITON)
    recorder = graphed(toy, max_batch=2)
    requests = [toy.request(prompts(number, 5), 3) for number in range(3)]
    toy.run()
    assert recorder.replayed == []
    plain = flagged("--attention-backend", "torch")
    assert [toy.generated(request) for request in requests] == [plain.generate(prompts(n, 5), 3) for n in range(3)]


def test_a_batch_that_shares_enough_cascades_instead(
    flagged: MakeEngine, prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warmroute_kernels.cascade.plan.saving", lambda *_: 1.0)
    monkeypatch.setattr("warmroute_kernels.cascade.plan.pays", lambda _: True)
    toy = flagged(*TRITON)
    recorder = graphed(toy, max_batch=4)
    everyone = [prompts(1, 12) + prompts(5 + number, 2) for number in range(2)]
    requests = [toy.request(prompt, 4) for prompt in everyone]
    toy.run()
    plain = flagged("--attention-backend", "torch")
    assert [toy.generated(request) for request in requests] == [plain.generate(prompt, 4) for prompt in everyone]
    assert recorder.replayed == [1], "the first is a step ahead, and the second ends alone"


def test_a_cascade_is_charged_for_the_graph_that_it_replaces(
    flagged: MakeEngine, prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rows have a graph; two beside a prefill, or three, have none."""
    charged: list[tuple[int, float]] = []

    def plan_cascade(groups: object, page_table: Tensor, *_: object, lost: float, **__: object) -> None:
        charged.append((len(page_table), lost))

    monkeypatch.setattr(triton, "plan_cascade", plan_cascade)
    toy = flagged(*TRITON)
    graphed(toy, max_batch=2)
    toy.generate(prompts(1, 12), 1)
    for number in range(2):
        toy.request(prompts(1, 12) + prompts(5 + number, 2), 8)
    toy.step()
    toy.step()
    toy.request(prompts(1, 12) + prompts(7, 2), 8)
    toy.step()
    toy.step()
    assert charged == [(2, triton.EAGER), (2, 0.0), (3, 0.0)]
    toy.run()


def test_warming_up_computes_what_no_graph_does(
    flagged: MakeEngine, prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = flagged(*TRITON, "--page-size", "4")
    recorder = graphed(toy, max_batch=2)
    engine = toy.engine
    called: list[str] = []

    def counted(name: str, kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*args: Any, **options: Any) -> Tensor:
            called.append(name)
            return kernel(*args, **options)

        return call

    for name in ("extend", "paged_decode"):
        monkeypatch.setattr(triton, name, counted(name, getattr(triton, name)))
    warm_up(engine._model, engine._attention, engine.pool)
    assert called == ["paged_decode", "extend"] * 2, "in both layers"
    assert recorder.replayed == []
    plain = flagged("--attention-backend", "torch", "--page-size", "4")
    assert toy.generate(prompts(1, 9), 4) == plain.generate(prompts(1, 9), 4)


def test_a_long_sequence_is_split_in_a_graph_too(flagged: MakeEngine, prompts: Prompts) -> None:
    """A split has 128 tokens at least. Unsplit, the answer would be right, and late."""
    toy = flagged(*TRITON)
    recorder = graphed(toy, max_batch=2)
    toy.request(prompts(1, 150), 2)
    toy.run()
    assert recorder.replayed == [1]
    step = recorder.attention.step
    assert step is not None
    assert isinstance(step.decode, Decode)
    assert step.decode.plan.counts.tolist() == [2]
