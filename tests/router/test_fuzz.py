"""Arbitrary bytes for everything that parses: nothing raises what it should not, nothing hangs, nothing is left."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import httptools
import orjson
import pytest
import uvloop
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.peer import STREAM_HEAD, Peer, PeerConnection, chunk, response
from support.router import CONFIG, RunningRouter, running_router, until
from warmroute_router.config import RetryConfig
from warmroute_router.prompt import Prompt, read_prompt
from warmroute_router.serving.http_protocol import HttpProtocol
from warmroute_router.usage import Usage, UsageReader
from warmroute_router.usage_injection import UsageFilter, ask_for_usage

fast = settings(max_examples=200)
live = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "m",
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": "u"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        ],
        "stream": True,
        "user": "u",
    },
    "/v1/completions": {"model": "m", "prompt": [[1, 2], [3]], "stream": True},
    "/v1/messages": {"model": "m", "system": [{"type": "text", "text": "s"}], "messages": [{"role": "user"}]},
    "/v1/responses": {"model": "m", "instructions": "i", "input": [{"role": "user", "content": "x"}, {"type": "y"}]},
    "/generate": {"text": None, "input_ids": [1, 2, 3], "lora_path": "l"},
}
numbers = st.integers() | st.sampled_from([2**32, 2**63, 2**64, -1, 10**400]) | st.floats()
texts = st.text() | st.sampled_from(["\ud800", "\x00", "\x1e\x1f\x1d"])
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
paths = st.sampled_from(sorted(BODIES))


def as_json(value: Any) -> bytes:
    """Also what JSON does not have: NaN, and halves of surrogate pairs."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


@st.composite
def mutated_bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """A valid body in which one value, anywhere, is another."""
    path = draw(paths)
    body: Any = json.loads(json.dumps(BODIES[path]))
    place = body
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = draw(st.sampled_from(list(keys)))
        if not isinstance(place[key], dict | list) or not place[key] or draw(st.booleans()):
            place[key] = draw(values)
            return path, as_json(body)
        place = place[key]


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Some bytes of it replaced, doubled, taken out or put in."""
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 8)))
        odd = st.sampled_from([b"\r\n", b"\n", b"\r", b"\x00", b" ", b":", b"0", b"-1", b"fffffffff", b"\xff"])
        data = data[:start] + draw(odd | st.just(data[start:end] * 2) | st.binary(max_size=4)) + data[end:]
    return data


@st.composite
def split(draw: st.DrawFn, data: bytes) -> list[bytes]:
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=4)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


# Bodies and replies, one call at a time


def nested(depth: int, opening: bytes, closing: bytes) -> bytes:
    return opening * depth + closing * depth


@fast
@given(paths, st.binary() | values.map(as_json))
@example("/v1/chat/completions", b'{"messages":' + nested(10_000, b"[", b"]") + b"}")
@example("/v1/chat/completions", b'{"messages":[{"role":"u","content":' + nested(1000, b"[", b"]") + b"}]}")
@example("/v1/chat/completions", b'{"messages":[],"tools":' + nested(1000, b"[", b"]") + b"}")
@example(
    "/v1/chat/completions", b'{"messages":[],"model":' + nested(500, b'{"a":', b"}").replace(b":}", b":1}") + b"}"
)
@example("/v1/responses", b'{"input":[' + nested(1000, b'{"a":[', b"]}") + b"]}")
@example("/v1/completions", b'{"prompt":' + nested(100_000, b"[", b"]") + b"}")
@example("/v1/completions", b'{"prompt":[1,99999999999999999999999999]}')
@example("/v1/completions", b'{"prompt":[-1]}')
@example("/v1/completions", b'{"prompt":[1,NaN]}')
@example("/v1/completions", b'{"prompt":[true,1.5]}')
@example("/v1/completions", b'{"prompt":"\\ud800","model":"\\udfff"}')
@example("/v1/completions", b'{"prompt":"a","prompt":["b"],"stream":true,"stream":false}')
@example("/generate", b'{"input_ids":{"0":1}}')
def test_any_body_is_a_prompt_or_none(path: str, body: bytes) -> None:
    assert_understood_or_not(path, body)


@fast
@given(mutated_bodies())
def test_a_body_with_one_odd_value_is_a_prompt_or_none(given_body: tuple[str, bytes]) -> None:
    assert_understood_or_not(*given_body)


@fast
@given(st.data(), paths)
def test_a_damaged_body_is_a_prompt_or_none(data: st.DataObject, path: str) -> None:
    assert_understood_or_not(path, data.draw(damaged(as_json(BODIES[path]))))


def assert_understood_or_not(path: str, body: bytes) -> None:
    prompt = read_prompt(path, body)
    assert prompt is None or isinstance(prompt, Prompt)
    if prompt is not None and prompt.lacks_usage:
        asked = orjson.loads(ask_for_usage(body))
        assert asked.pop("stream_options") == {"include_usage": True}
        assert orjson.dumps(asked) == orjson.dumps(orjson.loads(body))


USAGE = {"usage": {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}}, "choices": []}
replies = st.sampled_from([as_json(USAGE), b"data: " + as_json(USAGE) + b"\n\ndata: [DONE]\n\n"])
replies |= st.builds(lambda value: as_json({"usage": value}), values) | st.binary()


@fast
@given(st.data(), st.sampled_from([b"text/event-stream", b"application/json", b"\xff", b""]))
def test_any_reply_has_usage_or_none(data: st.DataObject, kind: bytes) -> None:
    reader = UsageReader([(b"content-type", kind)])
    for piece in data.draw(split(data.draw(damaged(data.draw(replies))))):
        reader.feed(piece)
    usage = reader.result()
    assert usage is None or isinstance(usage, Usage)
    if usage is not None:
        assert 0 <= (usage.cached_tokens or 0) <= usage.prompt_tokens


@fast
@given(st.data())
def test_hiding_usage_loses_nothing_else(data: st.DataObject) -> None:
    stream = data.draw(damaged(data.draw(replies) * data.draw(st.integers(1, 3))))
    hide = UsageFilter()
    shown = b"".join([*map(hide.feed, data.draw(split(stream))), hide.flush()])
    assert len(shown) <= len(stream)
    if b'"usage"' not in stream:
        assert shown == stream


# Sockets


class Live:
    """A router that runs on between the examples, and whose worker says what it is told to."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.answer = [response(b"{}")]
        self.router: RunningRouter
        self._runner = runner

    async def enter(self, stack: AsyncExitStack) -> None:
        peer = await stack.enter_async_context(Peer(self._say).listening())
        config = replace(CONFIG, breaker=None, retries=RetryConfig(max_retries=0))
        self.router = await stack.enter_async_context(running_router(peer.url, config=config))

    async def _say(self, connection: PeerConnection) -> None:
        for piece in self.answer:
            await connection.send(piece)
            await asyncio.sleep(0)
        connection.writer.close()

    def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._runner.run(work())

    async def send(self, *pieces: bytes) -> bytes:
        """All that comes back until the router closes. It has to: a client that has said its word waits for that."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.router.port)
        try:
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0)
            async with asyncio.timeout(10):
                return await reader.read(-1)
        except ConnectionError:
            return b""
        finally:
            writer.transport.abort()

    async def assert_idle(self) -> None:
        workers = self.router.app.fleet.workers
        await until(lambda: not any(worker.in_flight for worker in workers))
        self.router.assert_idle()


@pytest.fixture(scope="module")
def router() -> Iterator[Live]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, pytest.MonkeyPatch.context() as patch:
        patch.setattr(HttpProtocol, "head_timeout", 0.5)
        patch.setattr(HttpProtocol, "body_timeout", 0.05)
        patch.setattr(HttpProtocol, "keep_alive", 0.5)  # a body may swallow what would make it close at once
        live = Live(runner)
        stack = AsyncExitStack()
        runner.run(live.enter(stack))
        yield live
        runner.run(stack.aclose())


class Answers:
    """Callbacks of httptools: counts whole answers."""

    def __init__(self) -> None:
        self.complete = 0
        self.headers: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append(name)

    def on_message_complete(self) -> None:
        self.complete += 1


def well_formed(answer: bytes) -> Answers:
    """Raises httptools.HttpParserError on what is not a sequence of answers, of which the last may be cut."""
    answers = Answers()
    httptools.HttpResponseParser(answers).feed_data(answer)
    return answers


GET = b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
STREAM = b'{"messages":[{"role":"user","content":"x"}],"stream":true}'
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % len(STREAM)
CHAT += b"Connection: close\r\n\r\n" + STREAM
worker_answers = st.sampled_from(
    [
        response(b'{"usage":{"prompt_tokens":1}}'),
        response(b"", b"204 No Content", b""),
        response(b"", b"304 Not Modified"),
        b"HTTP/1.1 100 Continue\r\n\r\n" + response(b"late"),
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nbytes",
        b"HTTP/1.0 200 OK\r\n\r\nto the end",
        STREAM_HEAD + chunk(b"data: " + as_json(USAGE) + b"\n\n") + chunk(b"data: [DONE]\n\n") + chunk(b""),
        STREAM_HEAD + chunk(b"data: 1\n\n") + b"0\r\nX-Trailer: 1\r\n\r\n",
    ]
)


@live
@given(st.data(), st.sampled_from([GET, CHAT, GET.replace(b"GET", b"HEAD")]))
def test_whatever_a_worker_says_its_client_gets_http(router: Live, data: st.DataObject, request_: bytes) -> None:
    said = data.draw(st.binary() | worker_answers.flatmap(damaged))
    router.answer = data.draw(split(said))

    async def ask() -> None:
        answer = await router.send(request_)
        if request_.startswith(b"HEAD"):
            assert answer.endswith(b"\r\n\r\n") or b'{"error"' in answer
        else:
            assert len(well_formed(answer).headers) >= 1, "every answer begins"
        await router.assert_idle()

    router.run(ask)


client_requests = st.sampled_from(
    [
        GET,
        CHAT,
        GET.replace(b"close", b"keep-alive") + CHAT,
        b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-T: 1\r\n\r\n",
        b"GET http://y/x HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n" + GET,
        b"OPTIONS * HTTP/1.0\r\n\r\n",
        b"POST /x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    ]
)


@live
@given(st.data())
def test_whatever_a_client_says_the_next_one_is_served(router: Live, data: st.DataObject) -> None:
    said = data.draw(st.binary() | client_requests.flatmap(damaged))
    pieces = data.draw(split(said))
    router.answer = [response(b"{}")]

    async def ask() -> None:
        # A broken request behind them lets the router close, whatever it has understood so far.
        answer = await router.send(*pieces, b"\r\n\r\n\x00\r\n\r\n")
        if answer:
            well_formed(answer)
        assert (await router.send(GET)).startswith(b"HTTP/1.1 200 OK\r\n")
        await router.assert_idle()

    router.run(ask)
