"""Who takes part: paths from a client to workers, and ways to choose a worker."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import httpx

from ..bench.client import Unreachable
from ..rivals.balancers import HAPROXY, NGINX
from ..rivals.program import Program
from ..rivals.routers import SGLANG_ROUTER, SMG, VLLM_ROUTER, WARMROUTE, Router
from ..rivals.running import RunningRouter, StartError, running, until_listening, until_ready


class Contender(NamedTuple):
    name: str
    program: Program | None
    """None: the client asks a worker itself."""
    flags: tuple[str, ...] = ()

    @property
    def installed(self) -> bool:
        return self.program is None or self.program.installed


US = "warmroute"
"""Whom the others are compared with."""
DIRECT = Contender("direct", None)
PATHS = (DIRECT, *(Contender(it.name, it) for it in (HAPROXY, NGINX, WARMROUTE, SGLANG_ROUTER, SMG, VLLM_ROUTER)))
"""Each with its default flags."""
TUNED = ("--balance-abs-threshold", "8", "--balance-rel-threshold", "1.2")
"""Their defaults, 64 and 1.5, let a hot worker run 64 requests ahead before load counts."""
POLICIES = (
    Contender(WARMROUTE.name, WARMROUTE),
    Contender("round-robin", WARMROUTE, ("--policy", "round_robin")),
    Contender(HAPROXY.name, HAPROXY),
    *(Contender(it.name, it) for it in (SGLANG_ROUTER, SMG, VLLM_ROUTER)),
    *(Contender(f"{it.name}-tuned", it, TUNED) for it in (SGLANG_ROUTER, SMG, VLLM_ROUTER)),
)
NAMES = tuple(dict.fromkeys(each.name for each in (*PATHS, *POLICIES)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How this race is run."""

    only: Collection[str] = NAMES
    repetitions: int = 3
    scale: float = 1.0
    """Of every duration and every number of requests."""
    cpus: Collection[int] = ()
    """Those that a router is kept to; empty for all."""

    def chosen(self, contenders: Sequence[Contender]) -> list[Contender]:
        return [each for each in contenders if each.name in self.only and each.installed]


class Lane(NamedTuple):
    name: str
    url: str
    router: RunningRouter | None = None

    @property
    def cpu_seconds(self) -> float:
        return self.router.cpu_seconds if self.router and sys.platform == "linux" else 0.0


@contextmanager
def failures_told(name: str) -> Iterator[None]:
    """Whoever fails is told of, and the race goes on without that measurement."""
    try:
        yield
    except* (StartError, Unreachable, OSError) as failures:
        for failure in failures.exceptions:
            print(f"{name}: {failure or type(failure).__name__}", file=sys.stderr)


@contextmanager
def pinned() -> Iterator[Collection[int]]:
    """One core for the router; this process, and so the workers that it starts, keep to the others.

    Yields nothing, and does nothing, where there is one core only.
    """
    if sys.platform != "linux" or len(cpus := sorted(os.sched_getaffinity(0))) < 2:
        yield ()
        return
    os.sched_setaffinity(0, cpus[1:])
    try:
        yield cpus[:1]
    finally:
        os.sched_setaffinity(0, cpus)


@asynccontextmanager
async def lanes(placed: Mapping[Contender, Sequence[str]], cpus: Collection[int] = ()) -> AsyncIterator[list[Lane]]:
    """All of them at once, each in front of its workers. One that does not come up is told of and left out."""
    async with AsyncExitStack() as stack:
        async with asyncio.TaskGroup() as group:
            starting = [group.create_task(_start(stack, each, urls, cpus)) for each, urls in placed.items()]
        yield [lane for task in starting if (lane := task.result())]


async def _start(
    stack: AsyncExitStack, contender: Contender, workers: Sequence[str], cpus: Collection[int]
) -> Lane | None:
    if contender.program is None:
        return Lane(contender.name, workers[0])
    lane = None
    with failures_told(contender.name):
        router = await stack.enter_async_context(lane_router(contender, workers, cpus))
        lane = Lane(contender.name, router.url, router)
    return lane  # noqa: RET504 - the block may have ended early


@asynccontextmanager
async def lane_router(
    contender: Contender, workers: Sequence[str], cpus: Collection[int] = ()
) -> AsyncIterator[RunningRouter]:
    """A router that is ready for requests. Raises StartError."""
    assert contender.program is not None, "a direct connection has no router"
    async with running(contender.program, workers, *contender.flags, cpus=cpus) as router:
        await until_listening(router)
        if isinstance(contender.program, Router):
            async with httpx.AsyncClient(trust_env=False) as http:
                await until_ready(router, http, len(workers))
        yield router
