"""One request and its answer on a client's connection, as ASGI has them."""

import asyncio
import logging
from http import HTTPStatus
from typing import Any, Protocol

from ..errors import error_body
from ..types import ENDS_WITH_CLIENT, App, Headers, Message, Scope

logger = logging.getLogger(__name__)

BODY_PAUSE = 256 * 1024
"""Bytes of a request's body that wait for the application, after which the client has to wait too."""
_STATUS_LINES = {status: b"HTTP/1.1 %d " % status for status in range(100, 1000)} | {
    int(status): b"HTTP/1.1 %d %b" % (status, status.phrase.encode()) for status in HTTPStatus
}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_WITHOUT_BODY = frozenset({204, 304})


class Line(Protocol):
    """The connection under it."""

    write_paused: bool

    @property
    def closes_connections(self) -> bool:
        """Whether each answer shall be the last of its connection."""

    def write(self, data: bytes) -> None: ...
    def write_both(self, head: bytes, body: bytes) -> None: ...
    async def drained(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def answered(self, cycle: "Cycle") -> None:
        """The answer has been written to its end."""

    def cut(self) -> None:
        """Close without an end to the answer, so that nobody takes it for whole."""

    def ended(self, cycle: "Cycle") -> None:
        """Its task has nothing more to do."""


class Cycle:
    """`run` is its task."""

    def __init__(self, line: Line, scope: Scope, *, keep_alive: bool, expects_continue: bool) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        self.started = False
        """Whether any of the answer has been written."""
        self.complete = False
        self.disconnected = False
        self.body_size = 0
        """Bytes that have come."""
        self.task: asyncio.Task[None] | None = None
        self._line = line
        self._expects_continue = expects_continue
        self._chunks: list[bytes] = []
        self._waiting = 0
        """Bytes of them."""
        self._more_body = True
        self._handed_over = False
        """Whether the application has had the whole body."""
        self._waiter: asyncio.Future[None] | None = None
        self._head = b""
        """Of the answer, until it goes out together with the first of the body."""
        self._chunked = False
        self._left: int | None = None
        """Bytes that the answer's body still has, where that has been told."""
        self._without_body = scope["method"] == "HEAD"

    # The connection's side

    def feed(self, body: bytes) -> None:
        self.body_size += len(body)
        self._waiting += len(body)
        self._chunks.append(body)
        if self._waiting > BODY_PAUSE and self._waiter is None:
            self._line.pause_reading()
        self._wake()

    def feed_end(self) -> None:
        self._more_body = False
        self._wake()

    def disconnect(self) -> None:
        """Nobody is there to be answered."""
        self.disconnected = True
        if self.task is not None and ENDS_WITH_CLIENT in self.scope:
            self.task.cancel()
        self._wake()

    async def run(self, app: App) -> None:
        try:
            await app(self.scope, self.receive, self)
        except asyncio.CancelledError:
            if not self.disconnected:
                raise
        except Exception:
            logger.exception("a request failed by a fault of the router's own")
            await self._fail()
        else:
            if not self.complete and not self.disconnected:
                self._line.cut()
        finally:
            self._line.ended(self)

    async def _fail(self) -> None:
        if self.started or self.disconnected:
            self._line.cut()
            return
        body = error_body("The router failed; its log says how.", type="server_error", code="internal_error")
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await self({"type": "http.response.start", "status": 500, "headers": headers})
        await self({"type": "http.response.body", "body": body})

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ASGI

    async def receive(self) -> Message:
        """What there is of the body: all of it where it came in one read with its head."""
        if self._expects_continue and not self.disconnected:
            self._expects_continue = False
            self._line.write(_CONTINUE)
        while self._handed_over or (self._more_body and not self._chunks):
            if self.disconnected or self.complete:
                return {"type": "http.disconnect"}
            self._line.resume_reading()
            await self._wait()
        chunks, self._chunks, self._waiting = self._chunks, [], 0
        self._handed_over = not self._more_body
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        return {"type": "http.request", "body": body, "more_body": self._more_body}

    async def __call__(self, message: Message) -> None:
        """ASGI's `send`."""
        if message["type"] == "http.response.start":
            self.start(message["status"], message["headers"])
            return
        await self.drained()
        body = message.get("body", b"")
        if message.get("more_body", False):
            self.write(body)
        else:
            self.end(body)

    def start(self, status: int, headers: Headers) -> None:
        """Nothing is written before there is some of the body: then both go out in one packet."""
        self._head = self._head_of(status, headers)

    def write(self, body: bytes) -> bool:
        if not self.disconnected:
            self._write(body, more_body=True)
        return not self._line.write_paused

    def end(self, body: bytes) -> None:
        if self.disconnected:
            return
        self._write(body, more_body=False)
        self.complete = True
        self._chunks.clear()
        self._wake()
        self._line.answered(self)

    async def drained(self) -> None:
        if self._line.write_paused and not self.disconnected:
            await self._line.drained()

    def _write(self, body: bytes, more_body: bool) -> None:
        if self._without_body:
            body = b""
        elif self._chunked:
            body = _chunk(body, more_body)
        elif self._left is not None:
            self._left -= len(body)
            if self._left < 0 or (self._left and not more_body):
                raise RuntimeError("the body is not as long as its content-length says")
        if not self.started:
            self.started = True
            self._line.write_both(self._head, body)
        elif body:
            self._line.write(body)

    def _head_of(self, status: int, headers: Headers) -> bytes:
        fields = dict(headers)
        lines = [_STATUS_LINES[status], *[name + b": " + value for name, value in headers]]
        length = fields.get(b"content-length")
        self._without_body = self._without_body or status in _WITHOUT_BODY
        if length is not None:
            self._left = int(length)
        elif not self._without_body and self.scope["http_version"] != "1.0":  # there its end is the connection's
            self._chunked = True
            lines.append(b"transfer-encoding: chunked")
        if not self.keep_alive or self._line.closes_connections:
            self.keep_alive = False
            if b"connection" not in fields:
                lines.append(b"connection: close")
        elif b"close" in fields.get(b"connection", b"").lower():
            self.keep_alive = False
        head = b"\r\n".join(lines)
        if head.count(b"\n") >= len(lines) or head.count(b"\r") >= len(lines):
            raise ValueError("a header of the answer has a line break in it")
        return head + b"\r\n\r\n"


def common_scope(transport: asyncio.BaseTransport) -> dict[str, Any]:
    """What all requests of a connection have in common. A Unix socket has no addresses."""
    peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
        "root_path": "",
        "client": (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else None,
        "server": (str(own[0]), int(own[1])) if isinstance(own, tuple) else None,
    }


def _chunk(body: bytes, more_body: bool) -> bytes:
    if not body:
        return b"" if more_body else b"0\r\n\r\n"
    return b"".join((b"%x\r\n" % len(body), body, b"\r\n" if more_body else b"\r\n0\r\n\r\n"))
