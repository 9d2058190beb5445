"""HTTP/1.1 on one connection: requests are answered one after the other, and the next waits for its turn."""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from functools import cache
from http import HTTPStatus
from typing import NamedTuple, Protocol, cast

import httptools
import orjson

MAX_BODY = 64 * 1024 * 1024
_MAX_WAITING = 64
"""Requests that wait for their turn; with more of them the connection is not read on."""
_LINGER = 1.0
"""Seconds for a client to read why it was refused, before the connection closes under what it still sends."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that lets a close send RST."""


class Request(NamedTuple):
    method: bytes
    path: bytes
    body: bytes
    keep_alive: bool
    chunked: bool
    """Whether the answer may be."""


class Answer(Protocol):
    """One that is not complete yet."""

    def resume(self) -> None:
        """The connection is writable again."""

    def lost(self) -> None:
        """The client has left."""


class Connection(asyncio.Protocol):
    """`serve` is called with each request in its turn, and calls `reply`, or `write` and then `done`."""

    def __init__(self, serve: Callable[["Connection", Request], None]) -> None:
        self.answer: Answer | None = None
        """Whoever is to know what becomes of the connection, until `done`."""
        self.writable = True
        self._serve = serve
        self._request: Request | None = None
        """The one that is being answered."""
        self._waiting: deque[Request] = deque()
        self._parser = httptools.HttpRequestParser(self)
        self._deaf = False
        """Nothing more is understood, only thrown away."""

    # For those who answer

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def reply(
        self,
        body: bytes,
        status: int = 200,
        content_type: bytes = b"application/json",
        headers: bytes = b"",
        *,
        part: float = 1.0,
    ) -> None:
        """A whole answer. `headers` are lines with their ends. Of the body, only `part` is sent."""
        assert self._request is not None, "nobody has asked"
        if not self._request.keep_alive:
            headers += b"connection: close\r\n"
        head = b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\n%bcontent-length: %d\r\n\r\n" % (
            status,
            _phrase(status),
            content_type,
            headers,
            len(body),
        )
        self._transport.write(head if self._request.method == b"HEAD" else head + body[: int(len(body) * part)])
        if part < 1:
            self.close()
        else:
            self.done()

    def reply_error(self, status: int, message: str, code: str | None = None, headers: bytes = b"") -> None:
        self.reply(_error(status, message, code), status, headers=headers)

    def done(self) -> None:
        """The answer is complete."""
        assert self._request is not None, "nobody has asked"
        keep_alive = self._request.keep_alive
        self.answer = self._request = None
        if not keep_alive:
            self.close()
        elif self._waiting:
            asyncio.get_running_loop().call_soon(self._serve_next)

    def close(self) -> None:
        """After what has been written."""
        self._deaf = True
        self._transport.close()

    def reset(self) -> None:
        self._deaf = True
        self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deaf = True
        self._waiting.clear()
        if self.answer is not None:
            self.answer.lost()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        if self.answer is not None:
            self.answer.resume()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._deaf = True  # it is answered without the upgrade, and is the last on this connection
        except httptools.HttpParserCallbackError:
            raise  # our own bug
        except httptools.HttpParserError as error:
            self._refuse(400, f"not a request: {error}")

    # The parser's side

    def on_message_begin(self) -> None:
        self._target = b""
        self._expects = False
        self._body: list[bytes] = []
        self._size = 0

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == 6 and name.lower() == b"expect":
            self._expects = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        if self._expects and self._request is None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size <= MAX_BODY:
            self._body.append(body)
        elif not self._deaf:
            self._body.clear()
            self._refuse(413, f"a body has at most {MAX_BODY} bytes")

    def on_message_complete(self) -> None:
        if self._deaf:
            return
        parser = self._parser
        modern = parser.get_http_version() == "1.1"
        request = Request(
            parser.get_method(),
            self._target.partition(b"?")[0],
            self._body[0] if len(self._body) == 1 else b"".join(self._body),
            keep_alive=modern and parser.should_keep_alive() and not parser.should_upgrade(),
            chunked=modern,
        )
        if self._request is None and not self._waiting:
            self._begin(request)
            return
        self._waiting.append(request)
        if len(self._waiting) > _MAX_WAITING:
            self._transport.pause_reading()

    def _serve_next(self) -> None:
        """In a turn of its own, so that those who ask for much at once do not keep all others waiting."""
        if self._waiting and not self._transport.is_closing():
            request = self._waiting.popleft()
            if len(self._waiting) == _MAX_WAITING // 2:
                self._transport.resume_reading()
            self._begin(request)

    def _begin(self, request: Request) -> None:
        self._request = request
        self._serve(self, request)

    def _refuse(self, status: int, message: str) -> None:
        """The connection ends with this, as nobody can say where the next request would begin."""
        self._deaf = True
        if self._request is not None or self._waiting:  # what comes before is not answered yet
            self._transport.abort()
            return
        self._request = Request(b"", b"", b"", keep_alive=True, chunked=True)
        self.reply_error(status, message, headers=b"connection: close\r\n")
        self._transport.write_eof()
        asyncio.get_running_loop().call_later(_LINGER, self._transport.close)


@cache
def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b"Unknown"


def _error(status: int, message: str, code: str | None) -> bytes:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})
