"""`make bench-path`: CPU time of the router's data path for each request, without sockets and without a kernel.

Client and worker are transports in memory, in the router's own event loop, and answer in its next turn. What is left
is our own code, httptools, orjson and the loop, measured in CPU time: on a quiet machine it moves by a few percent
where requests/s move by a third. Compare two versions in turns all the same.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import uvloop
from rich.console import Console
from rich.table import Table
from warmroute_router.app import RouterApp
from warmroute_router.cli import OneLineParser
from warmroute_router.flags import parse_config
from warmroute_router.fleet import State
from warmroute_router.serving.clients import Clients
from warmroute_router.serving.http_protocol import HttpProtocol
from warmroute_router.upstream.connection import Connection
from warmroute_router.upstream.pool import Pool

from .race.throughput import Case, chat

CONNECTIONS = 32
WORKERS = 2
EVENTS = 16


REQUESTS = {
    Case("whole, 2 KB", False, 2_000): 10_000,
    Case("streamed, 2 KB", True, 2_000): 5_000,
    Case("whole, 30 KB", False, 30_000): 5_000,
    Case("whole, 500 KB", False, 500_000): 1_000,
}
"""Of one round, by case."""


class Wire(asyncio.Transport):
    """What is written to it goes to `heard`."""

    def __init__(self, heard: Callable[[bytes], None]) -> None:
        super().__init__({"socket": _NoSocket(), "peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self._heard = heard

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._heard(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def abort(self) -> None: ...


class _NoSocket:
    family = None

    def setsockopt(self, *_: object) -> None: ...


class Worker:
    """Its side of one connection."""

    def __init__(self, connection: Connection, pieces: Sequence[bytes]) -> None:
        self._connection = connection
        self._pieces = pieces
        self._loop = asyncio.get_running_loop()
        connection.connection_made(Wire(self._asked))

    def _asked(self, data: bytes) -> None:
        self._loop.call_soon(self._answer, 0)

    def _answer(self, place: int) -> None:
        self._connection.data_received(self._pieces[place])
        if place + 1 < len(self._pieces):
            self._loop.call_soon(self._answer, place + 1)


class Client:
    """Asks again as soon as it has its answer, until `rest` requests have been sent by all of them."""

    def __init__(self, protocol: HttpProtocol, request: bytes, round_: "Round") -> None:
        self._protocol = protocol
        self._request = request
        self._round = round_
        self._loop = asyncio.get_running_loop()
        protocol.connection_made(Wire(self._heard))

    def ask(self) -> None:
        self._loop.call_soon(self._protocol.data_received, self._request)

    def _heard(self, data: bytes) -> None:
        if data.endswith(_ENDS):
            self._round.answered(self)


class Round:
    def __init__(self) -> None:
        self._left = self._waiting = 0
        self._over = asyncio.get_running_loop().create_future()

    async def run(self, clients: Sequence[Client], requests: int) -> float:
        """CPU seconds of a request."""
        self._left, self._waiting = requests - len(clients), requests
        self._over = asyncio.get_running_loop().create_future()
        started = time.process_time()
        for client in clients:
            client.ask()
        await self._over
        return (time.process_time() - started) / requests

    def answered(self, client: Client) -> None:
        self._waiting -= 1
        if self._left:
            self._left -= 1
            client.ask()
        elif not self._waiting:
            self._over.set_result(None)


_ENDS = (b"}}", b"0\r\n\r\n")
"""Of a whole answer and of a stream."""
_USAGE = {"prompt_tokens": 512, "completion_tokens": EVENTS, "prompt_tokens_details": {"cached_tokens": 256}}


def _pieces(case: Case) -> list[bytes]:
    if not case.streamed:
        choice = {"index": 0, "message": {"role": "assistant", "content": "word " * EVENTS}, "finish_reason": "stop"}
        body = orjson.dumps({"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], "usage": _USAGE})
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        return [head + body]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    said = _event({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": "word "}}]})
    end = _event({"id": "chatcmpl-1", "choices": [], "usage": _USAGE}) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
    return [head + said, *[said] * (EVENTS - 1), end]


def _event(payload: object) -> bytes:
    data = b"data: " + orjson.dumps(payload) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


async def measure(case: Case, rounds: int, requests: int | None = None) -> float:
    """CPU seconds of a request: the least of the rounds, since all that disturbs makes it more."""
    urls = [f"http://127.0.0.1:{port}" for port in range(1, WORKERS + 1)]
    app = RouterApp(parse_config(["--worker-urls", *urls, "--log-level", "error"]))
    pieces = _pieces(case)
    for worker in app.fleet.workers:
        worker.state = State.READY
        _in_memory(worker.pool, pieces)
    clients = Clients(app)
    loop, round_ = asyncio.get_running_loop(), Round()
    asking = [Client(HttpProtocol(clients, loop), chat(case, n), round_) for n in range(CONNECTIONS)]
    times = [await round_.run(asking, requests or REQUESTS[case]) for _ in range(rounds)]
    for connection in list(clients.connections):
        connection.connection_lost(None)
    return min(times)


def _in_memory(pool: Pool, pieces: Sequence[bytes]) -> None:
    async def connect() -> Connection:
        connection = Connection(asyncio.get_running_loop())
        Worker(connection, pieces)
        return connection

    unbound: Any = pool
    unbound._connect = connect


def main(argv: Sequence[str] | None = None) -> int:
    parser = OneLineParser(prog="path_bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of which the least counts (default: %(default)s)")
    args = parser.parse_args(argv)
    if args.rounds < 1:
        parser.error("argument --rounds: must be at least 1")
    table = Table(title=f"CPU time of a request, {CONNECTIONS} connections, {WORKERS} workers")
    table.add_column("case")
    table.add_column("µs", justify="right")
    for case in REQUESTS:
        table.add_row(case.name, f"{1e6 * uvloop.run(measure(case, args.rounds)):.1f}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
