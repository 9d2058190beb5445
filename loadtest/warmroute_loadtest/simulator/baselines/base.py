"""What a baseline is: a peer's routing rule, which learns only from what it sent where.

The simulator asks `choose`, then tells of each request's three moments. A baseline sees a worker's requests in
flight, as every router counts them, but neither `fleet.cached_blocks` nor `remaining_tokens`: those are what our own
router knows.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from warmroute_router.blocks import BYTES_PER_TOKEN, PromptBlocks
from warmroute_router.policies import Choice, FleetView, WorkerView
from warmroute_router.policies.base import W

CHARS_PER_TOKEN = BYTES_PER_TOKEN
"""Turns the limits of peers that count characters into tokens."""

ENGINE_TOKENS = 31_250 * 64
"""What an engine's KV cache is taken to hold by peers that would ask the engine: llm-d's guess before it has."""


class Baseline(ABC):
    @abstractmethod
    def choose(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]: ...

    def dispatched(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        """The prompt was sent to the worker."""
        del prompt, worker, now

    def first_byte(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        """The worker has computed the prompt."""
        del prompt, worker, now

    def ended(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        """The answer is complete."""
        del prompt, worker, now


def matched_share(prompt: PromptBlocks, blocks: int) -> float:
    """What part of the prompt its first `blocks` blocks are."""
    return min(blocks * prompt.block_tokens / prompt.tokens, 1.0) if prompt.tokens else 0.0


def blocks_of(tokens: float, prompt: PromptBlocks) -> int:
    """How many of the prompt's blocks so many tokens fill."""
    return int(tokens / prompt.block_tokens)


def uncached_tokens(prompt: PromptBlocks, blocks: int) -> int:
    """What is left to compute for a worker that holds the first `blocks` blocks."""
    return max(prompt.tokens - int(blocks * prompt.block_tokens), 0)


def first_of_least_loaded(workers: Sequence[W]) -> W:
    return min(workers, key=lambda worker: (worker.in_flight, worker.index))


def least_loaded(workers: Sequence[W]) -> list[W]:
    """All that tie for the fewest requests in flight."""
    lowest = min(worker.in_flight for worker in workers)
    return [worker for worker in workers if worker.in_flight == lowest]


def is_imbalanced(workers: Sequence[WorkerView], absolute: float, relative: float) -> bool:
    """Whether the busiest worker exceeds the idlest one by more than both margins."""
    loads = [worker.in_flight for worker in workers]
    most, least = max(loads), min(loads)
    return most - least > absolute and most > relative * least
