"""`make bench`: requests/s through the router against a direct connection, streamed and not, by body size.

Closed loop over a fixed number of connections, mock workers, everything on this machine. The paths are measured in
turns, since a machine's speed drifts; quote the ratios, not the absolute figures.
"""

import asyncio
import contextlib
import statistics
import sys
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import httptools
import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from .processes import processes, url_in

CONNECTIONS = 32
WORKERS = 2


class Case(NamedTuple):
    name: str
    streamed: bool
    prompt_bytes: int


CASES = (
    Case("whole, 2 KB", False, 2_000),
    Case("streamed, 2 KB", True, 2_000),
    Case("whole, 30 KB", False, 30_000),
    Case("streamed, 30 KB", True, 30_000),
    Case("whole, 500 KB", False, 500_000),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="proxy_bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median counts (default: %(default)s)")
    args = parser.parse_args(argv)
    with _running() as (worker, router):
        urls = {"direct": worker, "router": router}
        results: dict[tuple[str, str], list[float]] = defaultdict(list)
        for _ in range(args.rounds):
            for case in CASES:
                for path, url in urls.items():
                    results[case.name, path].append(uvloop.run(_measure(url, case, args.seconds)))
    _print_table({key: statistics.median(rates) for key, rates in results.items()})
    return 0


def _print_table(rates: dict[tuple[str, str], float]) -> None:
    table = Table(title=f"requests/s, {CONNECTIONS} connections, {WORKERS} mock workers")
    for heading in ("case", "direct", "router", "router / direct"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for case in CASES:
        direct, router = rates[case.name, "direct"], rates[case.name, "router"]
        table.add_row(case.name, f"{direct:,.0f}", f"{router:,.0f}", f"{router / direct:.2f}")
    Console().print(table)


@contextlib.contextmanager
def _running() -> Iterator[tuple[str, str]]:
    """The URLs of a mock worker and of the router in front of all of them."""
    with processes() as children:
        workers = [url_in(children.start("warmroute_loadtest.mock_worker")) for _ in range(WORKERS)]
        options = ("--port", "0", "--prometheus-port", "0", "--log-level", "warning", "--worker-urls", *workers)
        yield workers[0], url_in(children.start("warmroute_router", *options))


class _Client(asyncio.Protocol):
    """Sends the same request again as soon as its answer is complete."""

    def __init__(self, request: bytes, done: "asyncio.Future[None]") -> None:
        self._request = request
        self._done = done
        self.count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._next()

    def _next(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() != 200:
            self._done.set_exception(RuntimeError(f"status {self._parser.get_status_code()}"))
            self._transport.abort()
            return
        self.count += 1
        asyncio.get_running_loop().call_soon(self._next)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(RuntimeError(f"the connection broke: {exc}"))

    def stop(self) -> None:
        self._transport.abort()


async def _measure(url: str, case: Case, seconds: float) -> float:
    """Requests/s, over `seconds` after a warm-up of a fourth of that."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    host, port = cast(tuple[str, int], (urlsplit(url).hostname, urlsplit(url).port))
    clients = [
        (await loop.create_connection(lambda n=n: _Client(_request(case, n), done), host, port))[1]  # type: ignore[misc]
        for n in range(CONNECTIONS)
    ]
    await asyncio.sleep(seconds / 4)
    before = sum(client.count for client in clients)
    started = loop.time()
    await asyncio.wait([done], timeout=seconds)
    rate = (sum(client.count for client in clients) - before) / (loop.time() - started)
    if done.done():
        done.result()
    done.cancel()
    for client in clients:
        client.stop()
    return rate


def _request(case: Case, number: int) -> bytes:
    text = f"conversation {number}: " + "some words of a prompt " * (case.prompt_bytes // 23)
    payload = {"stream": True} if case.streamed else {}
    body = orjson.dumps(payload | {"model": "mock", "messages": [{"role": "user", "content": text}]})
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)


if __name__ == "__main__":
    sys.exit(main())
