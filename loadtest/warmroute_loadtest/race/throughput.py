"""(a) Requests/s in a closed loop over a fixed number of connections, streamed and not, by the body's size.

The client speaks the protocol itself, and the mock workers answer at once. Where client and workers cannot keep a
router busy, its requests/s say little about it: so its CPU time for each request is measured too.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import httptools
import orjson

from ..processes import processes, url_in
from .contenders import DIRECT, PATHS, US, Lane, Setting, failures_told, lanes
from .results import Measure, Results, markdown_table, multiple, spread

PART = "throughput"
CONNECTIONS = 32
WORKERS = 2
SECONDS = 2.0
"""Of one measurement; a fourth of it before that to warm up."""


class Case(NamedTuple):
    name: str
    streamed: bool
    prompt_bytes: int


CASES = tuple(
    Case(f"{kind}, {size // 1000} KB", kind == "streamed", size)
    for size in (2_000, 30_000, 500_000)
    for kind in ("whole", "streamed")
)


async def race(setting: Setting, results: Results) -> None:
    with processes() as children:
        workers = [url_in(children.start("warmroute_loadtest.mock_worker")) for _ in range(WORKERS)]
        async with lanes(dict.fromkeys(setting.chosen(PATHS), workers), setting.cpus) as paths:
            for repetition in range(setting.repetitions):
                for case in CASES:
                    for path in paths:
                        if not results.has(PART, case.name, path.name, repetition):
                            with failures_told(path.name):
                                measured = await measure(path, case, SECONDS * setting.scale)
                                results.add(PART, case.name, path.name, measured)


async def measure(lane: Lane, case: Case, seconds: float) -> Measure:
    """`rate`: requests/s. `cpu`: microseconds of the router's time for each. `failed`: answers other than 200."""
    loop = asyncio.get_running_loop()
    host, port = address(lane.url)
    clients = [
        (await loop.create_connection(lambda n=n: _Client(chat(case, n)), host, port))[1]  # type: ignore[misc]
        for n in range(CONNECTIONS)
    ]
    await asyncio.sleep(seconds / 4)
    before, cpu = _counts(clients), lane.cpu_seconds
    started = loop.time()
    await asyncio.sleep(seconds)
    (good, failed), cpu, took = _counts(clients), lane.cpu_seconds - cpu, loop.time() - started
    for client in clients:
        client.stop()
    good -= before[0]
    spent = {"cpu": 1e6 * cpu / good} if cpu and good else {}
    return {"rate": good / took, "failed": failed - before[1], **spent}


def _counts(clients: Sequence["_Client"]) -> tuple[int, int]:
    return sum(client.good for client in clients), sum(client.failed for client in clients)


class _Client(asyncio.Protocol):
    """Sends the same request again as soon as its answer is complete."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._stopped = False
        self.good = 0
        self.failed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._next()

    def _next(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() == 200:
            self.good += 1
        else:
            self.failed += 1
        asyncio.get_running_loop().call_soon(self._next)

    def connection_lost(self, exc: Exception | None) -> None:
        self.failed += not self._stopped

    def stop(self) -> None:
        self._stopped = True
        self._transport.abort()


def address(url: str) -> tuple[str, int]:
    return cast(tuple[str, int], (urlsplit(url).hostname, urlsplit(url).port))


def chat(case: Case, number: int) -> bytes:
    text = f"conversation {number}: " + "some words of a prompt " * (case.prompt_bytes // 23)
    payload = {"stream": True} if case.streamed else {}
    return post(payload | {"model": "mock", "messages": [{"role": "user", "content": text}]})


def post(payload: object) -> bytes:
    body = orjson.dumps(payload)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: race\r\ncontent-type: application/json\r\n"
    return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)


def markdown(results: Results) -> str:
    """Requests/s and our multiple of each; then CPU time."""
    names = [name for name in (path.name for path in PATHS) if name in results.contenders(PART)]
    cases = results.cases(PART)
    rates = markdown_table(
        ["requests/s (least to most)", *names],
        [
            [case, *(spread(results.values(PART, case, name, "rate"), "{:,.0f}".format) for name in names)]
            for case in cases
        ],
    )
    others = [name for name in names if name != US]
    ratios = markdown_table(
        [f"{US} is so many times as fast as", *others],
        [[case, *(multiple(results.ratio(PART, case, name, "rate")) for name in others)] for case in cases],
    )
    routers = [name for name in names if name != DIRECT.name]
    cpu = markdown_table(
        ["CPU time of a request, µs", *routers],
        [
            [case, *(spread(results.values(PART, case, name, "cpu"), "{:,.0f}".format) for name in routers)]
            for case in cases
        ],
    )
    failed = [
        f"{name}: {sum(values):,.0f} in {case}"
        for case in cases
        for name in names
        if any(values := results.values(PART, case, name, "failed"))
    ]
    told = f"Answers other than 200, not counted above: {'; '.join(failed)}." if failed else "Every answer was a 200."
    return "\n\n".join([rates, ratios, cpu, told])
