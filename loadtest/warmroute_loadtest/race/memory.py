"""(c) Resident memory of a router: idle, under load, before a client that does not read, and full of prompts."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import httptools
import orjson

from ..processes import processes, url_in
from ..rivals.running import RunningRouter
from .contenders import DIRECT, PATHS, Contender, Lane, Setting, failures_told, lane_router
from .results import Results, markdown_table, spread
from .throughput import WORKERS, Case, address, measure, post

PART = "memory"
SETTLE = 2.0
LOADS = (Case("streamed, 2 KB", True, 2_000), Case("whole, 500 KB", False, 500_000))
LOAD_SECONDS = 4.0
STALL_SECONDS = 10.0
POURED = 500_000_000
"""Bytes that an endless stream has at most: some routers would take up all that there is."""
BLOCKS = 1_000_000
BLOCK_BYTES = 256
PROMPT_BLOCKS = 160
FLEET = 64
FILLERS = 16
"""Connections over which prompts are sent."""


async def race(setting: Setting, results: Results) -> None:
    contenders = [each for each in setting.chosen(PATHS) if each != DIRECT]
    with processes() as children:
        workers = [url_in(children.start("warmroute_loadtest.mock_worker")) for _ in range(WORKERS)]
        for repetition in range(setting.repetitions):
            for contender in contenders:
                if not results.has(PART, _CASE, contender.name, repetition):
                    with failures_told(contender.name):
                        results.add(PART, _CASE, contender.name, await _measure(contender, workers, setting))


_CASE = "bytes"


async def _measure(contender: Contender, workers: list[str], setting: Setting) -> dict[str, float]:
    """Each in a fresh process, but idle and load."""
    async with lane_router(contender, workers, setting.cpus) as router:
        await asyncio.sleep(SETTLE * setting.scale)
        idle = router.rss
        router.watch_peak()
        lane = Lane(contender.name, router.url, router)
        for case in LOADS:
            await measure(lane, case, LOAD_SECONDS * setting.scale)
        load = router.peak_rss
    async with _easy_worker(1) as (worker, urls), lane_router(contender, urls, setting.cpus) as router:
        before = await _first_request(router)
        router.watch_peak()
        await _stall(router, STALL_SECONDS * setting.scale)
        stalled, poured = router.peak_rss - before, worker.poured
    async with _easy_worker(FLEET) as (_, urls), lane_router(contender, urls, setting.cpus) as router:
        sent = await _fill(router, int(BLOCKS * setting.scale))
        blocks = router.rss
    return {"idle": idle, "load": load, "stalled": stalled, "poured": poured, "blocks": blocks, "sent": sent}


async def _first_request(router: RunningRouter) -> int:
    """Asks for a little, and returns the memory after it."""
    reader, writer = await asyncio.open_connection(*address(router.url))
    writer.write(_prompt("hello"))
    await _read_answer(reader)
    writer.close()
    return router.rss


async def _stall(router: RunningRouter, seconds: float) -> None:
    """A client that has sent its request, and whose socket is not read."""
    _, writer = await asyncio.open_connection(*address(router.url))
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(post({"stream": True, "model": "mock", "messages": [{"role": "user", "content": _ENDLESS}]}))
    await asyncio.sleep(seconds)
    writer.transport.abort()


async def _fill(router: RunningRouter, blocks: int) -> int:
    """Prompts that share nothing; returns how many blocks they have."""
    prompts = max(1, blocks // PROMPT_BLOCKS)
    numbers = iter(range(prompts))

    async def send() -> None:
        reader, writer = await asyncio.open_connection(*address(router.url))
        for number in numbers:
            text = random.Random(number).randbytes(PROMPT_BLOCKS * BLOCK_BYTES // 2).hex()
            writer.write(_prompt(text))
            await _read_answer(reader)
        writer.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(FILLERS):
            group.create_task(send())
    return prompts * PROMPT_BLOCKS


def _prompt(text: str) -> bytes:
    return post({"model": "mock", "messages": [{"role": "user", "content": text}]})


async def _read_answer(reader: asyncio.StreamReader) -> None:
    """Raises ConnectionError where it is not a whole 200."""
    done: list[bool] = []

    class Answer:
        def on_message_complete(self) -> None:
            done.append(True)

    parser = httptools.HttpResponseParser(Answer())
    while not done:
        if not (data := await reader.read(65536)):
            raise ConnectionError("the router hung up in the middle of an answer")
        parser.feed_data(data)
    if (status := parser.get_status_code()) != 200:
        raise ConnectionError(f"the router answered with {status}")


class _EasyWorker:
    """All workers of a fleet in one, in this process: speed is not measured here."""

    def __init__(self) -> None:
        self.poured = 0


class _Connection(asyncio.Protocol):
    """Answers at once, or with a stream that does not end."""

    def __init__(self, worker: _EasyWorker) -> None:
        self._worker = worker
        self._parser = httptools.HttpRequestParser(self)
        self._body = bytearray()
        self._full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:  # a router that would like to know whether it speaks HTTP/2
            self._transport.abort()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        body, self._body = bytes(self._body), bytearray()
        if _ENDLESS.encode() in body:
            self._transport.write(_STREAM_HEAD)
            self._pour()
        else:
            answer = orjson.dumps(_completion(len(body) // 4) if self._parser.get_method() == b"POST" else _MODELS)
            self._transport.write(_WHOLE_HEAD % len(answer) + answer)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._pour()

    def _pour(self) -> None:
        if not self._full and not self._transport.is_closing() and self._worker.poured < POURED:
            self._transport.write(_POUR)
            self._worker.poured += len(_POUR)
            asyncio.get_running_loop().call_soon(self._pour)


_ENDLESS = "without end"
_MODELS = {"object": "list", "data": [{"id": "mock", "object": "model", "owned_by": "warmroute"}]}
_WHOLE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % (b"word " * 12_000)
_POUR = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)


def _completion(prompt_tokens: int) -> dict[str, object]:
    return {
        "id": "chatcmpl-race",
        "object": "chat.completion",
        "created": 0,
        "model": "mock",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "word"}, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 1,
            "total_tokens": prompt_tokens + 1,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


@asynccontextmanager
async def _easy_worker(count: int) -> AsyncIterator[tuple[_EasyWorker, list[str]]]:
    """It, and its URLs: on Linux, all of 127.0.0.0/8 is this machine."""
    worker = _EasyWorker()
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(worker), "0.0.0.0", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield worker, [f"http://127.0.0.{number + 1}:{port}" for number in range(count)]
    finally:
        server.close()


def markdown(results: Results) -> str:
    names = [path.name for path in PATHS if path.name in results.contenders(PART)]
    sent = max((sent for name in names for sent in results.values(PART, _CASE, name, "sent")), default=0.0)
    shown = {
        "idle": f"idle, {WORKERS} workers",
        "load": "under load (peak)",
        "blocks": f"after {sent:,.0f} blocks of {BLOCK_BYTES} bytes, {FLEET} workers",
        "stalled": "grown by, with one stalled reader of an endless stream",
        "poured": "of which it took from the worker",
    }
    rows = [
        [text, *(spread(results.values(PART, _CASE, name, figure), _megabytes) for name in names)]
        for figure, text in shown.items()
    ]
    return markdown_table(["MB of resident memory", *names], rows)


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.0f}"
