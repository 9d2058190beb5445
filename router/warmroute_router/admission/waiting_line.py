"""Those who wait to be admitted: whose turn it is, and how fast it goes on."""

import asyncio
from collections import OrderedDict

from ..errors import RequestError


class Waiter:
    __slots__ = ("answer", "key", "timeout")

    timeout: asyncio.TimerHandle

    def __init__(self, key: bytes, answer: "asyncio.Future[RequestError | None]") -> None:
        self.key = key
        self.answer = answer
        """None: it may go on."""

    def settle(self, error: RequestError | None) -> None:
        if not self.answer.done():
            self.answer.set_result(error)


class WaitingLine:
    """A line per key, and the keys in the order of their turns. Only a push-out takes longer the more keys wait."""

    def __init__(self) -> None:
        self._lines: OrderedDict[bytes, OrderedDict[Waiter, None]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, waiter: Waiter) -> None:
        self._lines.setdefault(waiter.key, OrderedDict())[waiter] = None
        self._length += 1

    def next(self) -> Waiter | None:
        return next(iter(next(iter(self._lines.values()))), None) if self._lines else None

    def end_turn(self, key: bytes) -> None:
        if key in self._lines:
            self._lines.move_to_end(key)

    def remove(self, waiter: Waiter) -> None:
        """It may be gone already."""
        line = self._lines.get(waiter.key)
        if line is None or waiter not in line:
            return
        del line[waiter]
        self._length -= 1
        if not line:
            del self._lines[waiter.key]

    def newest_of_busiest(self, *, beside: bytes) -> Waiter | None:
        """Of the key with the most waiters; None where that is not more than those of the key `beside`."""
        busiest = max(self._lines.values(), key=len, default=None)
        if busiest is None or len(busiest) <= len(self._lines.get(beside, ())):
            return None
        return next(reversed(busiest))


class Pace:
    """How fast the queue moves: the seconds from one that goes on to the next, late ones counting more."""

    def __init__(self) -> None:
        self._interval = 0.0
        self._moved_at = 0.0

    def begin(self, now: float) -> None:
        self._moved_at = now

    def moved(self, now: float) -> None:
        self._interval += 0.2 * (now - self._moved_at - self._interval)
        self._moved_at = now

    def time_for(self, requests: int, now: float) -> float:
        return requests * max(self._interval, now - self._moved_at)
