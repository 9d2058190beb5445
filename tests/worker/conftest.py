"""A toy Llama with grouped heads, as transformers writes it, and engines on it."""

from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from support.toy import ToyEngine, save_toy
from support.worker import RunningWorker, running_worker
from transformers import LlamaForCausalLM
from warmroute_worker.cli import parse_config
from warmroute_worker.launch import build
from warmroute_worker.tokenizer import Tokenizer


@pytest.fixture(scope="session", autouse=True)
def _two_threads_are_slower_than_one() -> None:
    """For matrices as small as the toy's."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_toy(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="session")
def toy_oracle(toy_folder: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(toy_folder, dtype=torch.float32).eval()


@pytest.fixture
def engine(toy_folder: Path) -> Iterator[Callable[..., ToyEngine]]:
    """Makes engines; each is stopped, and its account checked, when the test ends."""
    made: list[ToyEngine] = []

    def make(**options: int) -> ToyEngine:
        made.append(ToyEngine(toy_folder, **options))
        return made[-1]

    yield make
    for each in made:
        each.assert_nothing_leaked()


class FlaggedToy(ToyEngine):
    """A toy engine that is built from flags, as the command does it."""

    def __init__(self, folder: Path, *flags: str) -> None:
        config = parse_config(["--model", str(folder), "--threads", "1", "--max-total-tokens", "512", *flags])
        self.engine, _, _ = build(config)
        self.decode = Tokenizer.from_folder(folder).decode
        self.outputs = {}


@pytest.fixture(scope="session")
def wide_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy with heads of 16: no matrix product on a GPU is smaller."""
    return save_toy(tmp_path_factory.mktemp("wide"), head_dim=16)


@pytest.fixture
def flagged(wide_folder: Path) -> Iterator[Callable[..., ToyEngine]]:
    """Makes engines from flags; each is stopped, and its account checked, when the test ends."""
    made: list[ToyEngine] = []

    def make(*flags: str) -> ToyEngine:
        made.append(FlaggedToy(wide_folder, *flags))
        return made[-1]

    yield make
    for each in made:
        each.assert_nothing_leaked()


@pytest.fixture(scope="session")
def oracle_greedy(toy_oracle: LlamaForCausalLM) -> Callable[[Sequence[int], int], list[int]]:
    """What transformers generates, greedily, without a stop."""

    def generate(prompt: Sequence[int], count: int) -> list[int]:
        tokens = torch.tensor([list(prompt)])
        with torch.inference_mode():
            for _ in range(count):
                tokens = torch.cat([tokens, toy_oracle(tokens).logits[:, -1:].argmax(-1)], dim=1)
        return tokens[0, len(prompt) :].tolist()

    return generate


@pytest.fixture(scope="session")
def prompts() -> Callable[[int, int], "array[int]"]:
    """A random prompt by seed and length."""

    def make(seed: int, length: int) -> "array[int]":
        generator = torch.Generator().manual_seed(seed)
        return array("q", torch.randint(3, 250, (length,), generator=generator).tolist())

    return make


@pytest.fixture
async def worker(toy_folder: Path) -> AsyncIterator[RunningWorker]:
    async with running_worker(toy_folder) as running:
        yield running
