"""Asks one server: a request for a connection that is free, and a new one where none is."""

import asyncio
import ssl
from time import perf_counter
from urllib.parse import quote, urlsplit

from .connection import Connection
from .exchange import Exchange

IDLE_TIMEOUT = 4.0
"""Seconds. Below the 5 s after which the common engines (uvicorn's default) close an idle connection."""
STALE = 1.0
"""Seconds within which a kept connection breaks that its server had closed already."""


class Unreachable(Exception):  # noqa: N818 - not ours
    """The server cannot be asked at all. The message is one line."""


class Client:
    """`url` as `normalize_worker_url` makes it, with or without the API's own `/v1` at its end."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None, f"not an absolute URL: {url}"
        self.url = url
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._address = (parts.hostname, parts.port or (443 if self._tls else 80))
        self._server_name = parts.hostname if self._tls else None
        self._prefix = parts.path.removesuffix("/v1").encode()
        fields = [f"host: {parts.netloc}", "content-type: application/json"]
        if api_key is not None:
            fields.append(f"authorization: Bearer {api_key}")
        self._fields = "\r\n".join(fields).encode("latin-1")
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()

    async def connect(self) -> None:
        """Have a first connection. Raises Unreachable."""
        try:
            self._idle.append(await self._connect())
        except OSError as error:
            raise Unreachable(f"cannot connect to {self.url}: {_reason(error)}") from None

    async def model(self) -> str:
        """The first that the server has. Raises Unreachable."""
        exchange = Exchange()
        await self._send(self._head(b"GET", b"/v1/models"), b"", exchange)
        try:
            return str(exchange.json()["data"][0]["id"])
        except (ValueError, TypeError, KeyError, IndexError):
            said = exchange.error or f"status {exchange.status}"
            raise Unreachable(f"{self.url}/v1/models names no model ({said}): say which with --model") from None

    async def ask(self, path: bytes, body: bytes, session: str | None, exchange: Exchange) -> None:
        """Returns at the exchange's end, however it ended. A caller that is cancelled breaks it off."""
        await self._send(self._head(b"POST", path, len(body), session), body, exchange)

    async def close(self) -> None:
        """Returns when every connection is gone."""
        for connection in self._open:
            connection.close()
        if self._open:
            await asyncio.wait([connection.closed for connection in self._open])

    async def _send(self, head: bytes, body: bytes, exchange: Exchange) -> None:
        try:
            kept = self._take_idle()
            if kept is None:
                await self._exchange(await self._connect(), head, body, exchange)
                return
            sent = perf_counter()
            await self._exchange(kept, head, body, exchange)
            if not kept.answered and exchange.ended_at - sent < STALE:
                # Closed by the server in the same instant: RFC 9112, section 9.3.1.
                exchange.error = ""
                await self._exchange(await self._connect(), head, body, exchange)
        except OSError as error:
            exchange.fail(_reason(error), perf_counter())

    async def _exchange(self, connection: Connection, head: bytes, body: bytes, exchange: Exchange) -> None:
        try:
            await connection.start(head, body, exchange)
        except BaseException:
            connection.close()
            raise
        if connection.alive:
            connection.idle_since = perf_counter()
            self._idle.append(connection)

    def _head(self, method: bytes, path: bytes, size: int = 0, session: str | None = None) -> bytes:
        head = b"%b %b%b HTTP/1.1\r\n%b\r\ncontent-length: %d\r\n" % (method, self._prefix, path, self._fields, size)
        return head + (b"\r\n" if session is None else b"x-session-id: %b\r\n\r\n" % quote(session).encode())

    def _take_idle(self) -> Connection | None:
        oldest = perf_counter() - IDLE_TIMEOUT
        while self._idle:
            connection = self._idle.pop()
            if connection.alive and connection.idle_since >= oldest:
                return connection
            connection.close()
        return None

    async def _connect(self) -> Connection:
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        transport, connection = await loop.create_connection(
            lambda: Connection(loop), *self._address, ssl=self._tls, server_hostname=self._server_name
        )
        self._open.add(connection)
        connection.closed.add_done_callback(lambda _: self._open.discard(connection))
        # The name is looked up once: a thousand new connections must not be a thousand questions to a resolver.
        self._address = transport.get_extra_info("peername")[:2]
        return connection


def _reason(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower()
