"""A worker without a model, as light as it can be: a fixed answer, whole or in 16 chunks, to whatever is asked.

`python -m warmroute_loadtest.mock_worker` prints its URL and serves until it is stopped.
"""

import asyncio
from typing import cast

import httptools
import orjson
import uvloop

STREAM_CHUNKS = 16

_USAGE = {
    "prompt_tokens": 512,
    "completion_tokens": STREAM_CHUNKS,
    "total_tokens": 512 + STREAM_CHUNKS,
    "prompt_tokens_details": {"cached_tokens": 256},
}


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(payload: object) -> bytes:
    return _http_chunk(b"data: " + orjson.dumps(payload) + b"\n\n")


_ANSWER = orjson.dumps(
    {
        "id": "chatcmpl-mock",
        "object": "chat.completion",
        "model": "mock",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "word " * STREAM_CHUNKS}}],
        "usage": _USAGE,
    }
)
_WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(_ANSWER),
    _ANSWER,
)
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_STREAM_CHUNK = _event({"id": "chatcmpl-mock", "choices": [{"index": 0, "delta": {"content": "word "}}]})
_STREAM_END = (
    _event({"id": "chatcmpl-mock", "choices": [], "usage": _USAGE}) + _http_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
)


class MockWorker(asyncio.Protocol):
    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        # Tells a streamed request without parsing the body: it is the mock's own load generator that asks.
        streamed = bool(self._body) and b'"stream":true' in self._body[0][:64]
        self._body.clear()
        if streamed:
            self._transport.write(_STREAM_HEAD)
            self._send_chunk(STREAM_CHUNKS)
        else:
            self._transport.write(_WHOLE)

    def _send_chunk(self, left: int) -> None:
        """One chunk in each turn of the loop, so that each is a packet of its own."""
        if self._transport.is_closing():
            return
        if left:
            self._transport.write(_STREAM_CHUNK)
            asyncio.get_running_loop().call_soon(self._send_chunk, left - 1)
        else:
            self._transport.write(_STREAM_END)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(MockWorker, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve())
