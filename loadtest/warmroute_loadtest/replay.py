"""Replays a trace over HTTP: each request at its time, with a text that is made from the names of its blocks.

A block of a trace becomes a fixed number of bytes, `BYTES_PER_TOKEN` for each token, so that what two requests of the
trace share is what their texts share, and a router that has not learned yet how long text is guesses right. The
requests go to `/v1/completions`, whose prompt is the text and nothing else: no template moves the blocks.
"""

import asyncio
import random
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import orjson
from warmroute_router.blocks import BYTES_PER_TOKEN
from warmroute_router.config import TimeoutConfig, WorkerSpec
from warmroute_router.errors import ConnectFailed, ConnectionLost
from warmroute_router.upstream.connection import Connection
from warmroute_router.upstream.pool import Pool

from .traces import Trace, TraceRequest

MODEL = "mock"
FAILED = 0
"""The status of a request whose connection failed."""


class Replayed(NamedTuple):
    """What became of one request. Where the status is not 200, everything below it may be missing."""

    late: float
    """Seconds behind its time when it was sent: how far the loop was from open."""
    status: int
    worker: str = ""
    """The URL of the worker that a router chose; empty where none was asked."""
    matched_tokens: int = 0
    """What the router predicted to be cached, by its own estimate of the prompt's length."""
    ttft: float = 0.0
    """Seconds from sending to the first byte of the answer's body."""
    e2e: float = 0.0
    """Seconds from sending to the answer's end."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


def hit_rate(answers: Iterable[Replayed]) -> float:
    """Cached tokens of all prompt tokens, as the workers reported them."""
    answers = list(answers)
    total = sum(answer.prompt_tokens for answer in answers)
    return sum(answer.cached_tokens for answer in answers) / total if total else 0.0


async def replay(trace: Trace, urls: Sequence[str], *, speed: float = 1.0, seed: int = 0) -> list[Replayed]:
    """The whole trace, `speed` times as fast as it says; the answers come in the order of the requests.

    The loop is open: a request is sent at its time, however many are still unanswered. urls: of routers, or of
    workers; each request goes to any of them, and the same seed draws the same ones.
    """
    draw = random.Random(seed)
    pools = [Pool(WorkerSpec(url), TimeoutConfig(), None) for url in urls]
    loop = asyncio.get_running_loop()
    start = loop.time()
    sent: list[asyncio.Task[Replayed]] = []
    try:
        async with asyncio.TaskGroup() as group:
            for number, request in enumerate(trace.requests):
                due = start + request.arrival / speed
                await asyncio.sleep(due - loop.time())
                asked = _send(draw.choice(pools), request, prompt_text(number, request, trace.block_tokens), due)
                sent.append(group.create_task(asked))
    finally:
        for pool in pools:
            pool.close()
    return [task.result() for task in sent]


def prompt_text(number: int, request: TraceRequest, block_tokens: int) -> str:
    """Equal ids give equal text, and others give other text. A trace does not name the rest: it is unique."""
    block_bytes = block_tokens * BYTES_PER_TOKEN
    rest_bytes = request.input_tokens * BYTES_PER_TOKEN - len(request.block_ids) * block_bytes
    blocks = [_filled(f"block {block:016x} ", block_bytes) for block in request.block_ids]
    return "".join(blocks) + _filled(f"rest {number:016x} ", rest_bytes)


def _filled(label: str, size: int) -> str:
    return (label * (size // len(label) + 1))[:size]


async def _send(pool: Pool, request: TraceRequest, prompt: str, due: float) -> Replayed:
    loop = asyncio.get_running_loop()
    body = orjson.dumps(
        {
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": request.output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    started = loop.time()
    late = started - due
    try:
        connection = await pool.request(_head(pool, request, len(body)), body)
        try:
            first = await connection.read()
            ttft = loop.time() - started
            rest = await _rest(connection)
        finally:
            pool.give_back(connection)
    except (ConnectFailed, ConnectionLost):
        return Replayed(late, FAILED)
    headers = {name.lower(): value.decode() for name, value in connection.headers}
    usage = _usage(first + rest)
    return Replayed(
        late=late,
        status=connection.status,
        worker=headers.get(b"x-warmroute-worker", ""),
        matched_tokens=int(headers.get(b"x-warmroute-matched-tokens", 0)),
        ttft=ttft,
        e2e=loop.time() - started,
        prompt_tokens=usage.get("prompt_tokens", 0),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        completion_tokens=usage.get("completion_tokens", 0),
    )


def _head(pool: Pool, request: TraceRequest, size: int) -> bytes:
    lines = [
        b"POST %b/v1/completions HTTP/1.1" % pool.path_prefix,
        b"host: " + pool.host_header,
        b"content-type: application/json",
        b"content-length: %d" % size,
    ]
    if request.session is not None:
        lines.append(b"x-session-id: " + request.session.encode())
    return b"\r\n".join((*lines, b"", b""))


async def _rest(connection: Connection) -> bytes:
    pieces = []
    while piece := await connection.read():
        pieces.append(piece)
    return b"".join(pieces)


def _usage(body: bytes) -> dict[str, Any]:
    """Of the last event that tells it; empty for an error, which is no stream."""
    for line in reversed(body.splitlines()):
        if line.startswith(b"data: {"):
            usage: dict[str, Any] | None = orjson.loads(line[6:]).get("usage")
            if usage:
                return usage
    return {}
