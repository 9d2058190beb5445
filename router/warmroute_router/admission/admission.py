"""Admission: a true cap of requests in flight, from the body's end to the last byte, and a bounded queue before it.

Who may not go on yet waits in the queue, where nobody is overtaken: not by a newcomer, nor, where clients take turns,
by one that had its turn. A permit counts from the moment at which it is given, and goes on to the next one where
whoever got it has left by then.
"""

import asyncio
import math
import time
from collections.abc import Callable

from xxhash import xxh3_128_digest

from ..config import AdmissionConfig
from ..errors import RequestError
from ..histogram import SECONDS, Histogram
from ..types import Headers
from .shared_counts import SharedCounts, draw_token
from .waiting_line import Pace, Waiter, WaitingLine

_ROOM_POLL = 0.05
"""Seconds after which those who wait for a worker's room look for it: not every way in which it comes is told."""
_SHARED_POLL = 0.01
"""The same with several processes, which cannot wake each other."""
_SHORTEST_TIMER = 0.001
"""The event loop's clock counts milliseconds: a shorter one would end before its time."""
_LONGEST_RETRY_AFTER = 60


class Admission:
    """Entered and left once by each request, on one event loop.

    With several processes (`shared`) the cap and the rate are those of all together. To read what the others have in
    flight and to write one's own is not one step, so there may be one request per other process beyond the cap.
    """

    def __init__(
        self,
        config: AdmissionConfig,
        *,
        has_room: Callable[[], bool],
        shared: SharedCounts | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`has_room`: whether any worker may take one more request."""
        self._config = config
        self._has_room = has_room
        self._shared = shared
        self._now = now
        self._bucket = shared or _Bucket()
        self._queue = WaitingLine()
        self._queue_size = -(-config.queue_size // (shared.processes if shared else 1))
        self._pace = Pace()
        self._handing_over = False
        """A permit has been given to one who waited, and its task has not run yet."""
        self._chances = 0
        """See `_stands_back`."""
        self._timer: asyncio.TimerHandle | None = None
        """One for all who wait, where nobody else will tell them."""
        self.in_flight = 0
        """Of this process."""
        self.queue_full = 0
        """Requests refused because of that; so is the next one."""
        self.queue_timeouts = 0
        self.queue_wait = Histogram(SECONDS)
        """Of the admitted."""

    @property
    def waiting(self) -> int:
        """In this process."""
        return len(self._queue)

    def fairness_key(self, headers: Headers) -> bytes:
        """Whose turn a request takes. A hash: keys are secrets, and values may be long."""
        if self._config.fair_by is None:
            return b""
        name = self._config.fair_by.encode("ascii")
        value = _api_key(headers) if name == b"api-key" else _first(headers, name)
        return xxh3_128_digest(value) if value else b""

    def check(self) -> None:
        """Raises RequestError (429) where `enter` would do so for anybody: no body is read in vain then."""
        may_push_out = self._config.fair_by is not None and self._queue_size > 0
        if not may_push_out and self.waiting >= self._queue_size and (self.waiting or self._obstacle()):
            raise self._refusal()

    async def enter(self, key: bytes) -> None:
        """Returns when admitted. Raises RequestError (429) where the queue is full, or where it took too long.

        The caller places its request on a worker before it awaits anything: until then `has_room` does not see it.
        """
        wait = 0.0
        if not self._queue and not self._handing_over:
            wait = self._take()
            if not wait:
                self.queue_wait.observe(0.0)
                return
        began = self._now()
        waiter = self._line_up(key)
        if wait:
            self._look_again(wait)
        try:
            error = await waiter.answer
        except asyncio.CancelledError:
            self._withdraw(waiter)
            raise
        finally:
            waiter.timeout.cancel()
        if error is not None:
            raise error
        self.queue_wait.observe(self._now() - began)
        self._handing_over = False
        if self._queue:
            asyncio.get_running_loop().call_soon(self.wake)  # after the caller has placed its request

    def leave(self) -> None:
        """Once for each `enter` that returned, when its worker has room again."""
        assert self.in_flight > 0, "left more often than entered"
        self.in_flight -= 1
        self._publish()
        self.wake()

    def wake(self) -> None:
        """Lets the next one go on, if it may. That one wakes its successor, once it has its place on a worker."""
        self._stop_timer()
        while not self._handing_over and (waiter := self._queue.next()) is not None:
            if waiter.answer.done():  # cancelled, and its task has not run yet
                self._remove(waiter)
            elif wait := self._take():
                self._look_again(wait)
                break
            else:
                self._hand_over(waiter)

    def _take(self) -> float:
        """0.0 where there was a permit, and it is taken; else the seconds until it is worth to look again."""
        wait = self._obstacle() or self._token()
        if not wait:
            self.in_flight += 1
            self._publish()
        return wait

    def _obstacle(self) -> float:
        """Of cap and workers: 0.0 where they let one more go on; infinite where `leave` will tell."""
        cap, shared = self._config.max_concurrent_requests, self._shared
        if cap is not None and (shared.total() if shared else self.in_flight) >= cap:
            return _SHARED_POLL if shared else math.inf
        if not self._has_room():
            return _SHARED_POLL if shared else _ROOM_POLL
        return 0.0

    def _token(self) -> float:
        """Of the rate: 0.0 where it lets one more start, which counts then."""
        if self._stands_back():
            return _SHARED_POLL
        rate = self._config.rate
        return self._bucket.take_token(rate, max(rate, 1.0), self._now()) if rate is not None else 0.0

    def _stands_back(self) -> bool:
        """Two times of three, while another process has requests waiting, and fewer in flight than this one.

        Each process sees its own permits come back before the others do: one that has none would never get any. Not
        each time, since that process may be a stopped one.
        """
        if self._shared is None or not self._shared.others_are_behind():
            self._chances = 0
        else:
            self._chances = (self._chances + 1) % 3
        return self._chances > 0

    def _line_up(self, key: bytes) -> Waiter:
        if self.waiting >= self._queue_size:
            self._make_place(key)
        if not self._queue:
            self._pace.begin(self._now())
        loop = asyncio.get_running_loop()
        waiter = Waiter(key, loop.create_future())
        waiter.timeout = loop.call_later(self._config.queue_timeout, self._expire, waiter)
        self._queue.append(waiter)
        self._publish()
        return waiter

    def _make_place(self, key: bytes) -> None:
        """Whoever has the most requests waiting loses the newest one. Raises RequestError where nobody has more."""
        refusal = self._refusal()
        newest = self._queue.newest_of_busiest(beside=key)
        if newest is None:
            raise refusal
        self._remove(newest)
        newest.settle(refusal)

    def _hand_over(self, waiter: Waiter) -> None:
        """A permit, which counts already."""
        self._remove(waiter)
        self._queue.end_turn(waiter.key)
        self._pace.moved(self._now())
        self._handing_over = True
        waiter.settle(None)

    def _withdraw(self, waiter: Waiter) -> None:
        """It was cancelled: while it waited, or just after it was given a permit, or a refusal."""
        if waiter.answer.cancelled():
            self._remove(waiter)
        elif waiter.answer.result() is None:
            self._give_on()

    def _give_on(self) -> None:
        """The permit that was given last, and its token."""
        self._handing_over = False
        while (waiter := self._queue.next()) is not None:
            if not waiter.answer.done():
                self._hand_over(waiter)
                return
            self._remove(waiter)
        self.in_flight -= 1
        self._publish()

    def _expire(self, waiter: Waiter) -> None:
        if waiter.answer.done():
            return
        self.queue_timeouts += 1
        error = queue_timeout(self._config.queue_timeout, self._retry_after())
        self._remove(waiter)
        waiter.settle(error)

    def _remove(self, waiter: Waiter) -> None:
        self._queue.remove(waiter)
        self._publish()
        if not self._queue:
            self._stop_timer()

    def _look_again(self, wait: float) -> None:
        if wait < math.inf:
            self._timer = asyncio.get_running_loop().call_later(max(wait, _SHORTEST_TIMER), self.wake)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _publish(self) -> None:
        if self._shared is not None:
            self._shared.set(self.in_flight, self.waiting)

    def _refusal(self) -> RequestError:
        self.queue_full += 1
        return queue_full(self._config.queue_size, self._retry_after())

    def _retry_after(self) -> int:
        """Whole seconds in which the queue should be through."""
        seconds = self._pace.time_for(self.waiting, self._now())
        return min(max(math.ceil(seconds), 1), _LONGEST_RETRY_AFTER)


class _Bucket:
    """The tokens of a lone process; see `SharedCounts.take_token`."""

    def __init__(self) -> None:
        self._level, self._time = 0.0, -math.inf

    def take_token(self, rate: float, burst: float, now: float) -> float:
        self._level, self._time, wait = draw_token(self._level, self._time, rate, burst, now)
        return wait


def queue_full(queue_size: int, retry_after: int) -> RequestError:
    message = f"The router is busy, and as many requests as may wait do so (--queue-size {queue_size})"
    return _too_many(message, "queue_full", retry_after)


def queue_timeout(seconds: float, retry_after: int) -> RequestError:
    message = f"The router was busy for as long as a request may wait (--queue-timeout-secs {seconds:g})"
    return _too_many(message, "queue_timeout", retry_after)


def _too_many(message: str, code: str, retry_after: int) -> RequestError:
    return RequestError(
        429,
        f"{message}. Try again in {retry_after} s.",
        type="rate_limit_error",
        code=code,
        headers=[(b"retry-after", b"%d" % retry_after)],
    )


def _api_key(headers: Headers) -> bytes:
    """However it is shown: another spelling of the scheme is not another client."""
    given = _first(headers, b"authorization")
    scheme, _, key = given.strip().partition(b" ")
    return key.strip() or scheme or _first(headers, b"x-api-key").strip()


def _first(headers: Headers, name: bytes) -> bytes:
    return next((value for given, value in headers if given == name), b"")
