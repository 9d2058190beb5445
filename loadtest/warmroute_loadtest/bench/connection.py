"""The generator's own side of HTTP/1.1: one connection, on httptools, that notes when each piece of an answer came.

No coroutine wakes for a piece: at thousands of streams that would cost more than all else, and a piece's time would
be when its reader's turn comes.
"""

import asyncio
from time import perf_counter
from typing import cast

import httptools

from .exchange import Exchange


class Connection(asyncio.Protocol):
    """One exchange at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._over: asyncio.Future[None] | None = None
        self._now = 0.0
        self._interim = False
        self._head_done = False
        self._framed = False
        self.idle_since = perf_counter()
        self.answered = False
        """Whether any byte has come of the answer that is waited for."""
        self.alive = True
        self.closed: asyncio.Future[None] = loop.create_future()

    def start(self, head: bytes, body: bytes, exchange: Exchange) -> "asyncio.Future[None]":
        """Send a request. The future is done when the exchange has ended or failed."""
        assert self._transport is not None, "start() before connection_made()"
        self._exchange = exchange
        self._head_done = self._framed = self.answered = False
        self._over = self._loop.create_future()
        if body:
            self._transport.writelines((head, body))
        else:
            self._transport.write(head)
        return self._over

    def close(self) -> None:
        """At once, whatever is under way."""
        self.alive = False
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._now = perf_counter()
        if self._exchange is None:  # a server that talks out of turn (a 408 on an idle connection) is about to close
            self.close()
            return
        self.answered = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"not a valid HTTP response: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.alive = False
        self._now = perf_counter()
        if self._exchange is not None:
            if exc is None and self._head_done and not self._framed:
                self._end()  # the end of the connection is that of the body
            else:
                self._fail("the connection was closed" + (" amid the answer" if self.answered else ""))
        del self._parser  # which refers back to the connection
        self.closed.set_result(None)

    # httptools callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._exchange is not None and not self._head_done:
            self._exchange.header(name, value)

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._interim = 100 <= status < 200
        if self._interim or self._exchange is None:
            return
        headers = self._exchange.headers
        self._framed = b"content-length" in headers or b"transfer-encoding" in headers
        self._head_done = True
        self._exchange.head(status)

    def on_body(self, body: bytes) -> None:
        if self._exchange is not None:
            self._exchange.body(body, self._now)

    def on_message_complete(self) -> None:
        if self._interim:  # 100 Continue, 103 Early Hints: the real head follows
            return
        # A server that answers before it has read all of a request would take the rest for the next one.
        if not self._parser.should_keep_alive() or self._unsent:
            self.close()
        self._end()

    @property
    def _unsent(self) -> bool:
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    def _end(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.end(self._now)
            self._wake()

    def _fail(self, reason: str) -> None:
        exchange, self._exchange = self._exchange, None
        self.close()
        if exchange is not None:
            exchange.fail(reason, self._now)
            self._wake()

    def _wake(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)
