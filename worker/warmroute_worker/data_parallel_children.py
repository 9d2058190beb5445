"""Workers and a router as processes that start in this order, end in the other, and all end when one does."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from .child_process import ONE_GROUP, clear_group, end_of, ending_with_us
from .listener import announce

PATIENCE = 30.0
"""Seconds that workers may take to end. How long the router may take for its streams, it knows itself."""

T = TypeVar("T")


class Order(NamedTuple):
    name: str
    arguments: tuple[str, ...]
    """Of `python -m`."""
    environment: dict[str, str]
    """Added to ours."""


class Stopped(Exception):  # noqa: N818
    """By a signal."""


class Child:
    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self.end = asyncio.create_task(self._end())

    @classmethod
    async def start(cls, order: Order) -> "Child":
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", *order.arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=os.environ | {ONE_GROUP: "1"} | order.environment,
            process_group=0,  # Ctrl-C is for us, who end them in order
            preexec_fn=ending_with_us(),
        )
        return cls(order.name, process)

    async def _end(self) -> int:
        """Wait for it. Gives the exit code, or the negative number of a signal."""
        code = await self._process.wait()
        await asyncio.to_thread(clear_group, self.pid)
        return code

    async def announcement(self) -> str:
        """The one line that it prints. Where it ends instead, `Children.during` is the one to notice."""
        assert self._process.stdout is not None, "stdout is a pipe"
        line = await self._process.stdout.readline()
        if not line:
            await asyncio.shield(self.end)
        return line.decode().strip()

    async def stop(self, patience: float | None) -> None:
        """In order; by force after these seconds."""
        if not self.end.done():
            with suppress(ProcessLookupError):
                self._process.terminate()
        await asyncio.wait([self.end], timeout=patience)
        self.kill()
        await self.end

    def kill(self) -> None:
        """It, and what it has started."""
        if not self.end.done():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


class ChildEnded(Exception):  # noqa: N818
    def __init__(self, child: Child) -> None:
        super().__init__(child.name)
        self.child = child


class Children:
    def __init__(self) -> None:
        self.all: list[Child] = []
        self._stopping = asyncio.Event()

    async def start(self, order: Order) -> Child:
        child = await Child.start(order)
        self.all.append(child)
        return child

    def stop(self) -> None:
        """Raises Stopped in `during`. Who is told twice ends at once."""
        if self._stopping.is_set():
            for child in self.all:
                child.kill()
        self._stopping.set()

    async def during(self, work: Awaitable[T]) -> T:
        """What the work gives. Raises Stopped or ChildEnded where that comes first."""
        task, stopping = asyncio.ensure_future(work), asyncio.create_task(self._stopping.wait())
        ends = [child.end for child in self.all]
        try:
            await asyncio.wait([task, stopping, *ends], return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                raise Stopped
            for child in self.all:
                if child.end.done():
                    raise ChildEnded(child)
            return task.result()
        finally:
            for each in (task, stopping):
                each.cancel()
            await asyncio.gather(task, stopping, return_exceptions=True)


async def run(workers: Sequence[Order], router: Order) -> int:
    """Gives the exit code: 0 where it was stopped; 1 where one of them ended, or what a worker said at its start."""
    children = Children()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, children.stop)
    started = False
    try:
        await _start(children, workers, router)
        started = True
        await children.during(asyncio.Event().wait())
    except Stopped:
        return 0
    except ChildEnded as failure:
        child, code = failure.child, failure.child.end.result()
        print(f"warmroute worker: {child.name} (pid {child.pid}) {end_of(code)}: all end", file=sys.stderr)
        return code if code > 0 and not started else 1
    finally:
        await _end(children.all[len(workers) :], None)
        await _end(children.all[: len(workers)], PATIENCE)
    raise AssertionError("it waits forever")


async def _start(children: Children, workers: Sequence[Order], router: Order) -> None:
    """Returns when the router answers, and has said where."""
    loading = [await children.start(order) for order in workers]
    lines = await children.during(asyncio.gather(*(child.announcement() for child in loading)))
    names, urls = zip(*(_parsed(line) for line in lines), strict=True)
    to_workers = router._replace(arguments=(*router.arguments, "--worker-urls", *urls))
    front = await children.start(to_workers)
    said = await children.during(front.announcement())
    # That of the router is `warmroute VERSION: URL, policy cache_aware, 2 workers; metrics on URL`.
    announce(names[0], said.partition(": ")[2])


async def _end(children: Sequence[Child], patience: float | None) -> None:
    await asyncio.gather(*(child.stop(patience) for child in children))


def _parsed(announcement: str) -> tuple[str, str]:
    """Name and URL from `warmroute worker: NAME on URL`."""
    name, _, url = announcement.removeprefix("warmroute worker: ").rpartition(" on ")
    return name, url
