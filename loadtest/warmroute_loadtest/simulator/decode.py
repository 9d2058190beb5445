"""The decoding batch of one simulated worker: every request in it goes forward by one token in each step.

A step of n requests takes `tpot · (1 + (n − 1) · BATCH_SLOWDOWN)`. Decoding is bound by memory: a step reads the
weights once for the whole batch, and each further request adds only the reading of its own KV cache.
"""

import heapq
from math import inf
from typing import Generic, NamedTuple, TypeVar

BATCH_SLOWDOWN = 1 / 64
"""Of `tpot`, for each further request in the batch: 65 requests together decode at half the pace of one."""

J = TypeVar("J")


class Milestone(NamedTuple, Generic[J]):
    progress: float
    """Tokens that the batch has decoded when it is reached."""
    order: int
    job: J
    tokens: int
    """Of the job's answer that are there then."""
    is_end: bool


class DecodeBatch(Generic[J]):
    """Exact for any mix, with no event per token: all requests keep the same pace, so one count of tokens serves all.

    A request that joins when the count is p has its first token at p + 1 and its last at p + tokens.
    """

    def __init__(self, tpot: float) -> None:
        self._tpot = tpot
        self._progress = 0.0
        self._at = 0.0
        """The time for which the progress is known."""
        self._size = 0
        self._milestones: list[Milestone[J]] = []
        self._order = 0
        self.next_at = inf
        """When the next milestone is reached, if nothing joins before."""

    @property
    def size(self) -> int:
        return self._size

    def join(self, job: J, tokens: int, now: float) -> None:
        self._move(now)
        self._size += 1
        self._push(self._progress + 1, job, 1, is_end=False)
        self._push(self._progress + max(tokens, 1), job, tokens, is_end=True)
        self._plan()

    def follow(self, reached: Milestone[J], tokens: int) -> None:
        """One more milestone of the same job, so many tokens after one that has just been reached."""
        self._push(reached.progress + tokens, reached.job, reached.tokens + tokens, is_end=False)
        self._plan()

    def leave(self, job: J, now: float) -> None:
        """Before its end."""
        self._move(now)
        self._size -= 1
        self._milestones = [milestone for milestone in self._milestones if milestone.job is not job]
        heapq.heapify(self._milestones)
        self._plan()

    def reached(self, now: float) -> list[Milestone[J]]:
        """The milestones that fall due now; requests at their end have left the batch."""
        self._move(now)
        due: list[Milestone[J]] = []
        while self._milestones and self._milestones[0].progress <= self._progress:
            due.append(heapq.heappop(self._milestones))
            self._size -= due[-1].is_end
        self._plan()
        return due

    def _push(self, progress: float, job: J, tokens: int, *, is_end: bool) -> None:
        self._order += 1  # the first byte of a one-token answer comes before its end
        heapq.heappush(self._milestones, Milestone(progress, self._order, job, tokens, is_end))

    def _move(self, now: float) -> None:
        assert now <= self.next_at, "a milestone was passed over"
        if now == self.next_at:
            self._progress = self._milestones[0].progress  # and not what rounding makes of it
        elif self._size:
            self._progress += (now - self._at) / self._step()
        self._at = now

    def _plan(self) -> None:
        if self._milestones:
            left = max(self._milestones[0].progress - self._progress, 0.0)  # rounding must not turn the time back
            self.next_at = self._at + left * self._step()
        else:
            self.next_at = inf

    def _step(self) -> float:
        return self._tpot * (1 + (self._size - 1) * BATCH_SLOWDOWN)
