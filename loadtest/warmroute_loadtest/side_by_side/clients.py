"""Clients that leave, do not read, send slowly, or send much."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import orjson

from ..chaos.connection import Connection, Request
from ..rivals.routers import Router
from .client import chat, lost, raw_chat, tally
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
    right="others are served meanwhile, and the slow ones are hung up on within 65 s",
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
    right="the requests are served; 25 descriptors more at most stay (connections kept to the worker)",
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


CLIENTS = (
    leaves_before_the_answer,
    leaves_in_a_gap,
    stalled_reader,
    slow_heads,
    idle_connections,
    big_body,
)
