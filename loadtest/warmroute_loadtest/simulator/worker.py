"""A model of one engine: a queue, one prefill server, a decoding batch and the KV memory.

    submit -> queue (FCFS) -> admitted: cached blocks counted, memory pinned -> prefill of the rest
      -> decoding: first byte after the first step -> end: memory released

A request is admitted when the prefill server is free, fewer than `max_running` run, and its whole need of memory,
answer included, fits beside what is pinned; those behind it wait with it. There is no preemption, and prefill and
decoding do not slow each other: `prefill_rate` is that of an engine that chunks its prefill and decodes beside it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import ceil, inf
from typing import NamedTuple

from .cache import BlockCache
from .decode import DecodeBatch, Milestone


@dataclass(eq=False, slots=True)
class Job:
    """One request on a worker."""

    number: int
    block_ids: Sequence[int]
    input_tokens: int
    output_tokens: int
    cached_blocks: int = -1
    """What the worker really had when it admitted the request; -1 before that."""
    stream_interval: int = 0
    """Tokens from one to the next that are told of between the first and the last; 0 for none of them."""

    def private_blocks(self, block_tokens: int) -> int:
        return blocks_needed(self.input_tokens, self.output_tokens, block_tokens) - len(self.block_ids)


def blocks_needed(input_tokens: int, output_tokens: int, block_tokens: int) -> int:
    return -(-(input_tokens + output_tokens) // block_tokens)


class Happening(Enum):
    FIRST_BYTE = "first byte"
    TOKENS = "tokens"
    END = "end"


class Happened(NamedTuple):
    what: Happening
    job: Job


class WorkerModel:
    """Drive it by time: `submit` a job, `wake` it at `next_at` and never later."""

    def __init__(
        self, blocks: int, block_tokens: int, prefill_rate: float, tpot: float, max_running: int | None = None
    ) -> None:
        self.cache = BlockCache(blocks)
        self.computed_tokens = 0
        """Prompt tokens that were not cached."""
        self._block_tokens = block_tokens
        self._prefill_rate = prefill_rate
        self._tpot = tpot
        self._max_running = inf if max_running is None else max_running
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
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def running(self) -> int:
        return self._decode.size + (self._prefilling is not None)

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
        happened = [self._reach(milestone) for milestone in self._decode.reached(now)]
        if self._prefilling is not None and self._prefilled_at <= now:
            self._decode.join(self._prefilling, self._prefilling.output_tokens, now)
            self._prefilling, self._prefilled_at = None, inf
        self._admit(now)
        return happened

    def abort(self, job: Job, now: float) -> None:
        """A job that has not ended goes now. What has been computed of its prompt stays in the cache."""
        if job.cached_blocks < 0:
            self._queue.remove(job)
        else:
            computed = len(job.block_ids)
            if job is self._prefilling:
                missing = min(ceil((self._prefilled_at - now) * self._prefill_rate), self._new_tokens(job))
                self.computed_tokens -= missing
                computed = min((job.input_tokens - missing) // self._block_tokens, computed)
                self._prefilling, self._prefilled_at = None, inf
            else:
                self._decode.leave(job, now)
            self._release(job)
            self.cache.forget(job.block_ids[computed:])  # nobody is admitted during a prefill, so nobody has them
        self._admit(now)

    def _reach(self, milestone: Milestone[Job]) -> Happened:
        job = milestone.job
        if milestone.is_end:
            self._release(job)
            return Happened(Happening.END, job)
        if 0 < job.stream_interval < job.output_tokens - milestone.tokens:
            self._decode.follow(milestone, job.stream_interval)
        return Happened(Happening.FIRST_BYTE if milestone.tokens == 1 else Happening.TOKENS, job)

    def _release(self, job: Job) -> None:
        self.cache.release(job.block_ids, job.private_blocks(self._block_tokens))

    def _admit(self, now: float) -> None:
        if self._prefilling is not None or not self._queue or self._decode.size >= self._max_running:
            return
        job = self._queue[0]
        cached = self.cache.admit(job.block_ids, job.private_blocks(self._block_tokens))
        if cached is None:
            return
        self._prefilling = self._queue.popleft()
        job.cached_blocks = cached
        self.computed_tokens += self._new_tokens(job)
        self._prefilled_at = now + self._new_tokens(job) / self._prefill_rate

    def _new_tokens(self, job: Job) -> int:
        return job.input_tokens - job.cached_blocks * self._block_tokens
