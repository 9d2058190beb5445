"""Page tables on the device follow the scheduler's slots, and what they are told already is not told again."""

from array import array
from collections.abc import Callable, Sequence
from random import Random

import pytest
import torch
from support.toy import ToyEngine
from torch import Tensor
from warmroute_worker.attention.base import Attention, SequenceSpan
from warmroute_worker.attention.page_table import PageTable
from warmroute_worker.core import Request

MakeEngine = Callable[..., ToyEngine]
Prompts = Callable[[int, int], "array[int]"]


class Following:
    """Attention that keeps page tables beside, and compares them with all slots of each step's spans."""

    def __init__(self, attention: Attention, page_size: int) -> None:
        self.attention = attention
        self.page_size = page_size
        self.table = PageTable(page_size, torch.device("cpu"))

    def plan(self, spans: Sequence[SequenceSpan]) -> None:
        table = self.table.of(spans)
        for row, span in zip(table, spans, strict=True):
            pages = span.slots[:: self.page_size] // self.page_size
            assert row[: len(pages)].tolist() == pages.tolist()
        self.attention.plan(spans)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.attention(layer, q, k, v)


def following(toy: ToyEngine) -> ToyEngine:
    toy.engine._attention = Following(toy.engine._attention, toy.engine.pool.page_size)
    return toy


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The page numbers of each copy to the device."""
    copies: list[list[int]] = []

    def copied(on_host: Tensor, device: torch.device) -> Tensor:
        if on_host.dtype == torch.int32:
            copies.append(on_host.tolist())
        return on_host

    monkeypatch.setattr("warmroute_worker.attention.page_table.to_device", copied)
    return copies


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_comes_and_goes_tables_are_those_of_the_slots(
    engine: MakeEngine, prompts: Prompts, seed: int, page_size: int
) -> None:
    random = Random(seed)
    toy = following(engine(pool=96, page_size=page_size, chunk=random.choice([5, 16, 40]), max_running=4))
    requests: list[Request] = []
    for _ in range(150):
        if random.random() < 0.4:
            prompt = prompts(random.randrange(3), random.randint(1, 30)) + prompts(50 + random.randrange(3), 3)
            requests.append(toy.request(prompt, random.randint(1, 25), salt=random.choice(["", "", "a"])))
        if random.random() < 0.1 and requests:
            toy.engine._abort(random.choice(requests))
        toy.step()
    toy.run()
    assert any(request.output_tokens for request in requests)
    assert not any(output.finish_reason == "error" for outputs in toy.outputs.values() for output in outputs)


def test_slots_that_another_has_put_into_the_cache_meanwhile_take_the_place_of_the_own(
    engine: MakeEngine, prompts: Prompts
) -> None:
    """A prompt that is cached whole still computes its last token, in a slot of its own, and then goes on with the
    cache's.
    """
    toy = following(engine())
    prompt = prompts(1, 20)
    wanted = toy.generate(prompt, 4)
    again = toy.request(prompt, 4)
    toy.step()
    assert (again.told, again.shared) == (19, 20), "the last of them is to be told anew"
    toy.run()
    assert toy.generated(again) == wanted


def test_a_decoding_sequence_tells_its_new_page_alone(
    engine: MakeEngine, prompts: Prompts, written: list[list[int]]
) -> None:
    toy = following(engine(page_size=4))
    requests = [toy.request(prompts(number, 6 + number), 9) for number in range(2)]
    toy.step()
    assert [len(pages) for pages in written] == [2 + 2]
    written.clear()
    for _ in range(4):
        toy.step()
    slots = [toy.engine.scheduler.slots(request, 11) for request in requests]
    # With 8 and 9 tokens before the first of these steps: one begins its third page in the second, and one has it.
    assert [pages for pages in written if pages] == [[int(slots[1][8]) // 4], [int(slots[0][8]) // 4]]
    toy.run()


def test_a_table_that_has_to_grow_keeps_what_it_has() -> None:
    table = PageTable(1, torch.device("cpu"))
    slots = torch.arange(5000).flip(0)
    table.of([SequenceSpan(slots[:1000], 999, row=0)])
    grown = table.of([SequenceSpan(slots, 4999, row=3), SequenceSpan(slots[:1001], 1000, row=0, told=1000)])
    assert grown.shape == (2, 5000)
    assert torch.equal(grown[0], slots.int())
    assert torch.equal(grown[1, :1001], slots[:1001].int())


def test_sequences_without_a_row_of_their_own_have_that_of_their_place() -> None:
    table = PageTable(4, torch.device("cpu"))
    pages = table.of([SequenceSpan(torch.arange(10), 9), SequenceSpan(torch.arange(40, 44), 3)])
    assert pages[0].tolist() == [0, 1, 2]
    assert pages[1, :1].tolist() == [10]
