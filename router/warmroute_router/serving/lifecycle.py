"""The life of one router process: start, serve, say that it will stop, drain, end.

The first order to stop makes it answer "not ready"; after the delay it takes no more connections, and answers have
the grace time to end. The second order ends it at once, whenever that comes.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from ..app import RouterApp
from .door import Door

logger = logging.getLogger(__name__)

FIRST_REQUEST = 1.0
"""Seconds of the grace in which a connection that has just been made may still ask its first question."""
_GOODBYE = 2.0
"""Seconds that clients have to end TLS in order, once all have their answers."""
_UNWIND = 2.0
"""Seconds that requests have to notice that their client has been cut off."""
_POLL = 0.05


class Lifecycle:
    def __init__(self, app: RouterApp, doors: Sequence[Door], *, delay: float, grace: float) -> None:
        """doors: the application's own first. delay, grace: seconds, one after the other, after the order to stop."""
        self._app = app
        self._doors = doors
        self._delay = delay
        self._grace = grace
        self._stopping = asyncio.Event()
        self._ending = asyncio.Event()

    def stop(self) -> None:
        """In order where it is told once, at once where it is told twice."""
        if self._stopping.is_set():
            self._ending.set()
        self._stopping.set()
        self._app.draining = True

    def end(self) -> None:
        """At once."""
        self.stop()
        self._ending.set()

    async def run(self, started: Callable[[], None]) -> bool:
        """Until it is stopped; `started` is called once it serves. False where it did not get as far."""
        if not await self._start():
            return self._stopping.is_set()
        for door in self._doors:
            await door.open()
        started()
        await self._stopping.wait()
        await self._drain()
        await self._app.stop()
        return True

    async def _start(self) -> bool:
        """False where it is stopped meanwhile: then there is nothing to be ended in order."""
        starting = asyncio.create_task(self._app.start())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            return False
        await starting
        return True

    async def _drain(self) -> None:
        for door in self._doors:
            door.send_away()
        if self._delay:
            await self._unless_ending(self._delay)
        until = asyncio.get_running_loop().time() + self._grace
        for door in self._doors:
            door.close()
            door.end_idle(new=False)
        await self._while(lambda door: not door.empty, min(FIRST_REQUEST, self._grace))
        for door in self._doors:
            door.end_idle(new=True)
        await self._while(lambda door: door.busy, until - asyncio.get_running_loop().time())
        if not any(door.busy for door in self._doors):
            await self._while(lambda door: not door.empty, _GOODBYE)
        await self._cut()

    async def _cut(self) -> None:
        left = sum(door.requests for door in self._doors)
        if left:
            why = "told twice to stop" if self._ending.is_set() else f"{self._grace:g} s of grace are over"
            logger.warning("%s: requests cut off before their end: %d", why, left)
        for door in self._doors:
            door.cut()
        self._ending.clear()
        await self._while(lambda door: not door.empty, _UNWIND)

    async def _unless_ending(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._ending.wait()
        except TimeoutError:
            pass

    async def _while(self, condition: Callable[[Door], bool], seconds: float) -> None:
        """Wait while it holds for any door, and no longer than that."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while any(map(condition, self._doors)) and loop.time() < until and not self._ending.is_set():
            await self._unless_ending(_POLL)
