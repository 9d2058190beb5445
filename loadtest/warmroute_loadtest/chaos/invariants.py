"""What must be true of the router when everything is over: nothing is left behind, and everything works."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise

import httpx

from .clients import GoodClient, Outcome, Result
from .fault_worker import FaultWorker
from .record import Record
from .router_process import RouterProcess
from .schedule import RECOVERY, make_call

MOST_GROWTH = 20 << 20
"""Bytes by which the second half of a run may make the router larger, bit by bit."""
_STEADY = 50
"""Seconds that a run must take for that: clients that stay, stay for 30 s, so before that there are ever more."""
_PATIENCE = 20.0
"""Seconds in which it has to come to rest: idle connections are kept for 4 s, an open breaker heals in 1 s."""
_LOOK = 0.25
_BATCH = 100
_AT_A_TIME = 10

_LEFT_OVER = (
    "warmroute_in_flight_requests",
    "warmroute_waiting_tokens",
    "warmroute_queued_requests",
    "warmroute_admitted_requests",
    "warmroute_held_body_bytes",
)
_WELL = ("warmroute_worker_up", "warmroute_breaker_closed")

Check = Callable[[], Awaitable[str]]
"""Returns what is not yet as it must be."""


def check_memory(record: Record) -> None:
    """A leak grows all the time. A step is no leak: the allocator keeps what many huge answers at once have taken."""
    sizes = [footprint.rss for footprint in record.footprints]
    half = sizes[len(sizes) // 2 :]
    if len(sizes) < _STEADY:
        return
    growth = half[-1] - half[0]
    points = [half[(len(half) - 1) * quarter // 4] for quarter in range(5)]
    steady = all(later - earlier > growth / 16 for earlier, later in pairwise(points))
    if growth > MOST_GROWTH and steady:
        record.complaints.append(f"the router grew by {growth / 2**20:.0f} MB in the second half of the run")


async def check_rest(record: Record, router: RouterProcess, workers: list[FaultWorker]) -> None:
    if not router.running:
        record.complaints.append("the router has ended")
        return
    await _come_true(record, lambda: _not_up(router, len(workers)))
    await asyncio.sleep(RECOVERY)  # breakers close by requests alone, and no sooner than this
    record.complaints += _judge_batch(await _final_batch(router), {worker.name for worker in workers})
    await _come_true(record, lambda: _not_at_rest(router, workers))
    await _come_true(record, lambda: _not_given_back(record, router, len(workers)))
    record.retries = sum((await router.metrics()).get("warmroute_retries_total", {}).values())


async def _come_true(record: Record, check: Check) -> None:
    """Looks until nothing is in the way any more, or complains."""
    deadline = asyncio.get_running_loop().time() + _PATIENCE
    while complaint := await check():
        if asyncio.get_running_loop().time() > deadline:
            record.complaints.append(f"{_PATIENCE:.0f} s after everything was over: {complaint}")
            return
        await asyncio.sleep(_LOOK)


async def _not_up(router: RouterProcess, workers: int) -> str:
    try:
        values = (await router.metrics())["warmroute_worker_up"]
    except httpx.HTTPError as error:
        return f"no metrics: {error!r}"
    up = sum(1 for value in values.values() if value)
    return "" if up == workers else f"{up} of {workers} workers are ready"


async def _final_batch(router: RouterProcess) -> list[Result]:
    """Distinct prompts, so that they go everywhere."""
    rng = random.Random(0)
    calls = [replace(make_call(rng, f"final-{number}"), prompt=1000 + number) for number in range(_BATCH)]

    async def ask(share: int) -> list[Result]:
        client = GoodClient(router.port)
        results = [await client.ask(call) for call in calls[share::_AT_A_TIME]]
        client.close()
        return results

    return [result for share in await asyncio.gather(*map(ask, range(_AT_A_TIME))) for result in share]


def _judge_batch(results: list[Result], workers: set[str]) -> list[str]:
    bad = [result for result in results if result.outcome is not Outcome.ANSWERED]
    complaints = [f"{len(bad)} of the last {_BATCH} requests failed, the first one so: {bad[0]}"] if bad else []
    missing = workers - {result.worker for result in results}
    if missing:
        complaints.append(f"none of the last {_BATCH} requests reached {', '.join(sorted(missing))}")
    return complaints


async def _not_at_rest(router: RouterProcess, workers: list[FaultWorker]) -> str:
    metrics = await router.metrics()
    left = [f"{name} {values}" for name in _LEFT_OVER if any((values := metrics.get(name, {})).values())]
    ill = [f"{name} {values}" for name in _WELL if not all((values := metrics.get(name, {})).values())]
    busy = [f"{worker.name} still has {worker.concurrent} requests" for worker in workers if worker.concurrent]
    return "; ".join([*left, *ill, *busy])


async def _not_given_back(record: Record, router: RouterProcess, workers: int) -> str:
    """Descriptors as at the start, and one connection to each worker for its probes; as many threads and tasks."""
    before, now = record.footprints[0], router.footprint()
    if now.descriptors > before.descriptors + workers:
        return f"the router has {now.descriptors} open file descriptors; at the start it had {before.descriptors}"
    if now.threads != before.threads:
        return f"the router has {now.threads} threads; at the start it had {before.threads}"
    if (tasks := await router.tasks()) > record.tasks:
        return f"the router has {tasks:.0f} tasks; at the start it had {record.tasks:.0f}"
    return ""
