"""One seed: the workers have their troubles, clients ask and misbehave, and everything is judged."""

import asyncio
import random
from collections import defaultdict
from contextlib import AsyncExitStack, suppress
from typing import NamedTuple

from .clients import GoodClient
from .fault_worker import FaultWorker
from .faults import GOOD, Fault
from .invariants import check_memory, check_rest
from .judge import judge
from .record import Record
from .router_process import RouterProcess, running_router
from .rude_clients import MISDEEDS
from .schedule import Misdeed, Schedule, Trouble, make_call, make_schedule

_MISDEEDS_PER_SECOND = 6.0
_LONGEST = 30.0
"""Seconds after which a client that stays leaves, so that a long run has no more of them than a short one."""
_SAMPLE = 1.0
"""Seconds between two looks at the router's memory."""


class Options(NamedTuple):
    seconds: float = 60.0
    workers: int = 4
    clients: int = 32
    processes: int = 1


async def run_seed(seed: int, options: Options) -> Record:
    schedule = make_schedule(seed, options.seconds, options.workers, sorted(MISDEEDS), _MISDEEDS_PER_SECOND)
    met: defaultdict[str, list[Fault]] = defaultdict(list)

    def note(token: str, fault: Fault) -> None:
        met[token].append(fault)

    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(FaultWorker(f"w{number}", journal=note))
            for number in range(options.workers)
        ]
        urls = [worker.url for worker in workers]
        router = await stack.enter_async_context(running_router(urls, options.processes))
        run = _Run(schedule, workers, router, met)
        await run.run(options.clients)
        return run.record


class _Run:
    def __init__(
        self, schedule: Schedule, workers: list[FaultWorker], router: RouterProcess, met: dict[str, list[Fault]]
    ) -> None:
        self.record = Record(schedule.seed)
        self._schedule = schedule
        self._workers = workers
        self._router = router
        self._met = met
        """The faults that each request met, by token."""
        self._loop = asyncio.get_running_loop()

    async def run(self, clients: int) -> None:
        self.record.tasks = await self._router.tasks()
        self.record.footprints.append(self._router.footprint())
        self._begun = self._loop.time()
        misdeeds = [asyncio.create_task(self._misbehave(misdeed)) for misdeed in self._schedule.misdeeds]
        sampling = asyncio.create_task(self._sample())
        try:
            await asyncio.gather(
                *(self._have_troubles(index) for index in range(len(self._workers))),
                *(self._ask(number) for number in range(clients)),
            )
        finally:
            for task in (sampling, *misdeeds):
                task.cancel()
            ends = await asyncio.gather(sampling, *misdeeds, return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
                raise end
        check_memory(self.record)
        await check_rest(self.record, self._router, self._workers)

    async def _until(self, at: float) -> None:
        await asyncio.sleep(self._begun + at - self._loop.time())

    async def _have_troubles(self, index: int) -> None:
        for trouble in self._schedule.troubles:
            if trouble.worker == index:
                await self._until(trouble.start)
                await self._have(trouble, self._workers[index])

    async def _have(self, trouble: Trouble, worker: FaultWorker) -> None:
        if trouble.killed:
            worker.stop()
        worker.fault, worker.health = trouble.fault, trouble.health
        await self._until(trouble.end)
        worker.fault, worker.health = GOOD, "up"
        if trouble.killed:
            await worker.restart()

    async def _ask(self, number: int) -> None:
        rng = random.Random(f"{self._schedule.seed}/{number}")
        client, count = GoodClient(self._router.port), 0
        try:
            while self._loop.time() < self._begun + self._schedule.seconds:
                count += 1
                call = make_call(rng, f"c{number}-{count}")
                await asyncio.sleep(call.pause)
                result = await client.ask(call)
                start, end = result.started - self._begun, result.ended - self._begun
                met = self._met.pop(call.token, [])
                well = self._schedule.healthy_throughout(start, end, len(self._workers))
                self.record.note(result, judge(result, met, worker_was_well=well), met, start)
        finally:
            client.close()

    async def _misbehave(self, misdeed: Misdeed) -> None:
        await self._until(misdeed.at)
        self.record.misdeeds += 1
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(_LONGEST):
                wrong = await MISDEEDS[misdeed.name](self._router.port, misdeed.call)
            if wrong is not None:
                self.record.complaints.append(wrong)

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(_SAMPLE)
            self.record.footprints.append(self._router.footprint())
