"""The simulator's model of an engine, on the clock."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf
from typing import Protocol

from ..simulator.cache import BlockCache
from ..simulator.worker import Happening, Job, WorkerModel, blocks_needed
from .config import MockConfig

_UNBOUNDED = 2**62
"""Blocks of a worker without a cache."""


class Listener(Protocol):
    def reached(self, what: Happening) -> None: ...


@dataclass(slots=True)
class Totals:
    """Since the start. Prompts count from their first token on, answers at their end."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0


class Engine:
    """A `WorkerModel` by the clock.

    The event loop is always a little late. What is due happens at its own time all the same, in order, and before a
    new job comes in: so one delay does not lead to the next, and only arrivals are late.
    """

    def __init__(self, config: MockConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.totals = Totals()
        self._block_tokens = config.block_tokens
        self._clock = clock
        self._model = WorkerModel(
            config.blocks or _UNBOUNDED,
            config.block_tokens,
            config.prefill_rate or inf,
            config.tpot,
            config.max_running,
        )
        self._instant = not (config.blocks or config.prefill_rate or config.tpot)
        """Every job ends as it comes. The model says so too, and takes ten times as long for it."""
        self._listeners: dict[Job, Listener] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = inf

    @property
    def waiting(self) -> int:
        return self._model.waiting

    @property
    def running(self) -> int:
        return self._model.running

    @property
    def memory_usage(self) -> float:
        """The part of the KV memory that running requests have."""
        return self._model.cache.in_use / self._model.cache.capacity

    @property
    def room(self) -> int:
        """Tokens that a request may have, prompt and answer together."""
        return self._model.cache.capacity * self._block_tokens

    def fits(self, input_tokens: int, output_tokens: int) -> bool:
        return blocks_needed(input_tokens, output_tokens, self._block_tokens) <= self._model.cache.capacity

    def submit(self, job: Job, listener: Listener) -> None:
        """The job must fit. The listener may be told of everything before this returns."""
        if self._instant:
            job.cached_blocks = 0
            self._count_prompt(job)
            self._count_answer(job)
            listener.reached(Happening.END)
            return
        now = self._clock()
        self._catch_up(now)
        self._listeners[job] = listener
        self._model.submit(job, now)
        self._catch_up(now)
        self._set_alarm(now)

    def abort(self, job: Job) -> None:
        """Give the job up, where it has not ended."""
        if job not in self._listeners:
            return
        now = self._clock()
        self._catch_up(now)
        if self._listeners.pop(job, None) is not None:
            self._model.abort(job, now)
            self._catch_up(now)
        self._set_alarm(now)

    def flush(self) -> bool:
        """Forget the cache. False, and nothing done, while requests run or wait."""
        if self._listeners:
            return False
        self._model.cache = BlockCache(self._model.cache.capacity)
        return True

    def _wake(self) -> None:
        self._alarm, self._alarm_at = None, inf
        now = self._clock()
        self._catch_up(now)
        self._set_alarm(now)

    def _catch_up(self, now: float) -> None:
        while (due := self._model.next_at) <= now:
            for what, job in self._model.wake(due):
                self._tell(what, job)

    def _tell(self, what: Happening, job: Job) -> None:
        if what is Happening.FIRST_BYTE:
            self._count_prompt(job)
        if what is Happening.END:
            self._count_answer(job)
            self._listeners.pop(job).reached(what)
        else:
            self._listeners[job].reached(what)

    def _count_prompt(self, job: Job) -> None:
        self.totals.prompt_tokens += job.input_tokens
        self.totals.cached_tokens += job.cached_blocks * self._block_tokens

    def _count_answer(self, job: Job) -> None:
        self.totals.requests += 1
        self.totals.generation_tokens += job.output_tokens

    def _set_alarm(self, now: float) -> None:
        """The loop counts milliseconds; rounded down, it would turn in a circle until the time has come."""
        next_at = self._model.next_at
        if next_at >= self._alarm_at:
            return  # an alarm that goes off too early is set again
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = asyncio.get_running_loop().call_later(ceil((next_at - now) * 1000) / 1000, self._wake)
        self._alarm_at = next_at
