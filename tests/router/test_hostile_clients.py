"""Clients that are slow, endless, ambiguous or gone, as bytes on a socket: what they get, what a worker sees."""

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson
import pytest
from support.peer import STREAM_HEAD, Handler, Peer, PeerConnection, answering, chunk, response
from support.router import CONFIG, RunningRouter, running_router, until
from warmroute_router.serving.clients import Clients
from warmroute_router.serving.http_head import MAX_HEAD, MAX_HEADERS, MAX_TARGET
from warmroute_router.serving.http_protocol import MAX_PIPELINED, HttpProtocol
from warmroute_router.types import ASGIApp, Receive, Scope, Send

pytestmark = pytest.mark.anyio

OK = answering(response(b"{}"))
GET = b"GET /x HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /x HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
CLOSE = b"Connection: close\r\n\r\n"


HASTY = {"head_timeout": 0.5, "body_timeout": 0.5, "linger_pause": 0.1}


class Hostile:
    """A router with one worker, and what its clients' connections are."""

    def __init__(self, peer: Peer, router: RunningRouter, connections: list[HttpProtocol]) -> None:
        self.peer = peer
        self.router = router
        self.connections = connections
        self._tasks = asyncio.all_tasks()

    async def send(self, *pieces: bytes) -> bytes:
        """Sends each piece on its own, and reads until the router closes."""
        async with self.connected() as (reader, writer):
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.005 if len(pieces) > 1 else 0)
            return await reader.read(-1)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.router.port)
        try:
            async with asyncio.timeout(20):
                yield reader, writer
        finally:
            writer.transport.abort()

    @property
    def seen(self) -> list[PeerConnection]:
        """What clients have sent; the router's own requests name nobody that they are for."""
        return [seen for seen in self.peer.seen if seen.header(b"x-forwarded-for") is not None]

    def _tasks_left(self) -> list[str]:
        """The worker's own are not the router's fault."""
        tasks = asyncio.all_tasks() - self._tasks
        return [str(task) for task in tasks if "Peer._accept" not in str(task)]

    async def assert_idle(self) -> None:
        """No client is connected any more, and of none is anything left: no load, no task, no timer."""
        await until(lambda: all(connection._transport.is_closing() for connection in self.connections))
        await until(lambda: not self._tasks_left())
        await until(lambda: all(not worker.in_flight for worker in self.router.app.fleet.workers))
        self.router.assert_idle()
        for connection in self.connections:
            assert connection._clock is None


@asynccontextmanager
async def hostile(
    handler: Handler = OK, limits: Mapping[str, Any] = {}, path: str = "", **changes: Any
) -> AsyncIterator[Hostile]:
    """`limits`: attributes of HttpProtocol; `path`: of the worker's URL; `changes`: to the configuration."""
    made: list[HttpProtocol] = []
    connection_made = HttpProtocol.connection_made

    def watched(self: HttpProtocol, transport: asyncio.BaseTransport) -> None:
        made.append(self)
        connection_made(self, transport)

    with patch.multiple(HttpProtocol, connection_made=watched, **limits):
        async with (
            Peer(handler).listening() as peer,
            running_router(peer.url + path, config=replace(CONFIG, **changes)) as router,
        ):
            running = Hostile(peer, router, made)
            yield running
            await running.assert_idle()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def assert_refused(answer: bytes, expected: int, code: str, case: bytes = b"") -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert (status(answer), orjson.loads(body)["error"]["code"]) == (expected, code), (case, answer[:500])
    lines = head.lower().split(b"\r\n")
    assert b"connection: close" in lines
    assert b"content-length: %d" % len(body) in lines
    assert set(orjson.loads(body)["error"]) == {"message", "type", "param", "code"}


# Limits


@pytest.mark.parametrize("pieces", [1, 3], ids=["at-once", "in-pieces"])
async def test_a_target_may_be_8_kib_long_and_no_longer(pieces: int) -> None:
    async with hostile() as router:
        for length, expected in ((MAX_TARGET, 200), (MAX_TARGET + 1, 414)):
            request = b"GET /" + b"a" * (length - 1) + b" HTTP/1.1\r\nHost: x\r\n" + CLOSE
            answer = await router.send(*cut(request, pieces))
            assert status(answer) == expected
        assert_refused(answer, 414, "target_too_long")
        assert router.router.app.proxy.refused == {414: 1}
        assert len(router.seen) == 1


@pytest.mark.parametrize("pieces", [1, 3], ids=["at-once", "in-pieces"])
async def test_a_head_may_have_64_kib_and_256_headers_and_no_more(pieces: int) -> None:
    async with hostile() as router:
        for length, expected in ((MAX_HEAD - 1000, 200), (MAX_HEAD + 1, 431)):
            answer = await router.send(*cut(GET + b"X-Long: " + b"a" * length + b"\r\n" + CLOSE, pieces))
            assert status(answer) == expected
        assert_refused(answer, 431, "headers_too_large")
        for more, expected in ((MAX_HEADERS - 2, 200), (MAX_HEADERS - 1, 431)):
            answer = await router.send(*cut(GET + b"X-A: b\r\n" * more + CLOSE, pieces))
            assert status(answer) == expected
        assert_refused(answer, 431, "headers_too_large")
        assert len(router.seen) == 2


@pytest.mark.parametrize(
    ("start", "expected"),
    [(b"GET /", 414), (GET + b"X-Long: ", 431), (GET + b"X-Long", 431), (GET + b"A: ", 431)],
    ids=["target", "value", "name", "headers"],
)
async def test_a_head_that_never_ends_is_cut_off(start: bytes, expected: int) -> None:
    filler = b"b\r\nA: " * 1000 if start.endswith(b"A: ") else b"a" * 5000
    async with hostile() as router:
        answer = await router.send(start, *[filler] * 20)
        assert status(answer) == expected
        assert router.seen == []


async def test_a_large_body_in_the_same_read_does_not_count_as_head() -> None:
    body = b"a" * 200_000
    async with hostile() as router:
        async with router.connected() as (reader, writer):
            for _ in range(2):
                writer.write(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            writer.write(GET + CLOSE)
            answers = await reader.read(-1)
        assert answers.count(b"HTTP/1.1 200 OK") == 3
        assert [len(seen.body) for seen in router.seen] == [200_000, 200_000, 0]


async def test_whole_heads_in_the_same_read_do_not_count_as_the_next_one() -> None:
    long = GET + b"X-Long: " + b"a" * 40_000 + b"\r\n\r\n"
    async with hostile() as router, router.connected() as (reader, writer):
        writer.write(long + long + GET)
        await until(lambda: len(router.seen) == 2)
        writer.write(CLOSE)
        assert (await reader.read(-1)).count(b"HTTP/1.1 200 OK") == 3


@pytest.mark.parametrize(
    "filler", [b"X-T: " + b"t" * 5000, b"t" * 5000, b"X-T: t\r\n"], ids=["trailer", "extension", "trailers"]
)
async def test_a_chunked_body_that_goes_on_without_data_is_cut_off(filler: bytes) -> None:
    start = b"5;" if filler.startswith(b"t") else b"5\r\nhello\r\n0\r\n"
    async with hostile() as router:
        answer = await router.send(CHUNKED + start, *[filler] * (300 if len(filler) < 10 else 30))
        assert_refused(answer, 431, "headers_too_large")
        assert router.seen == []


async def test_small_chunks_are_no_overhead() -> None:
    body = b"1\r\na\r\n" * 60_000 + b"0\r\n\r\n"
    async with hostile() as router:
        answer = await router.send(POST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n", *cut(body, 4))
        assert status(answer) == 200
        assert router.seen[0].body == b"a" * 60_000


def cut(data: bytes, pieces: int) -> list[bytes]:
    size = -(-len(data) // pieces)
    return [data[start : start + size] for start in range(0, len(data), size)]


# Slow clients


async def test_a_connection_on_which_nothing_comes_is_closed() -> None:
    async with hostile(limits=HASTY) as router:
        assert await router.send() == b""


@pytest.mark.parametrize(
    "part", [b"\r\n", b"G", GET, GET + b"X-A", GET + b"X-A: b\r\n\r"], ids=["blank", "letter", "line", "name", "end"]
)
async def test_a_head_that_is_not_whole_in_time_gets_a_408(part: bytes) -> None:
    async with hostile(limits=HASTY) as router:
        answer = await router.send(part)
        if part == b"\r\n":
            assert answer == b"", "no request has begun"
        else:
            assert_refused(answer, 408, "request_timeout")
        assert router.seen == []


async def test_a_second_head_has_its_time_too() -> None:
    async with hostile(limits=HASTY) as router, router.connected() as (reader, writer):
        writer.write(GET + b"\r\n")
        first = await reader.readuntil(b"{}")
        writer.write(b"\r\n" + GET)
        answer = await reader.read(-1)
        assert status(first) == 200
        assert_refused(answer, 408, "request_timeout")
        assert len(router.seen) == 1


async def test_blank_lines_do_not_keep_a_connection_open() -> None:
    async with hostile(limits=HASTY) as router, router.connected() as (reader, writer):
        writer.write(GET + b"\r\n")
        await reader.readuntil(b"{}")
        reading = asyncio.create_task(reader.read(-1))
        for _ in range(100):
            writer.write(b"\r\n")
            await asyncio.sleep(0.02)
            if reading.done():
                break
        assert reading.done()
        assert_refused(reading.result(), 408, "request_timeout")


@pytest.mark.parametrize("start", [POST + b"Content-Length: 9\r\n\r\n", CHUNKED], ids=["length", "chunked"])
async def test_a_body_that_is_too_slow_gets_a_408_and_counts_as_a_client_that_left(start: bytes) -> None:
    limits = HASTY | {"linger_pause": 60}
    async with hostile(limits=limits) as router, router.connected() as (reader, writer):
        writer.write(start + b"5\r\n")
        assert_refused(await reader.read(-1), 408, "request_timeout")
        assert router.seen == []
        # At once: the connection still lingers.
        await until(lambda: router.router.app.proxy.refused[499] == 1)


async def test_each_byte_of_a_body_buys_time() -> None:
    async with hostile(limits=HASTY | {"body_rate": 4}) as router, router.connected() as (reader, writer):
        writer.write(POST + b"Content-Length: 12\r\n\r\n" + b"a" * 10)
        await asyncio.sleep(1.0)  # 0.5 s for nothing, 2.5 s for ten bytes
        writer.write(b"aa")
        assert status(await reader.readuntil(b"{}")) == 200
        assert router.seen[0].body == b"a" * 12


async def test_no_deadline_runs_while_an_answer_does() -> None:
    release = asyncio.Event()

    async def slow(connection: PeerConnection) -> None:
        await connection.send(STREAM_HEAD + chunk(b"a"))
        await release.wait()
        await connection.send(chunk(b"b") + chunk(b""))

    async with hostile(slow, limits={"body_timeout": 1.0}) as router, router.connected() as (reader, writer):
        writer.write(GET + b"\r\n" + POST + b"Content-Length: 9\r\n\r\n123")
        await reader.readuntil(b"\r\n\r\n1\r\na\r\n")
        await asyncio.sleep(1.5)
        release.set()
        answer = await reader.readuntil(b"0\r\n\r\n")
        writer.write(b"456789")
        answer = await reader.readuntil(b"0\r\n\r\n")
        assert status(answer) == 200
        assert [seen.body for seen in router.seen] == [b"", b"123456789"]


async def test_a_request_that_waited_for_its_turn_has_its_time_from_then_on() -> None:
    async with hostile(limits=HASTY) as router:
        answer = await router.send(GET + b"\r\n" + POST + b"Content-Length: 9\r\n\r\n123")
        first, _, second = answer.partition(b"{}")
        assert status(first) == 200
        assert_refused(second, 408, "request_timeout")
        assert len(router.seen) == 1


async def test_a_head_begun_during_an_answer_has_its_time_from_the_answers_end_on() -> None:
    async with hostile(limits=HASTY) as router:
        answer = await router.send(GET + b"\r\n" + GET)
        first, _, second = answer.partition(b"{}")
        assert status(first) == 200
        assert_refused(second, 408, "request_timeout")


async def test_a_body_that_trickles_on_after_its_answer_ends_the_connection() -> None:
    async with hostile(limits=HASTY | {"linger_timeout": 0.2}) as router, router.connected() as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n")
        assert status(await reader.readuntil(b"}")) == 200
        assert await reader.read(-1) == b"", "no second answer to one request"


async def test_a_request_one_byte_at_a_time_is_a_request() -> None:
    request = POST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    async with hostile() as router, router.connected() as (reader, writer):
        for byte in request:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.001)
        assert status(await reader.read(-1)) == 200
        assert router.seen[0].body == b"hello"


# Invalid and ambiguous messages


AMBIGUOUS = [
    b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    b"Content-Length: 5\r\nContent-Length: 6\r\n",
    b"Content-Length: 5\r\nContent-Length: 5\r\n",
    b"Content-Length: +5\r\n",
    b"Content-Length: -5\r\n",
    b"Content-Length: 5, 5\r\n",
    b"Content-Length: 0x5\r\n",
    b"Content-Length:\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Content-Length : 5\r\n",
    b"Transfer-Encoding: chunked, identity\r\n",
    b"Transfer-Encoding: xchunked\r\n",
    b"Transfer-Encoding: chunkedx\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"Transfer-Encoding: , chunked\r\n",
    b"Transfer-Encoding: identity\r\n",
    b'Transfer-Encoding: "chunked"\r\n',
    b"Transfer-Encoding: chunked;q=1\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding:\x0bchunked\r\n",
    b"Transfer-Encoding : chunked\r\n",
    b"Transfer-Encoding:\r\n chunked\r\n",
    b"X-A: b\r\n folded\r\n",
    b" X-A: b\r\n",
    b"X-A: b\rX-B: c\r\n",
    b"X-A: b\nX-B: c\r\n",
    b"X-A: b\x00c\r\n",
    b"X-A: b\x01c\r\n",
    b"X-A: b\x7fc\r\n",
    b"X\x00A: b\r\n",
    b"X\xffA: b\r\n",
    b"X(A): b\r\n",
    b"X A: b\r\n",
    b": b\r\n",
    b"no colon\r\n",
    b"Host: y\r\n",
    b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n",
]


async def test_a_head_that_can_be_read_in_two_ways_is_refused() -> None:
    async with hostile() as router:
        for headers in AMBIGUOUS:
            answer = await router.send(POST + headers + b"\r\n5\r\nhello\r\n0\r\n\r\n" + GET + b"\r\n")
            assert_refused(answer, 400, "invalid_http", headers)
            assert router.seen == [], headers
            await router.assert_idle()


NOT_HTTP_1 = [
    (b"GET /x HTTP/1.1\r\n\r\n", 400),
    (b"POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"GET /x HTTP/1.1\nHost: x\n\n", 400),
    (b"GETX /x HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"get /x HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET /x HTTP/1.2\r\nHost: x\r\n\r\n", 400),
    (b"GET /x HTTP/1.1 \r\nHost: x\r\n\r\n", 400),
    (b"\x00\x00\x00", 400),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    (b"GET /x HTTP/2.0\r\nHost: x\r\n\r\n", 505),
    (b"GET /x HTTP/0.9\r\nHost: x\r\n\r\n", 505),
    (b"GET /x\r\n\r\n", 505),
]


async def test_what_is_not_http_1_is_refused() -> None:
    async with hostile() as router:
        for request, expected in NOT_HTTP_1:
            answer = await router.send(request)
            code = "invalid_http" if expected == 400 else "http_version_not_supported"
            assert_refused(answer, expected, code, request)
            assert router.seen == [], request
            await router.assert_idle()


BROKEN_CHUNKS = [
    b"0x5\r\nhello\r\n0\r\n\r\n",
    b"-5\r\nhello\r\n0\r\n\r\n",
    b"5 \r\nhello\r\n0\r\n\r\n",
    b"5\nhello\r\n0\r\n\r\n",
    b"5\r\nhello0\r\n\r\n",
    b"5\r\nhello\n0\r\n\r\n",
    b"5;\x00\r\nhello\r\n0\r\n\r\n",
    b"ffffffffffffffffff\r\n",
    b"\r\nhello\r\n",
]


@pytest.mark.parametrize("later", [False, True], ids=["with-the-head", "later"])
async def test_a_broken_chunk_is_refused_and_counts_as_a_client_that_left(later: bool) -> None:
    async with hostile() as router:
        for number, body in enumerate(BROKEN_CHUNKS, start=1):
            answer = await router.send(CHUNKED, body) if later else await router.send(CHUNKED + body)
            assert_refused(answer, 400, "invalid_http", body)
            assert router.seen == [], body
            await router.assert_idle()
            assert router.router.app.proxy.refused[499] == number, body


async def test_trailers_do_not_become_headers() -> None:
    request = CHUNKED + b"5\r\nhello\r\n0\r\nAuthorization: Bearer stolen\r\nX-Late: 1\r\n\r\n" + GET + CLOSE
    async with hostile() as router:
        assert (await router.send(request)).count(b"HTTP/1.1 200 OK") == 2
        first = router.seen[0]
        assert first.body == b"hello"
        assert first.header(b"authorization") is first.header(b"x-late") is None


async def test_http_1_0_needs_no_host() -> None:
    async with hostile() as router:
        assert status(await router.send(b"GET /x HTTP/1.0\r\n\r\n")) == 200


# Targets


TARGETS = [
    (b"/x", b"/x"),
    (b"/", b"/"),
    (b"http://evil/x?a=b", b"/x?a=b"),
    (b"HTTPS://user:pw@evil:1/x", b"/x"),
    (b"http://evil", b"/"),
    (b"http://evil?a", b"/?a"),
    (b"//evil/x", b"//evil/x"),
    (b"http://evil//other/x", b"//other/x"),
    (b"/a.b/..c/.d/e../...", b"/a.b/..c/.d/e../..."),
    (b"/org%2Fmodel%20x", b"/org%2Fmodel%20x"),
    (b"/x?a=../..&b=%00&c=/./", b"/x?a=../..&b=%00&c=/./"),
]


@pytest.mark.parametrize("prefix", ["", "/api"])
async def test_a_target_goes_below_the_workers_own_path(prefix: str) -> None:
    async with hostile(path=prefix) as router:
        for target, arrives in TARGETS:
            answer = await router.send(b"GET " + target + b" HTTP/1.1\r\nHost: good\r\n" + CLOSE)
            assert status(answer) == 200, target
            seen = router.seen[-1]
            assert seen.request_line == b"GET " + prefix.encode() + arrives + b" HTTP/1.1"
            assert seen.header(b"host") == router.peer.url.removeprefix("http://").encode()
            assert seen.header(b"x-forwarded-host") == b"good"
        assert len(router.seen) == len(TARGETS)


BAD_TARGETS = [
    b"/../x",
    b"/..",
    b"/.",
    b"/a/./b",
    b"/a/../b",
    b"/a/..?x",
    b"/%2e%2e/x",
    b"/%2E./x",
    b"/.%2e",
    b"/a/%2e/b",
    b"/..%2fx",
    b"/a%2F..%2Fx",
    b"/..%5cx",
    b"/..\\x",
    b"/a\\b",
    b"/..;/x",
    b"/..;a=b/x",
    b"/%00",
    b"/a%0d%0aX-A:b",
    b"/a%7f",
    b"/a#b",
    b"/a?b#c",
    b"http://evil/../x",
    b"http:///x",
    b"ftp://evil/x",
    b"*",
]


async def test_a_target_that_could_leave_the_workers_path_is_refused() -> None:
    async with hostile(path="/api") as router:
        for target in BAD_TARGETS:
            answer = await router.send(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            assert_refused(answer, 400, "bad_target", target)
            assert router.seen == [], target
            await router.assert_idle()


async def test_no_tunnel_is_made() -> None:
    async with hostile() as router:
        for line in (b"CONNECT evil:443", b"CONNECT /x", b"CONNECT http://evil/", b"CONNECT *"):
            assert status(await router.send(line + b" HTTP/1.1\r\nHost: x\r\n\r\n")) == 400, line
        assert router.seen == []


async def test_raw_bytes_that_no_url_has_are_refused() -> None:
    async with hostile() as router:
        for target in (
            b"/\xff",
            b"/caf\xc3\xa9",
            b"/a?b\xff",
            b"http://evil\\@x/",
            b"/a\x01",
            b"/a\x00b",
            b"/a\tb",
            b"x",
            b"",
        ):
            answer = await router.send(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            assert_refused(answer, 400, "invalid_http", target)
        assert router.seen == []


async def test_options_of_the_server_itself_pass() -> None:
    async with hostile() as router:
        assert status(await router.send(b"OPTIONS * HTTP/1.1\r\nHost: x\r\n" + CLOSE)) == 200
        assert router.seen[0].request_line == b"OPTIONS * HTTP/1.1"


# Header injection


ENDINGS = [b"\r", b"\n", b"\x00", b"\r\n ", b"\x0b", b"\x85", b"\xe2\x80\xa8", b"%0d%0a"]
"""What somebody, somewhere, takes for the end of a line."""


@pytest.mark.parametrize("name", [b"X-Request-Id", b"X-Forwarded-For", b"X-Forwarded-Host", b"X-Session-Id", b"Host"])
async def test_no_byte_of_a_value_begins_a_new_header(name: bytes) -> None:
    head = b"GET /x HTTP/1.1\r\n" + (b"" if name == b"Host" else b"Host: x\r\n")
    async with hostile() as router:
        for ending in ENDINGS:
            answer = await router.send(head + name + b": a" + ending + b"X-Evil: 1\r\n" + CLOSE)
            assert b"x-evil" not in header_names(answer), ending
            if ending[0] < 32:
                assert_refused(answer, 400, "invalid_http", ending)
            else:
                assert status(answer) == 200, ending
        assert len(router.seen) == 3
        assert [seen.header(b"x-evil") for seen in router.seen] == [None] * len(router.seen)


async def test_no_byte_of_a_workers_value_begins_a_new_header() -> None:
    for ending in ENDINGS:
        reply = response(b"{}", headers=b"X-A: a" + ending + b"X-Evil: 1\r\n")
        async with hostile(answering(reply)) as router:
            answer = await router.send(GET + CLOSE)
            assert b"x-evil" not in header_names(answer), ending
            assert status(answer) == (502 if ending[0] < 32 else 200), ending


def header_names(answer: bytes) -> list[bytes]:
    """Of a head, as somebody sees it who takes a lone LF for the end of a line."""
    lines = answer.partition(b"\r\n\r\n")[0].split(b"\n")
    return [line.partition(b":")[0].strip().lower() for line in lines]


# Connections that nobody uses


async def test_an_idle_connection_is_closed_and_one_that_waits_for_its_answer_is_not() -> None:
    async def late(connection: PeerConnection) -> None:
        if b"/late" in connection.request_line:
            await asyncio.sleep(2.5)
        await connection.send(response(b"{}"))

    async with (
        hostile(late, limits={"keep_alive": 0.5}) as router,
        router.connected() as (idle, writer),
        router.connected() as (waiting, other),
    ):
        writer.write(GET + b"\r\n")
        other.write(GET.replace(b"GET /", b"GET /late") + b"\r\n")
        assert (await idle.readuntil(b"{}")).startswith(b"HTTP/1.1 200")
        assert await idle.read() == b""
        assert (await waiting.readuntil(b"{}")).startswith(b"HTTP/1.1 200")


# Pipelining, and errors beside other answers


@pytest.mark.parametrize("size", [100_000, 1_000_000], ids=["in-one-piece", "in-many"])
async def test_who_asks_on_and_on_and_reads_nothing_is_not_served_on_either(size: int) -> None:
    async with hostile(answering(response(b"x" * size))) as router, router.connected() as (reader, writer):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        writer.write((GET + b"\r\n") * 60)
        await until(lambda: len(router.seen) > 1)
        before = -1
        while before != len(router.seen):
            before = len(router.seen)
            await asyncio.sleep(0.3)
        assert before < 55  # what the sockets hold, and one or two answers more
        for _ in range(60):
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(size)
        assert len(router.seen) == 60


async def test_pipelined_requests_are_answered_in_their_order() -> None:
    async def late_first(connection: PeerConnection) -> None:
        await asyncio.sleep(0.05 if b"/1" in connection.request_line else 0)
        await connection.send(response(connection.request_line))

    async with hostile(late_first) as router:
        requests = [b"GET /%d HTTP/1.1\r\nHost: x\r\n" % number for number in (1, 2, 3)]
        answer = await router.send(b"\r\n".join(requests) + CLOSE)
        places = [answer.index(b"GET /%d " % number) for number in (1, 2, 3)]
        assert places == sorted(places)
        assert answer.count(b"HTTP/1.1 200 OK") == 3


@pytest.mark.parametrize(
    ("broken", "second"),
    [
        (b"nonsense\r\n\r\n", 0),
        (GET + b"X-A: b\rc\r\n\r\n", 0),
        (b"GET /../ HTTP/1.1\r\nHost: x\r\n\r\n", 0),
        (CHUNKED + b"zz", 0),
        (GET + b"\r\n" + CHUNKED + b"zz", 1),
        (GET + b"\r\n" + GET + b"\r\nnonsense\r\n", 2),
    ],
)
async def test_an_error_never_goes_into_another_answer(broken: bytes, second: int) -> None:
    async def slow(connection: PeerConnection) -> None:
        await connection.send(STREAM_HEAD + chunk(b"a"))
        await asyncio.sleep(0.05)
        await connection.send(chunk(b"b") + chunk(b""))

    async with hostile(slow) as router:
        answer = await router.send(GET + b"\r\n" + broken)
        assert answer.count(b"HTTP/1.1 ") == answer.count(b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n") == 1 + second
        assert answer.endswith(b"0\r\n\r\n")
        assert len(router.seen) == 1 + second


async def test_an_error_during_a_stream_waits_for_the_streams_end() -> None:
    going_on = asyncio.Event()

    async def slow(connection: PeerConnection) -> None:
        await connection.send(STREAM_HEAD + chunk(b"a"))
        await going_on.wait()
        await connection.send(chunk(b"b") + chunk(b""))

    async with hostile(slow) as router, router.connected() as (reader, writer):
        writer.write(GET + b"\r\n")
        await reader.readuntil(b"\r\n\r\n1\r\na\r\n")
        writer.write(b"nonsense\r\n" + b"x" * 1_000_000)
        await until(lambda: router.connections[0]._deaf)
        going_on.set()
        assert await reader.read(-1) == b"1\r\nb\r\n0\r\n\r\n"


@pytest.mark.parametrize("requests", [1, 2, 10])
@pytest.mark.parametrize("leave", ["close", "abort"])
async def test_a_client_that_has_pipelined_and_leaves_is_seen_at_once(requests: int, leave: str) -> None:
    left: list[PeerConnection] = []

    async def stalls(connection: PeerConnection) -> None:
        await connection.send(STREAM_HEAD + chunk(b"a"))
        await connection.closed_by_router()
        left.append(connection)

    async with hostile(stalls) as router:
        async with router.connected() as (reader, writer):
            writer.write((GET + b"\r\n") * requests)
            await reader.readuntil(b"\r\n\r\n1\r\na\r\n")
            if leave == "close":
                writer.close()
                await writer.wait_closed()
            else:
                writer.transport.abort()
            await until(lambda: len(left) == 1)
        assert len(router.seen) == 1, "who has left gets no further answers"


async def test_too_many_pipelined_requests_end_the_connection_after_those_that_wait() -> None:
    async with hostile() as router:
        answer = await router.send(GET + b"\r\n" + (GET + b"\r\n") * (MAX_PIPELINED + 100))
        assert answer.count(b"HTTP/1.1 200 OK") == MAX_PIPELINED + 1
        assert answer.count(b"HTTP/1.1 ") == MAX_PIPELINED + 1


async def test_what_follows_a_request_that_closes_is_not_served() -> None:
    async with hostile() as router:
        answer = await router.send(GET + CLOSE + GET + b"\r\n")
        assert answer.count(b"HTTP/1.1 ") == 1
        assert len(router.seen) == 1

        head = POST + b"Content-Length: 9\r\n"
        answer = await router.send(head + CLOSE + b"123", b"456789" + head + b"\r\n123")
        assert answer.count(b"HTTP/1.1 ") == 1
        assert [seen.body for seen in router.seen[1:]] == [b"123456789"]


UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"


async def test_requests_behind_a_declined_upgrade_are_served() -> None:
    async with hostile() as router:
        answer = await router.send((GET + UPGRADE + b"\r\n") * 3 + GET + CLOSE)
        assert answer.count(b"HTTP/1.1 200 OK") == 4
        assert len(router.seen) == 4


async def test_the_body_beside_an_upgrade_is_not_taken_for_a_request() -> None:
    hidden = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
    async with hostile() as router:
        answer = await router.send(POST + UPGRADE + b"Content-Length: %d\r\n\r\n" % len(hidden), hidden)
        assert_refused(answer, 400, "upgrade_not_supported")
        answer = await router.send(POST + UPGRADE + b"Content-Length: %d\r\n\r\n" % len(hidden) + hidden)
        assert_refused(answer, 400, "upgrade_not_supported")
        assert router.seen == []


# Clients that leave, and answers that come early


@pytest.mark.parametrize(
    "part",
    [b"", b"GET /x", GET, GET + b"\r\n", POST + b"Content-Length: 9\r\n\r\n", CHUNKED + b"5\r\nhel"],
    ids=["nothing", "line", "head", "request", "no-body", "half-a-body"],
)
async def test_a_client_that_leaves_leaves_nothing_behind(part: bytes) -> None:
    gone = asyncio.Event()

    async def never(connection: PeerConnection) -> None:
        await connection.closed_by_router()
        gone.set()

    async with hostile(never) as router:
        async with router.connected() as (_, writer):
            writer.write(part)
            await until(lambda: bool(router.connections))
            if part == GET + b"\r\n":
                await until(lambda: len(router.seen) == 1)
            await asyncio.sleep(0.02)
        await router.assert_idle()
        if part == GET + b"\r\n":
            await gone.wait()
        else:
            assert router.seen == []


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_a_client_that_keeps_sending_can_read_that_it_sent_too_much(chunked: bool) -> None:
    size = 50_000_000
    head = CHUNKED + b"%x\r\n" % size if chunked else POST + b"Content-Length: %d\r\n\r\n" % size
    async with hostile(max_payload_size=1_000_000) as router:
        answer = await asyncio.to_thread(send_all_then_read, router.router.port, head, size)
        assert_refused(answer, 413, "payload_too_large")
        assert router.seen == []


def send_all_then_read(port: int, head: bytes, size: int) -> bytes:
    """As most clients do. Raises ConnectionError where the router closes the door while this still sends."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(head)
        for _ in range(size // 1_000_000):
            client.sendall(b"a" * 1_000_000)
        answer = b""
        while piece := client.recv(65536):
            answer += piece
        return answer


async def test_a_client_that_never_stops_sending_is_cut_off() -> None:
    async with (
        hostile(limits=HASTY | {"linger_timeout": 0.2}, max_payload_size=1000) as router,
        router.connected() as (_, writer),
    ):
        writer.write(POST + b"Content-Length: 1000000000\r\n\r\n")
        with pytest.raises(ConnectionError):
            await send_for_ever(writer)


async def send_for_ever(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"a" * 1000)
        await writer.drain()
        await asyncio.sleep(0.01)


async def test_a_client_that_stays_silent_after_an_error_is_closed() -> None:
    async with hostile(limits=HASTY) as router, router.connected() as (reader, writer):
        writer.write(b"nonsense\r\n")
        assert_refused(await reader.read(-1), 400, "invalid_http")
        await router.assert_idle()


async def test_a_compressed_body_passes_as_it_is() -> None:
    bomb = gzip.compress(bytes(10_000_000))
    head = POST + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n" % len(bomb)
    async with hostile(max_payload_size=100_000) as router:
        answer = await router.send(head.replace(b"/x", b"/v1/chat/completions") + CLOSE + bomb)
        assert status(answer) == 200
        assert router.seen[0].body == bomb
        assert router.seen[0].header(b"content-encoding") == b"gzip"


# Sockets


async def test_a_client_whose_machine_is_gone_or_that_never_reads_is_noticed_by_the_kernel() -> None:
    async with hostile() as router, router.connected() as (reader, writer):
        writer.write(GET + b"\r\n")
        await reader.readuntil(b"{}")
        accepted = router.connections[0]._transport.get_extra_info("socket")
        options = [
            accepted.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_NODELAY, socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        ]
        assert options == [1, 60, 15, 4]
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 300_000


async def test_a_client_that_never_reads_does_not_keep_its_place() -> None:
    async def endless(connection: PeerConnection) -> None:
        await connection.send(STREAM_HEAD)
        while True:
            await connection.send(chunk(b"a" * 65536))

    async with hostile(endless, limits={"stall_timeout": 0.5}) as router:
        client = socket.create_connection(("127.0.0.1", router.router.port))
        try:
            client.sendall(GET + b"\r\n")
            await until(lambda: len(router.seen) == 1)
            await until(lambda: not router.router.app.fleet.workers[0].in_flight, patience=30)
            await router.assert_idle()
        finally:
            client.close()


async def test_a_unix_socket_is_served_too(tmp_path: Path) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await answer_length(b"", send)

    async with on_a_unix_socket(app, HttpProtocol, tmp_path / "socket") as (reader, writer):
        writer.write(GET + CLOSE)
        assert (await reader.read(-1)).endswith(b"\r\n\r\n0")


async def test_no_deadline_runs_while_the_router_does_not_read(tmp_path: Path) -> None:
    class Strict(HttpProtocol):
        body_timeout = 2.0
        body_rate = 1_000_000_000

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        await asyncio.sleep(2.6)
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        await answer_length(body, send)

    async with on_a_unix_socket(app, Strict, tmp_path / "socket") as (reader, writer):
        writer.write(POST + b"Content-Length: 1000000\r\n" + CLOSE + b"a" * 999_999)
        await asyncio.sleep(3.2)  # 0.6 s since the router reads again: all of `body_timeout` counts from there
        writer.write(b"a")
        assert (await reader.read(-1)).endswith(b"\r\n\r\n1000000")


async def answer_length(body: bytes, send: Send) -> None:
    text = b"%d" % len(body)
    headers = [(b"connection", b"close"), (b"content-length", b"%d" % len(text))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": text})


@asynccontextmanager
async def on_a_unix_socket(
    app: ASGIApp, protocol: type[HttpProtocol], path: Path
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """An application behind the protocol alone, and one connection to it."""
    clients = Clients(app)
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(lambda: protocol(clients, loop), str(path))
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        async with asyncio.timeout(20):
            yield reader, writer
    finally:
        writer.transport.abort()
        server.close()
        await until(lambda: not clients.connections)
