"""The worker's side of the data path: keep-alive connections on httptools.

Written by hand because it is the hot path: one `asyncio.Protocol`, one future to wait on, no task, no timer.
What arrives in one read of the socket leaves in one piece, and nothing is read from a worker while more than
`HIGH_WATER` bytes wait for the client.
"""

import asyncio
import ssl
from typing import cast
from urllib.parse import urlsplit

import httptools

from .errors import ConnectFailed, ConnectionLost
from .types import Headers

CONNECT_TIMEOUT = 5.0
"""Seconds."""

IDLE_TIMEOUT = 4.0
"""Seconds. Below the 5 s after which the common engines (uvicorn's default) close an idle connection."""

HIGH_WATER = 256 * 1024
"""Bytes of one response that may wait for the client before its worker is held back."""


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection to a worker, one exchange at a time.

    `request` sends and waits for the response's head (`status`, `headers`); `read` gives the body piece by
    piece and `b""` at its end; `abort` breaks off. Raises `ConnectionLost` where the worker does.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: ConnectionLost | None = None
        self.idle_since = 0.0
        self._reset(no_body=False)

    def _reset(self, no_body: bool) -> None:
        self.status = 0
        self.headers: Headers = []
        self.complete = False
        self.answered = False
        """Whether any byte of a response has come."""
        self._parser = httptools.HttpResponseParser(self)
        self._no_body = no_body
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
        return self.complete and self._reusable and self._error is None

    async def request(self, head: bytes, body: bytes, *, no_body: bool = False) -> None:
        """Send one request and wait for the response's head. `no_body` is for HEAD, whose answer has none."""
        assert self._transport is not None, "request() before connection_made()"
        if self._error is not None:
            raise self._error
        self._reset(no_body)
        if body:
            self._transport.writelines((head, body))
        else:
            self._transport.write(head)
        while not self._head_done:
            await self._more()

    async def read(self) -> bytes:
        while not self._chunks:
            if self.complete:
                return b""
            await self._more()
        chunks, self._chunks, self._buffered = self._chunks, [], 0
        if self._paused:
            self._paused = False
            cast("asyncio.Transport", self._transport).resume_reading()
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _more(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, reason: str) -> None:
        self._error = ConnectionLost(reason)
        self.abort()
        self._wake()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.complete or self._error is not None:
            # A worker that talks out of turn (a 408 on an idle connection) is about to close.
            self._fail("data outside an exchange")
            return
        self.answered = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"not a valid HTTP response: {error}")
            return
        if self._buffered > HIGH_WATER and not self._paused and not self.complete:
            self._paused = True
            cast("asyncio.Transport", self._transport).pause_reading()
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
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if not 100 <= self.status < 600:
            raise ValueError(f"status {self.status}")
        self._interim = 100 <= self.status < 200
        if self._interim:
            return
        names = {name.lower() for name, _ in self.headers}
        self._framed = b"content-length" in names or b"transfer-encoding" in names
        self._head_done = True
        if self._no_body:
            self.on_message_complete()

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)
        self._buffered += len(body)

    def on_message_complete(self) -> None:
        if self._interim:  # 100 Continue, 103 Early Hints: the real head follows
            self.headers = []
            return
        self.complete = True
        self._reusable = self._parser.should_keep_alive()


class Pool:
    """Connections to one worker: kept open when their exchange ended well, last in first out."""

    def __init__(self, url: str) -> None:
        """`url` is absolute, with a scheme of http or https, and without a trailing slash."""
        parts = urlsplit(url)
        assert parts.hostname is not None, f"not an absolute URL: {url}"
        self._host = parts.hostname
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._idle: list[Connection] = []
        self.host_header = parts.netloc.rpartition("@")[2].encode("ascii")
        self.path_prefix = parts.path.encode("ascii")

    async def request(self, head: bytes, body: bytes, *, no_body: bool = False) -> Connection:
        """Send a request; returns the connection once the response's head is there.

        A kept connection may have been closed by the worker in the same instant. If it breaks before a single
        byte came back, the request goes out once more, on a new connection (RFC 9112, section 9.3.1).
        """
        connection = self._take_idle()
        if connection is not None:
            try:
                await connection.request(head, body, no_body=no_body)
                return connection
            except ConnectionLost:
                if connection.answered:
                    raise
            except BaseException:
                connection.abort()
                raise
        connection = await self._connect()
        try:
            await connection.request(head, body, no_body=no_body)
        except BaseException:
            connection.abort()
            raise
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next request, or close it where its exchange did not end well."""
        if connection.reusable:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.abort()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().abort()

    @property
    def idle(self) -> int:
        return len(self._idle)

    def _take_idle(self) -> Connection | None:
        oldest = asyncio.get_running_loop().time() - IDLE_TIMEOUT
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since < oldest:
                connection.abort()
                self.close()  # the ones below have been idle for longer
            elif connection.alive:
                return connection
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop), self._host, self._port, ssl=self._tls
                )
        except TimeoutError as error:
            raise ConnectFailed(f"no connection within {CONNECT_TIMEOUT:g} s") from error
        except OSError as error:
            raise ConnectFailed(str(error), refused=isinstance(error, ConnectionRefusedError)) from error
        return connection
