"""An answer on its way: from the engine's thread to the client's socket, and given up when the client leaves."""

import asyncio
from array import array
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

import orjson
from starlette.types import Message, Receive, Scope, Send

from .core import FinishReason, Output, Request, SamplingParams
from .engine import Engine
from .protocol import Reply, server_error_payload
from .text import OutputText

_FAILURES = {
    FinishReason.ERROR: (500, "the engine failed on this request"),
    FinishReason.ABORT: (503, "the worker has stopped"),
}
"""Status and message of answers that the engine ends without their client's doing."""

_STREAM_HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
_END: Message = {"type": "http.response.body", "body": b"data: [DONE]\n\n"}


class Generation:
    """One request in the engine, seen from the event loop."""

    def __init__(
        self, engine: Engine, prompt: list[int], params: SamplingParams, text: OutputText, salt: str | None
    ) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._outputs: asyncio.Queue[Output] = asyncio.Queue()
        self._request = Request(array("q", prompt), params, text, self._deliver, salt or "")

    def _deliver(self, output: Output) -> None:
        with suppress(RuntimeError):  # the loop has ended before the engine did
            self._loop.call_soon_threadsafe(self._outputs.put_nowait, output)

    async def outputs(self) -> AsyncGenerator[Output, None]:
        """To the last one. Leaving early, for whatever reason, aborts the request."""
        self._engine.submit(self._request)
        try:
            while True:
                output = await self._outputs.get()
                yield output
                if output.finish_reason is not None:
                    return
        finally:
            self._engine.abort(self._request)


async def whole(generation: Generation, reply: Reply) -> AsyncGenerator[Message, None]:
    """ASGI messages of an answer in one piece."""
    text: list[str] = []
    async with aclosing(generation.outputs()) as outputs:
        async for output in outputs:
            text.append(output.text)
    reason = output.finish_reason
    assert reason is not None, "the last output has a reason"
    document = (
        _failure(reason) if reason in _FAILURES else _document(reply.whole("".join(text), reason, output.usage))
    )
    for message in document:
        yield message


async def stream(generation: Generation, reply: Reply, *, include_usage: bool) -> AsyncGenerator[Message, None]:
    """ASGI messages of an answer as server-sent events. Until the first token it can still fail with a status."""
    started = False
    async with aclosing(generation.outputs()) as outputs:
        async for output in outputs:
            if output.finish_reason in _FAILURES:
                for message in _broken_off(output.finish_reason) if started else _failure(output.finish_reason):
                    yield message
                return
            if not started:
                started = True
                yield {"type": "http.response.start", "status": 200, "headers": list(_STREAM_HEADERS)}
                for payload in reply.head():
                    yield _event(payload)
            for payload in reply.pieces(output):
                yield _event(payload)
    if include_usage:
        yield _event(reply.usage(output.usage))
    yield _END


def _failure(reason: FinishReason) -> list[Message]:
    status, message = _FAILURES[reason]
    return _document(server_error_payload(message), status)


def _broken_off(reason: FinishReason) -> list[Message]:
    _, message = _FAILURES[reason]
    return [_event(server_error_payload(message)), _END]


def _document(payload: dict[str, Any], status: int = 200) -> list[Message]:
    body = orjson.dumps(payload)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    return [
        {"type": "http.response.start", "status": status, "headers": headers},
        {"type": "http.response.body", "body": body},
    ]


def _event(payload: dict[str, Any]) -> Message:
    return {"type": "http.response.body", "body": b"data: " + orjson.dumps(payload) + b"\n\n", "more_body": True}


class Answer:
    """Sends messages as they come, as an ASGI application; ends with the last one, or when the client leaves."""

    def __init__(self, messages: AsyncGenerator[Message, None]) -> None:
        self._messages = messages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            sending.cancel()  # does nothing where it has ended
            with suppress(asyncio.CancelledError):
                await sending

    async def _send(self, send: Send) -> None:
        async with aclosing(self._messages) as messages:
            async for message in messages:
                await send(message)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
