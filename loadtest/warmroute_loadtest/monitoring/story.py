"""What the picture shows: four workers under load, by round robin, then by their caches; one dies and returns."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryDirectory
from typing import NamedTuple

from ..ports import free_port
from ..processes import Processes, processes, url_in
from .prometheus import Prometheus, prometheus
from .traffic import Shape, chat_forever

WORKERS = 4
SHAPE = Shape(("llama",), chats=24, system_prompts=12, system_words=600, turns=6, pause=0.6, max_tokens=24)
_PACE = ("--model", "llama", "--blocks", "450", "--prefill-rate", "8000", "--tpot", "0.01", "--metrics", "sglang")


class Event(NamedTuple):
    when: float
    """Seconds since the epoch."""
    what: str


class Story(NamedTuple):
    start: float
    end: float
    events: list[Event]


async def told(read: Callable[[Prometheus, Story], Awaitable[None]]) -> None:
    """Lets it happen, in some three minutes, and has it read before everything ends."""
    async with AsyncExitStack() as stack:
        children = stack.enter_context(processes())
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="monitoring-")))
        port, metrics_port = free_port(), free_port()
        server = await stack.enter_async_context(prometheus(folder, [f"127.0.0.1:{metrics_port}"]))
        fleet = _Fleet(children, port, metrics_port)
        load = asyncio.create_task(chat_forever(f"http://127.0.0.1:{port}", SHAPE))
        try:
            story = await _happens(fleet)
            await read(server, story)
        finally:
            load.cancel()
            with suppress(asyncio.CancelledError):
                await load


async def _happens(fleet: "_Fleet") -> Story:
    start, events = time.time() + 12, []
    await fleet.route("round_robin")
    await asyncio.sleep(60)
    events.append(Event(time.time(), "round robin → cache aware"))
    await fleet.route("cache_aware")
    await asyncio.sleep(50)
    events.append(Event(time.time(), "one worker dies"))
    fleet.kill(2)
    await asyncio.sleep(25)
    events.append(Event(time.time(), "it is back"))
    fleet.start(2)
    await asyncio.sleep(45)
    return Story(start, time.time(), events)


class _Fleet:
    """The workers, all on one port, and the router in front of them."""

    def __init__(self, children: Processes, port: int, metrics_port: int) -> None:
        self._children = children
        self._ports = ("--port", str(port), "--prometheus-port", str(metrics_port))
        self._worker_port = 0
        self._workers: dict[int, Popen[str]] = {}
        self._urls = [self.start(number) for number in range(WORKERS)]
        self._router: Popen[str] | None = None

    def start(self, number: int) -> str:
        place = ("--host", f"127.0.0.{number + 2}", "--port", str(self._worker_port))
        process = self._workers[number] = self._children.spawn("warmroute_loadtest.mock_worker", *place, *_PACE)
        url = url_in(self._children.announcement(process))
        self._worker_port = int(url.rpartition(":")[2])
        return url

    def kill(self, number: int) -> None:
        self._workers[number].kill()

    async def route(self, policy: str) -> None:
        """By a new router, in the place of the one before."""
        if self._router is not None:
            await asyncio.to_thread(self._children.stop, [self._router])
        flags = ("--policy", policy, "--log-level", "error", "--worker-urls", *self._urls)
        self._router = self._children.spawn("warmroute_router", *self._ports, *flags)
        self._children.announcement(self._router)
