"""(b) What a router adds to a request's time, at fixed rates far below what it can do.

Open loop: requests come by a Poisson process, the same one for every path, whether or not others are answered yet;
every second one is streamed. The client speaks the protocol itself, and so adds little. A time counts from the moment
at which the request is written; how late that is against its arrival is measured beside it.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import httptools

from ..percentile import percentile
from ..processes import processes, url_in
from .contenders import DIRECT, PATHS, Lane, Setting, failures_told, lanes
from .results import Measure, Results, markdown_table, spread
from .throughput import WORKERS, Case, address, chat

PART = "latency"
SECONDS = {50: 12.0, 200: 6.0, 500: 4.0}
"""Of one measurement, for each rate in requests/s."""
REQUESTS = [chat(Case(kind, kind == "streamed", 2_000), 0) for kind in ("whole", "streamed")]
WARM_UP = 50
"""Requests before, of which most are at once: so there are connections enough for those that count."""
PATIENCE = 10.0
FIGURES = {
    "whole_end": "a whole answer's end",
    "stream_first": "a stream's first byte",
    "stream_end": "a stream's end",
}


async def race(setting: Setting, results: Results) -> None:
    with processes() as children:
        workers = [url_in(children.start("warmroute_loadtest.mock_worker")) for _ in range(WORKERS)]
        async with lanes(dict.fromkeys(setting.chosen(PATHS), workers), setting.cpus) as paths:
            for repetition in range(setting.repetitions):
                for rate, seconds in SECONDS.items():
                    for path in paths:
                        if not results.has(PART, _case(rate), path.name, repetition):
                            with failures_told(path.name):
                                measured = await measure(path, rate, seconds * setting.scale, seed=repetition)
                                results.add(PART, _case(rate), path.name, measured)


def _case(rate: int) -> str:
    return f"{rate} requests/s"


async def measure(lane: Lane, rate: float, seconds: float, seed: int) -> Measure:
    """Percentiles in milliseconds; `late`: how late requests were sent. `failed`: answers other than 200."""
    client = _Client(*address(lane.url))
    await asyncio.gather(*(client.ask(REQUESTS[number % 2]) for number in range(WARM_UP)))
    times = _Times()
    arrivals, due, started = random.Random(seed), 0.0, time.perf_counter()
    async with asyncio.timeout(seconds + PATIENCE), asyncio.TaskGroup() as group:
        for number in range(max(2, int(rate * seconds))):
            due += arrivals.expovariate(rate)
            await asyncio.sleep(started + due - time.perf_counter())
            times.late.append(time.perf_counter() - started - due)
            group.create_task(_note(client, number % 2 == 1, times))
    client.close()
    return times.measure()


@dataclass
class _Times:
    late: list[float] = field(default_factory=list)
    whole_end: list[float] = field(default_factory=list)
    stream_first: list[float] = field(default_factory=list)
    stream_end: list[float] = field(default_factory=list)
    failed: int = 0

    def measure(self) -> Measure:
        named = {"late": self.late} | {name: getattr(self, name) for name in FIGURES}
        return {"failed": self.failed} | {
            f"{name}_p{percent}": 1e3 * percentile(sorted(values), percent)
            for name, values in named.items()
            if values
            for percent in (50, 99)
        }


async def _note(client: "_Client", streamed: bool, times: _Times) -> None:
    connection = await client.ask(REQUESTS[streamed])
    if connection.status != 200:
        times.failed += 1
    elif streamed:
        times.stream_first.append(connection.first - connection.sent)
        times.stream_end.append(connection.end - connection.sent)
    else:
        times.whole_end.append(connection.end - connection.sent)


class _Client:
    """Asks over a kept connection, or over a new one where all are busy."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._idle: list[_Connection] = []

    async def ask(self, request: bytes) -> "_Connection":
        """The connection has the times of this exchange until the next one."""
        if self._idle:
            connection = self._idle.pop()
        else:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(_Connection, *self._address)
        await connection.ask(request)
        if connection.status:
            self._idle.append(connection)
        return connection

    def close(self) -> None:
        for connection in self._idle:
            connection.transport.abort()


class _Connection(asyncio.Protocol):
    """One exchange at a time. Times are of `time.perf_counter`: the loop's own clock goes in milliseconds."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    async def ask(self, request: bytes) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        """0: no whole answer came."""
        self.first = 0.0
        self.sent = time.perf_counter()
        self.transport.write(request)
        await self._done

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        del body
        self.first = self.first or time.perf_counter()

    def on_message_complete(self) -> None:
        self.end = time.perf_counter()
        self.status = self._parser.get_status_code()
        self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(None)


def markdown(results: Results) -> str:
    """What each adds to a direct connection's percentile in the same repetition, and that percentile itself."""
    names = [path.name for path in PATHS if path.name in results.contenders(PART) and path != DIRECT]
    headings = ["added, ms: p50 / p99", DIRECT.name + " itself", *names]
    rows = [
        [f"{case}, {shown}", _itself(results, case, figure), *(_added(results, case, name, figure) for name in names)]
        for case in results.cases(PART)
        for figure, shown in FIGURES.items()
    ]
    runs = [(case, name) for case in results.cases(PART) for name in names]
    late = max((late for run in runs for late in results.values(PART, *run, "late_p99")), default=0.0)
    failed = sum(sum(results.values(PART, *run, "failed")) for run in runs)
    told = f"Answers other than 200: {failed:,.0f}. 99 % of requests were sent within {late:.1f} ms of their time."
    return f"{markdown_table(headings, rows)}\n\n{told}"


def _itself(results: Results, case: str, figure: str) -> str:
    return _both([results.values(PART, case, DIRECT.name, f"{figure}_p{percent}") for percent in (50, 99)])


def _added(results: Results, case: str, name: str, figure: str) -> str:
    return _both([results.added(PART, case, name, DIRECT.name, f"{figure}_p{percent}") for percent in (50, 99)])


def _both(percentiles: Sequence[list[float]]) -> str:
    return " / ".join(spread(values, "{:.2f}".format) for values in percentiles)
