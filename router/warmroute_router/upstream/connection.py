"""The worker's side of the data path: one connection, on httptools.

Written by hand because it is the hot path: one `asyncio.Protocol`, one future to wait on, no task, no timer: whatever
takes too long is found by the pool's sweep. What arrives in one read of the socket leaves in one piece, in the same
turn of the loop where a sink is there (`pour`), and nothing is read from a worker while more than `HIGH_WATER` bytes
wait for the client.
"""

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

from ..config import TimeoutConfig
from ..errors import ConnectionLost, TimedOut, UpstreamError
from ..types import Body, Headers
from ..writing import write_together

HIGH_WATER = 256 * 1024
"""Bytes of one response that may wait for the client before its worker is held back."""
MAX_HEAD = 256 * 1024
"""Bytes of a response's head, interim ones included."""


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection to a worker, one exchange at a time.

    `send`, then `head` waits for the response's (`status`, `headers`); `read` gives the body piece by piece and `b""`
    at its end; `abort` breaks off. Raises `ConnectionLost` where the worker does.
    """

    _transport: asyncio.Transport
    """Since `connection_made`."""
    _parser: httptools.HttpResponseParser

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Callable[[bytes], bool] | None = None
        self._error: UpstreamError | None = None
        self.idle_since = 0.0
        self.sent_at = self._waiting_since = 0.0
        self.reads = 0
        """Pieces of answers that came: a sign of life."""
        self._no_body = True
        self._reset(no_body=False)

    def _reset(self, no_body: bool) -> None:
        self.status = 0
        self.headers: Headers = []
        """Names in lower case."""
        self.complete = False
        self.answered = False
        """Whether any byte of a response has come."""
        self.begun = False
        """Whether any byte of its body has."""
        if self._no_body:  # the parser still waits for what an answer to HEAD only has the length of
            self._parser = httptools.HttpResponseParser(self)
        self._no_body = no_body
        self._head_bytes = 0
        self._framed = False
        self._interim = False
        self._head_done = False
        self._reusable = False
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._paused = False

    @property
    def alive(self) -> bool:
        return self._error is None

    @property
    def reusable(self) -> bool:
        if not (self.complete and self._reusable and self._error is None):
            return False
        # A worker that answers before it has read all of a request would take the rest for the next one.
        return not self._transport.get_write_buffer_size()

    def send(self, head: bytes, body: Body, *, no_body: bool = False) -> None:
        """One request. `no_body` is for HEAD, whose answer has none."""
        if self._error is not None:
            raise self._error
        self._reset(no_body)
        self.sent_at = self._loop.time()
        write_together(self._transport, head, body)

    async def head(self) -> None:
        """Wait until `status` and `headers` are there."""
        while not self._head_done:
            await self._more()

    async def read(self) -> bytes:
        while not self._chunks:
            if self.complete:
                return b""
            await self._more()
        return self.take()

    def take(self) -> bytes:
        """What has come of the body and has not been read; nothing where that is nothing."""
        chunks = self._chunks
        if not chunks:
            return b""
        self._chunks, self._buffered = [], 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def pour(self, sink: Callable[[bytes], bool]) -> bool:
        """Hand each piece of the body to `sink` as it comes, in the same turn of the loop: no task has to be woken.

        Until the last has come, which is left for `take`. False where `sink` has enough before that.
        """
        if self._chunks and not self.complete and not sink(self.take()):
            return False
        self._sink = sink
        try:
            while self._sink is not None and not self.complete:
                await self._more()
        finally:
            self._sink = None
        return self.complete

    def abort(self) -> None:
        self._transport.abort()

    def discard(self) -> None:
        """Break off, once and for all, and let go of what nobody will read.

        The parser refers back to the connection: without this, megabytes would wait for the garbage collector.
        """
        self._error = self._error or ConnectionLost("given up")
        self.abort()
        self._chunks.clear()
        del self._parser

    async def _more(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        self._waiting_since = self._loop.time()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, error: UpstreamError) -> None:
        """Break off: whoever waits for this worker gets the error."""
        self._error = error
        self.abort()
        self._wake()

    def check(self, now: float, timeouts: TimeoutConfig) -> None:
        """Fail where the worker has been waited for too long. While the client is waited for, nothing is due."""
        if self._waiter is None:
            return
        if self.begun:
            if timeouts.idle is not None and now - self._waiting_since > timeouts.idle:
                self.fail(TimedOut("idle", timeouts.idle))
        elif timeouts.first_byte is not None and now - self.sent_at > timeouts.first_byte:
            self.fail(TimedOut("first-byte", timeouts.first_byte))

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.complete or self._error is not None:
            # A worker that talks out of turn (a 408 on an idle connection) is about to close.
            self.fail(ConnectionLost("data outside an exchange"))
            return
        self.answered = True
        self.reads += 1
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.fail(ConnectionLost(f"not a valid HTTP response: {error}"))
            return
        if not self._head_done:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD:
                self.fail(ConnectionLost("the head of its response has no end"))
                return
        if not self.complete:
            if self._sink is not None:
                self._waiting_since = self._loop.time()
                if not self._chunks or self._sink(self.take()):
                    return
                self._sink = None
            elif self._buffered > HIGH_WATER and not self._paused:
                self._paused = True
                self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        ends_the_body = self._head_done and not self._framed and exc is None and not self.complete
        if ends_the_body:
            self.complete = True
        if self._error is None:
            self._error = ConnectionLost(f"the connection broke: {exc}" if exc else "the connection was closed")
        self._wake()

    # httptools callbacks

    def on_message_begin(self) -> None:
        if self.complete:
            raise ValueError("a second response to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_done:  # trailers are not passed on
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if not 100 <= self.status < 600:
            raise ValueError(f"status {self.status}")
        self._interim = 100 <= self.status < 200
        if self._interim:
            return
        names = dict(self.headers)
        self._framed = b"content-length" in names or b"transfer-encoding" in names
        self._head_done = True
        if self._no_body:
            self.on_message_complete()

    def on_body(self, body: bytes) -> None:
        self.begun = True
        self._chunks.append(body)
        self._buffered += len(body)

    def on_message_complete(self) -> None:
        if self._interim:  # 100 Continue, 103 Early Hints: the real head follows
            self.headers = []
            return
        self.complete = True
        self._reusable = self._parser.should_keep_alive()
