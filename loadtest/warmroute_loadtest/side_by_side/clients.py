"""Clients that leave, do not read, send slowly, or send what is not HTTP."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import orjson

from ..chaos.connection import Connection, Request
from .client import chat, lost, raw_chat, tally
from .routers import Router
from .scenario import Outcome, scenario
from .stage import Stage, megabytes, shown_seconds, stage, time_until
from .workers import CHAT

_BLOCK = b"data: " + b"x" * 65528 + b"\n\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@scenario(
    fault="a client leaves before the answer has begun (a prompt of 8 s)",
    right="the worker's connection is closed within 1 s, so that it stops",
    source="smg #2136, sglang #39461, #11399",
)
async def leaves_before_the_answer(router: Router) -> Outcome:
    async with stage(router, workers=1) as at:
        at.workers[0].delay = 8.0
        return await _leave(at, after_chunk=False)


@scenario(
    fault="a client leaves in a silent gap of a stream (8 s between two tokens)",
    right="the worker's connection is closed within 1 s, so that it stops",
    source="smg #2136, sglang #39461, #11399",
)
async def leaves_in_a_gap(router: Router) -> Outcome:
    async def gap(connection: Connection, request: Request) -> None:
        event = b"data: {}\n\n"
        await connection.send(STREAM_HEAD + b"%x\r\n%b\r\n" % (len(event), event))
        await connection.pause(8.0)

    async with stage(router, workers=1) as at:
        at.workers[0].script = gap
        return await _leave(at, after_chunk=True)


async def _leave(at: Stage, *, after_chunk: bool) -> Outcome:
    reader, writer = await at.client.connect()
    writer.write(raw_chat(chat(stream=True)[1]))
    await time_until(lambda: at.prompts == [1], 5)
    if after_chunk:
        await reader.readuntil(b"data: {}")
    await asyncio.sleep(0.3)
    writer.close()
    seconds = await time_until(lambda: at.aborted == 1, 12)
    return Outcome(seconds is not None and seconds < 1, f"closed {shown_seconds(seconds, 12)}")


@scenario(
    fault="a client asks for a stream and reads nothing for 6 s; the worker has 400 MB to say",
    right="the worker is held back: the router keeps 32 MB at most",
    source="smg #2097",
)
async def stalled_reader(router: Router) -> Outcome:
    drained = 0

    async def pour(connection: Connection, request: Request) -> None:
        nonlocal drained
        await connection.send(STREAM_HEAD)
        framed = b"%x\r\n%b\r\n" % (len(_BLOCK), _BLOCK)
        for _ in range(400_000_000 // len(_BLOCK)):
            await connection.send(framed)
            drained += len(framed)

    async with stage(router, workers=1) as at:
        await at.client.ask()
        at.workers[0].script = pour
        before = at.router.rss
        async with _stalled(at):
            await asyncio.sleep(6)
            grown = at.router.rss - before
        return Outcome(grown < 32e6, f"{megabytes(grown)} more memory, {megabytes(drained)} taken from the worker")


@asynccontextmanager
async def _stalled(at: Stage) -> AsyncIterator[None]:
    """A client that has sent its request, and whose socket is not read."""
    reader, writer = await at.client.connect()
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(raw_chat(chat(stream=True)[1]))
    try:
        yield
    finally:
        writer.transport.abort()
        del reader


@scenario(
    fault="200 clients send a byte of their request's head every second and never end it",
    right="others are served meanwhile, and the slow ones are hung up on within 60 s",
    source="issue 4, part 7 (slowloris)",
)
async def slow_heads(router: Router) -> Outcome:
    async with stage(router, workers=1) as at:
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            slow = [group.create_task(_drip(at, 65.0)) for _ in range(200)]
            await asyncio.sleep(3)
            good = await at.client.ask_many(20)
            await asyncio.wait(slow)
        closed = [when - started for when in (task.result() for task in slow) if when is not None]
        ok = lost(good) == 0 and len(closed) == 200
        when = f", the last after {max(closed):.0f} s" if closed else ""
        return Outcome(ok, f"{len(closed)} of 200 closed within 65 s{when}; good clients: {tally(good)}")


async def _drip(at: Stage, patience: float) -> float | None:
    """When the router hung up; None where it did not within `patience` seconds."""
    reader, writer = await at.client.connect()
    ending = asyncio.create_task(_ended(reader))
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\nx-slow: ")
    deadline = time.monotonic() + patience
    while not ending.done() and time.monotonic() < deadline:
        writer.write(b"x")
        await asyncio.wait([ending], timeout=1)
    closed = time.monotonic() if ending.done() else None
    ending.cancel()
    writer.transport.abort()
    return closed


async def _ended(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while await reader.read(65536):
            pass


@scenario(
    fault="1,000 idle connections, then 20 requests; then all of them leave",
    right="the requests are served, and no file descriptor stays behind",
    source="production-stack #448",
)
async def idle_connections(router: Router) -> Outcome:
    async with stage(router, workers=1) as at:
        await at.client.ask()
        before, memory = at.router.open_files, at.router.rss
        idle = [await at.client.connect() for _ in range(1000)]
        good = await at.client.ask_many(20)
        grown = at.router.rss - memory
        for _, writer in idle:
            writer.close()
        back = await time_until(lambda: at.router.open_files <= before + 25, 10)
        ok = lost(good) == 0 and back is not None
        left = max(at.router.open_files - before, 0)
        return Outcome(ok, f"{tally(good)}; {megabytes(grown)} more memory; {left} descriptors more afterwards")


@scenario(
    fault="a request whose header is 1 MB long",
    right="refused with a 4xx, and the next one is served",
    source="issue 4, part 7",
)
async def oversized_header(router: Router) -> Outcome:
    async with stage(router, workers=1) as at:
        status = await _first_line(at, raw_chat(chat()[1], "x-long: " + "x" * 1_000_000))
        good = await at.client.ask()
        ok = status.startswith("4") and good.right and at.prompts == [1]
        passed = "" if at.prompts == [1] else " (passed to the worker)"
        return Outcome(ok, f"{status}{passed}; then a good one: {good}")


@scenario(
    fault="Content-Length beside Transfer-Encoding, with a second request hidden in the body",
    right="refused, or the connection is closed after one answer (RFC 9112, 6.1)",
    source="issue 4, part 7 (request smuggling)",
)
async def request_smuggling(router: Router) -> Outcome:
    hidden = raw_chat(chat("hidden")[1])
    both = b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\n"
    _, body = chat("open")
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    head = both + b"content-length: %d\r\ntransfer-encoding: chunked\r\n\r\n" % (len(chunked) + len(hidden))
    async with stage(router, workers=1) as at:
        answers = await _answers(at, head + chunked + hidden)
        found = sum(b"hidden" in request.body for request in at.workers[0].seen)
        ok = found == 0
        return Outcome(ok, f"{', '.join(answers)}; the hidden one {'was served' if found else 'was not'}")


@scenario(
    fault="two Content-Length headers that differ",
    right="refused with a 400",
    source="issue 4, part 7 (request smuggling)",
)
async def two_lengths(router: Router) -> Outcome:
    _, body = chat()
    async with stage(router, workers=1) as at:
        status = await _first_line(at, raw_chat(body, f"content-length: {len(body) - 5}"))
        return Outcome(status.startswith("4") and not sum(at.prompts), status)


@scenario(
    fault="a client announces a body of 1,000 bytes, sends half of it, and closes",
    right="no worker is asked",
    source="issue 4, chaos suite",
)
async def half_a_body(router: Router) -> Outcome:
    async with stage(router, workers=1) as at:
        _, writer = await at.client.connect()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\n"
        writer.write(head + b"content-length: 1000\r\n\r\n" + chat()[1])
        await asyncio.sleep(0.3)
        writer.close()
        await asyncio.sleep(0.5)
        asked, good = at.workers[0].requests, await at.client.ask()
        return Outcome(asked == 0 and good.right, f"{asked} requests at the worker; then a good one: {good}")


@scenario(
    fault="three requests in one packet (pipelining)",
    right="three answers, in the order of the requests",
    source="issue 4, chaos suite",
)
async def pipelining(router: Router) -> Outcome:
    tokens, bodies = zip(*(chat(f"number {number}") for number in range(3)), strict=True)
    async with stage(router, workers=1) as at:
        reader, writer = await at.client.connect()
        writer.write(b"".join(raw_chat(body) for body in bodies))
        got = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                while got.count(b"HTTP/1.1 200") < 3 or tokens[2].encode() not in got:
                    if not (data := await reader.read(65536)):
                        break
                    got += data
        writer.close()
        places = [got.find(token.encode()) for token in tokens]
        ok = -1 not in places and places == sorted(places)
        return Outcome(ok, f"{got.count(b'HTTP/1.1 200')} answers, {'in order' if ok else 'not in order'}")


@scenario(
    fault="a request with an image of 40 MB",
    right="served, and no more than twice its size in memory",
    source="sglang #6622, smg #2198, #2232",
)
async def big_body(router: Router) -> Outcome:
    size = 40_000_000
    async with stage(router, workers=1) as at:
        await at.client.ask()
        before = at.router.rss
        at.router.watch_peak()
        token, body = _with_image(size)
        answer = await at.client.post(CHAT, body, token=token)
        grown = at.router.peak_rss - before
        return Outcome(answer.right and grown <= 2.1 * size, f"{answer}, {megabytes(grown)} more memory")


def _with_image(size: int) -> tuple[str, bytes]:
    token, body = chat()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * size}}
    content = [{"type": "text", "text": token}, image]
    return token, orjson.dumps(orjson.loads(body) | {"messages": [{"role": "user", "content": content}]})


async def _first_line(at: Stage, data: bytes) -> str:
    """The status that comes back, or what came instead."""
    return (await _answers(at, data))[0]


async def _answers(at: Stage, data: bytes) -> list[str]:
    """The statuses that come back within 2 s, and whether the connection was closed then."""
    reader, writer = await at.client.connect()
    got = b""
    closed = False
    try:
        writer.write(data)
        async with asyncio.timeout(2):
            while more := await reader.read(65536):
                got += more
        closed = True
    except TimeoutError:
        pass
    except ConnectionError:
        closed = True
    writer.transport.abort()
    statuses = [part[1:4].decode("latin-1") for part in got.split(b"HTTP/1.1")[1:]]
    return statuses or ["closed" if closed else "no answer"]


CLIENTS = (
    leaves_before_the_answer,
    leaves_in_a_gap,
    stalled_reader,
    slow_heads,
    idle_connections,
    oversized_header,
    request_smuggling,
    two_lengths,
    half_a_body,
    pipelining,
    big_body,
)
