"""Probes: which workers are up. Off the hot path, and blind to load."""

import asyncio
import logging
import random
import time

import httpx

from .blocks import BLOCK_TOKENS
from .engine import ask_engine
from .fleet import State, Worker
from .routing import Routing

logger = logging.getLogger(__name__)

INTERVAL = 5.0
"""Seconds between two probes of a worker that is ready."""
RETRY_INTERVAL = 1.0
"""Seconds between two probes of one that is not."""
TIMEOUT = 5.0
FAILURES = 3
"""Failed probes in a row that make a ready worker unhealthy. A refused connection is told by the proxy itself."""
ASK_EVERY = 12
"""Probes of a ready worker after which its engine is asked again, once a minute: it may have restarted in between."""
FIRST_ROUND = 1.0
"""Seconds that the start waits for the first probes, so that the first request finds its worker."""


class HealthProbes:
    def __init__(self, routing: Routing, client: httpx.AsyncClient) -> None:
        self._routing = routing
        self._client = client
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        workers = self._routing.fleet.workers
        first = [asyncio.Event() for _ in workers]
        self._tasks = [
            asyncio.create_task(self._watch(worker, probed)) for worker, probed in zip(workers, first, strict=True)
        ]
        waits = [asyncio.create_task(probed.wait()) for probed in first]
        _, late = await asyncio.wait(waits, timeout=FIRST_ROUND)
        for wait in late:
            wait.cancel()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(self, worker: Worker, probed: asyncio.Event) -> None:
        failures, unasked = 0, 0
        while True:
            alive = await self._probe(worker)
            unasked += 1
            worker.retention.expire(time.monotonic())
            self._routing.fleet.compare_speeds()
            if alive and (failures or worker.state is not State.READY or unasked >= ASK_EVERY):
                await self._ask(worker)
                unasked = 0
            failures = 0 if alive else failures + 1
            if alive and worker.state is not State.READY:
                logger.info("worker %s is ready (was %s)", worker.url, worker.state)
                worker.state = State.READY
            elif failures >= FAILURES and worker.state is State.READY:
                logger.warning("worker %s is unhealthy: %d probes failed", worker.url, failures)
                worker.state = State.UNHEALTHY
            probed.set()
            interval = INTERVAL if worker.state is State.READY else RETRY_INTERVAL
            # Jitter, so that many routers do not probe one worker in step.
            await asyncio.sleep(interval * random.uniform(0.8, 1.2))

    async def _ask(self, worker: Worker) -> None:
        capacity, started = await ask_engine(self._client, worker.url)
        if started is not None:
            # Only later is a restart: behind one URL may be several processes, and any of them answers.
            if worker.started is not None and started > worker.started:
                logger.info("worker %s has restarted: its cache is empty", worker.url)
                self._routing.forget(worker)
            worker.started = max(started, worker.started or started)
        if capacity is not None:
            worker.retention.start_at(capacity / BLOCK_TOKENS)

    async def _probe(self, worker: Worker) -> bool:
        """Whatever answers without a server error is up: not every engine has a `/health`."""
        try:
            response = await self._client.get(f"{worker.url}/health", timeout=TIMEOUT)
        except httpx.HTTPError as error:
            if _refused(error) and self._routing.tree.held[worker.index]:
                self._routing.forget(worker)  # there is no process, and so no cache
            return False
        return response.status_code < 500


def _refused(error: BaseException | None) -> bool:
    """Whether nobody listens there, by what is behind the client's own error."""
    while error is not None:
        if isinstance(error, ConnectionRefusedError):
            return True
        if isinstance(error, BaseExceptionGroup):
            return any(_refused(each) for each in error.exceptions)
        error = error.__cause__ or error.__context__
    return False
