"""An answer on its way: from the engine's thread to the client's socket, and given up when the client leaves."""

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

import orjson
from starlette.types import Message, Receive, Scope, Send

from .core import FinishReason, Output, Request, SamplingParams
from .engine import Engine
from .protocol import Reply
from .text import OutputText

_ENGINE_FAILED = {
    "error": {"message": "the engine failed on this request", "type": "server_error", "param": None, "code": None}
}


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

    async def outputs(self) -> AsyncIterator[Output]:
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


async def whole(generation: Generation, reply: Reply) -> AsyncIterator[Message]:
    """ASGI messages of an answer in one piece."""
    text: list[str] = []
    async with aclosing(generation.outputs()) as outputs:  # type: ignore[type-var]
        async for output in outputs:
            text.append(output.text)
    if output.finish_reason is FinishReason.ERROR:
        body, status = orjson.dumps(_ENGINE_FAILED), 500
    else:
        assert output.finish_reason is not None, "the last output has a reason"
        body, status = orjson.dumps(reply.whole("".join(text), output.finish_reason, output.usage)), 200
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    yield {"type": "http.response.start", "status": status, "headers": headers}
    yield {"type": "http.response.body", "body": body}


async def stream(generation: Generation, reply: Reply, *, include_usage: bool) -> AsyncIterator[Message]:
    """ASGI messages of an answer as server-sent events."""
    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
    async with aclosing(generation.outputs()) as outputs:  # type: ignore[type-var]
        async for output in outputs:
            if headers:  # with the first token, so that an error before it could still be a status
                yield {"type": "http.response.start", "status": 200, "headers": headers}
                headers = []
                for payload in reply.head():
                    yield _event(payload)
            if output.finish_reason is FinishReason.ERROR:
                yield _event(_ENGINE_FAILED)
                break
            for payload in reply.pieces(output):
                yield _event(payload)
    if include_usage:
        yield _event(reply.usage(output.usage))
    yield {"type": "http.response.body", "body": b"data: [DONE]\n\n"}


def _event(payload: dict[str, Any]) -> Message:
    return {"type": "http.response.body", "body": b"data: " + orjson.dumps(payload) + b"\n\n", "more_body": True}


class Answer:
    """Sends messages as they come, as an ASGI application; ends with the last one, or when the client leaves."""

    def __init__(self, messages: AsyncIterator[Message], request_id: str) -> None:
        self._messages = messages
        self._request_id = (b"x-request-id", request_id.encode("latin-1"))

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
        async with aclosing(self._messages) as messages:  # type: ignore[type-var]
            async for message in messages:
                if message["type"] == "http.response.start":
                    message["headers"].append(self._request_id)
                await send(message)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
