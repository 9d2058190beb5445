"""Fresh workers and a fresh router for one scenario, and all of it gone afterwards."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx

from ..chaos.faults import Fault
from ..rivals.routers import Router
from ..rivals.running import RunningRouter, running, until_listening, until_ready
from .client import Client
from .workers import Worker

_NO_REUSE = httpx.Limits(max_connections=None, max_keepalive_connections=0)


@dataclass
class Stage:
    workers: list[Worker]
    router: RunningRouter
    client: Client

    @property
    def prompts(self) -> list[int]:
        """How many each worker has had, for tables that show how they were spread."""
        return [worker.prompts for worker in self.workers]

    @property
    def aborted(self) -> int:
        return sum(worker.aborted for worker in self.workers)

    async def favourite(self) -> Worker:
        """After a few requests, the worker that got most of them: a fault elsewhere might never be met."""
        await self.client.ask_in_turn(8)
        return self.busiest

    @property
    def busiest(self) -> Worker:
        return max(self.workers, key=lambda worker: worker.prompts)

    def all_have(self, fault: Fault) -> None:
        for worker in self.workers:
            worker.fault = fault

    async def until_served(self, patience: float) -> float | None:
        """Seconds until a request is answered well; None where none is within `patience`."""
        started = time.monotonic()
        while time.monotonic() - started < patience:
            if (await self.client.ask(patience=5)).right:
                return time.monotonic() - started
            await asyncio.sleep(0.25)
        return None


@asynccontextmanager
async def stage(
    router: Router,
    *flags: str,
    workers: int = 2,
    down: Sequence[int] = (),
    key: str | None = None,
    worker_key: str | None = None,
) -> AsyncIterator[Stage]:
    """`down`: the numbers of those that are not up when the router starts. `key`: what clients show to the router.

    `worker_key`: what the workers want to be shown.
    """
    async with AsyncExitStack() as stack:
        fleet = [Worker(f"w{number}") for number in range(workers)]
        for number, worker in enumerate(fleet):
            worker.api_key = worker_key
            await stack.enter_async_context(worker)
            if number in down:
                worker.stop()
        shown = {"authorization": f"Bearer {key}"} if key else None
        http = httpx.AsyncClient(trust_env=False, timeout=None, limits=_NO_REUSE, headers=shown)
        await stack.enter_async_context(http)
        process = await stack.enter_async_context(running(router, [worker.url for worker in fleet], *flags))
        await until_listening(process)
        if len(down) < workers:
            await until_ready(process, http, workers - len(down))
        yield Stage(fleet, process, Client(http, process))


async def time_until(condition: Callable[[], bool], patience: float) -> float | None:
    """Seconds until it holds; None where it does not within `patience`."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > patience:
            return None
        await asyncio.sleep(0.01)
    return time.monotonic() - started


def shown_seconds(seconds: float | None, patience: float) -> str:
    return f"not within {patience:g} s" if seconds is None else f"after {seconds:.1f} s"


def megabytes(count: int) -> str:
    return f"{max(count, 0) / 1e6:.0f} MB"
