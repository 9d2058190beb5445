"""The connections of one ASGI application: its listeners, and what they have let in. A `uvicorn.Server` in parts.

uvicorn's own server cannot tell a delay from a drain, serves one application, and cuts streams with a traceback each.
"""

import asyncio
import socket
import ssl
from collections.abc import Sequence
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from .listen import BACKLOG

HANDSHAKE_TIMEOUT = 10.0
"""Seconds that a client has to set up TLS."""


class Door:
    def __init__(
        self, config: uvicorn.Config, listeners: Sequence[socket.socket], tls: ssl.SSLContext | None = None
    ) -> None:
        config.load()
        self.config = config
        self._listeners = listeners
        self._tls: dict[str, Any] = {}
        if tls is not None:
            self._tls = {"ssl": tls, "ssl_handshake_timeout": HANDSHAKE_TIMEOUT}
        self._state = ServerState()
        self._servers: list[asyncio.Server] = []

    async def open(self, app_state: dict[str, Any]) -> None:
        """app_state: what the application's start has left for its requests."""

        def protocol() -> asyncio.Protocol:
            return self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self._state, app_state=app_state
            )

        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            # Also where it is a Unix socket: `create_unix_server` would take its file away, from other processes too.
            self._servers.append(await loop.create_server(protocol, sock=listener, backlog=BACKLOG, **self._tls))

    @property
    def requests(self) -> int:
        return len(self._state.tasks)

    @property
    def busy(self) -> bool:
        """Whether there are answers that have not been sent to their end."""
        return bool(
            self._state.tasks
            or any(connection.transport.get_write_buffer_size() for connection in self._state.connections)
        )

    @property
    def empty(self) -> bool:
        return not self._state.connections and not self._state.tasks

    def send_away(self) -> None:
        """From now on each answer closes its connection, so that clients go and find another router."""
        self._state.default_headers = [(b"connection", b"close")]

    def close(self) -> None:
        """Let nobody in any more."""
        for server in self._servers:
            server.close()

    def end_idle(self, *, new: bool) -> None:
        """Close connections once no answer is on its way; with `new` also those that have asked nothing yet."""
        for connection in list(self._state.connections):
            if new or cast(HttpToolsProtocol, connection).cycle is not None:
                connection.shutdown()

    def cut(self) -> None:
        """End every connection as if its client had: the requests end by themselves then."""
        for connection in list(self._state.connections):
            connection.transport.abort()
