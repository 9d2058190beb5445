"""What has to be done now and then beside the requests, in one task: sweep connections, let drained workers go."""

import asyncio
from collections.abc import Callable, Sequence

from .discovery.changes import Changes
from .fleet import State
from .routing import Routing

INTERVAL = 0.25
"""Seconds: how exact timeouts are."""
RELOAD_EVERY = 4
"""Rounds after which files are looked at."""


class Housekeeping:
    def __init__(self, routing: Routing, changes: Changes, reloads: Sequence[Callable[[], None]]) -> None:
        """`reloads`: each looks whether its file has changed."""
        self._routing = routing
        self._changes = changes
        self._reloads = reloads
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        assert self._task is not None, "not started"
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        rounds = 0
        while True:
            await asyncio.sleep(INTERVAL)
            self._routing.fleet.sweep(loop.time())
            self._changes.reload_if_changed()
            for worker in list(self._routing.fleet.workers):
                if worker.state is State.DRAINING and not worker.own_counts[0]:
                    self._routing.remove(worker)
            rounds += 1
            if rounds % RELOAD_EVERY == 0:
                for reload in self._reloads:
                    reload()
