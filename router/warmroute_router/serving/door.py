"""The way in to one ASGI application: its listeners, and the clients that they have let in."""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..types import App
from .clients import Clients
from .http_protocol import HttpProtocol
from .listen import BACKLOG

HANDSHAKE_TIMEOUT = 10.0
"""Seconds that a client has to set up TLS."""
SWEEP_INTERVAL = 1.0
"""Seconds between two looks for connections that nobody uses."""


class Door:
    def __init__(
        self,
        app: App,
        listeners: Sequence[socket.socket],
        tls: ssl.SSLContext | None = None,
        *,
        refused: Counter[int] | None = None,
    ) -> None:
        """`refused`: see `Clients`."""
        self._clients = Clients(app, refused)
        self._listeners = listeners
        self._tls: dict[str, Any] = {}
        if tls is not None:
            self._tls = {"ssl": tls, "ssl_handshake_timeout": HANDSHAKE_TIMEOUT}
        self._servers: list[asyncio.Server] = []
        self._sweep: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        loop = asyncio.get_running_loop()

        def protocol() -> HttpProtocol:
            return HttpProtocol(self._clients, loop)

        for listener in self._listeners:
            # Also where it is a Unix socket: `create_unix_server` would take its file away, from other processes too.
            self._servers.append(await loop.create_server(protocol, sock=listener, backlog=BACKLOG, **self._tls))
        self._sweep_on(loop)

    def _sweep_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self._clients.sweep(loop.time())
        self._sweep = loop.call_later(SWEEP_INTERVAL, self._sweep_on, loop)

    @property
    def requests(self) -> int:
        return len(self._clients.tasks)

    @property
    def busy(self) -> bool:
        """Whether there are answers that have not been sent to their end."""
        return bool(self._clients.tasks or any(connection.unsent for connection in self._clients.connections))

    @property
    def empty(self) -> bool:
        return not self._clients.connections and not self._clients.tasks

    def send_away(self) -> None:
        """From now on each answer closes its connection, so that clients go and find another router."""
        self._clients.closes_connections = True

    def close(self) -> None:
        """Let nobody in any more."""
        for server in self._servers:
            server.close()
        if self._sweep is not None:
            self._sweep.cancel()

    def end_idle(self, *, new: bool) -> None:
        """Close connections once no answer is on its way; with `new` also those that have asked nothing yet."""
        for connection in list(self._clients.connections):
            connection.shutdown(new=new)

    def cut(self) -> None:
        """End every connection as if its client had: the requests end by themselves then."""
        for connection in list(self._clients.connections):
            connection.abort()
