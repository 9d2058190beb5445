"""Simulated time: what is to happen, and when."""

import heapq
from collections.abc import Callable
from itertools import count
from math import inf

Action = Callable[[], None]


class Agenda:
    """Time is a number of seconds, and goes from one moment at which something happens to the next."""

    def __init__(self) -> None:
        self.now = 0.0
        self._plans: list[tuple[float, float, int, Action]] = []
        self._order = count()

    def at(self, moment: float, action: Action, rank: float = inf) -> None:
        """Of what falls on one moment the lowest rank comes first, and of equal ranks what was planned first."""
        heapq.heappush(self._plans, (moment, rank, next(self._order), action))

    def after(self, seconds: float, action: Action) -> None:
        self.at(self.now + seconds, action)

    def run_until(self, end: float) -> None:
        """Let everything happen up to `end`, and at it, so that who comes then finds it done."""
        while self._plans and self._plans[0][0] <= end:
            self.now, _, _, action = heapq.heappop(self._plans)
            action()
        if end < inf:
            self.now = end
