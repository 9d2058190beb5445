"""Requests that are not quite HTTP, or HTTP that few clients speak."""

import asyncio
import re
from contextlib import suppress

from ..rivals.routers import Router
from .client import chat, raw_chat
from .scenario import Outcome, scenario
from .stage import Stage, stage

_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\n"
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")


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
    _, body = chat("open")
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    head = _HEAD + b"content-length: %d\r\ntransfer-encoding: chunked\r\n\r\n" % (len(chunked) + len(hidden))
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
        writer.write(_HEAD + b"content-length: 1000\r\n\r\n" + chat()[1])
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
    fault="a client sends `Expect: 100-continue` and keeps its body back, as curl does",
    right="it is asked for its body, and served",
    source="issue 4; RFC 9110, 10.1.1",
)
async def expect_continue(router: Router) -> Outcome:
    token, body = chat()
    async with stage(router, workers=1) as at:
        reader, writer = await at.client.connect()
        writer.write(_HEAD + b"content-length: %d\r\nexpect: 100-continue\r\n\r\n" % len(body))
        got = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(3):
                got += await reader.readuntil(b"\r\n\r\n")
                writer.write(body)
                while token.encode() not in got and (data := await reader.read(65536)):
                    got += data
        writer.transport.abort()
        statuses = [status.decode() for status in _STATUS.findall(got)]
        return Outcome(statuses == ["100", "200"] and token.encode() in got, ", ".join(statuses) or "no answer")


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
    statuses = [status.decode() for status in _STATUS.findall(got)]
    return statuses or ["closed" if closed else "no answer"]


HTTP_ODDITIES = (
    oversized_header,
    request_smuggling,
    two_lengths,
    half_a_body,
    pipelining,
    expect_continue,
)
