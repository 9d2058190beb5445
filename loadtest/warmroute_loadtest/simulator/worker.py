"""A model of one engine: a queue, one prefill server, a decoding batch and the KV memory.

    submit -> queue (FCFS) -> admitted: cached blocks counted, memory pinned -> prefill of the rest
      -> decoding: first byte after the first step -> end: memory released

A request is admitted when the prefill server is free and its whole need of memory, answer included, fits beside
what is pinned; those behind it wait with it. There is no preemption, and prefill and decoding do not slow each other:
`prefill_rate` is that of an engine that chunks its prefill and decodes beside it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import NamedTuple

from .cache import BlockCache
from .decode import DecodeBatch


@dataclass(eq=False, slots=True)
class Job:
    """One request on a worker."""

    number: int
    block_ids: Sequence[int]
    input_tokens: int
    output_tokens: int
    cached_blocks: int = -1
    """What the worker really had when it admitted the request; -1 before that."""

    def private_blocks(self, block_tokens: int) -> int:
        return blocks_needed(self.input_tokens, self.output_tokens, block_tokens) - len(self.block_ids)


def blocks_needed(input_tokens: int, output_tokens: int, block_tokens: int) -> int:
    return -(-(input_tokens + output_tokens) // block_tokens)


class Happening(Enum):
    FIRST_BYTE = "first byte"
    END = "end"


class Happened(NamedTuple):
    what: Happening
    job: Job


class WorkerModel:
    """Drive it by time: `submit` a job, `wake` it at `next_at` and never later."""

    def __init__(self, blocks: int, block_tokens: int, prefill_rate: float, tpot: float) -> None:
        self.cache = BlockCache(blocks)
        self.computed_tokens = 0
        """Prompt tokens that were not cached."""
        self._block_tokens = block_tokens
        self._prefill_rate = prefill_rate
        self._tpot = tpot
        self._queue: deque[Job] = deque()
        self._prefilling: Job | None = None
        self._prefilled_at = inf
        self._decode: DecodeBatch[Job] = DecodeBatch(tpot)

    def restart(self) -> None:
        """Its process is another one: with an empty cache, and nothing to do. What it has computed stays computed."""
        self.cache = BlockCache(self.cache.capacity)
        self._queue.clear()
        self._prefilling, self._prefilled_at = None, inf
        self._decode = DecodeBatch(self._tpot)

    @property
    def next_at(self) -> float:
        """When something happens next here; infinity where nothing does."""
        return min(self._prefilled_at, self._decode.next_at)

    def submit(self, job: Job, now: float) -> None:
        need = blocks_needed(job.input_tokens, job.output_tokens, self._block_tokens)
        assert need <= self.cache.capacity, "a job that can never fit would wait for ever, and all behind it"
        self._queue.append(job)
        self._admit(now)

    def wake(self, now: float) -> list[Happened]:
        """What happens at this moment, in order."""
        happened = [self._reach(job, is_end) for _, _, job, is_end in self._decode.reached(now)]
        if self._prefilling is not None and self._prefilled_at <= now:
            self._decode.join(self._prefilling, self._prefilling.output_tokens, now)
            self._prefilling, self._prefilled_at = None, inf
        self._admit(now)
        return happened

    def _reach(self, job: Job, is_end: bool) -> Happened:
        if not is_end:
            return Happened(Happening.FIRST_BYTE, job)
        self.cache.release(job.block_ids, job.private_blocks(self._block_tokens))
        return Happened(Happening.END, job)

    def _admit(self, now: float) -> None:
        if self._prefilling is not None or not self._queue:
            return
        job = self._queue[0]
        cached = self.cache.admit(job.block_ids, job.private_blocks(self._block_tokens))
        if cached is None:
            return
        self._prefilling = self._queue.popleft()
        job.cached_blocks = cached
        new_tokens = job.input_tokens - cached * self._block_tokens
        self.computed_tokens += new_tokens
        self._prefilled_at = now + new_tokens / self._prefill_rate
