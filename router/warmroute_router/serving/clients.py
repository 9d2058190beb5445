"""The clients of one application: their connections, and what is computed for them."""

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from ..types import App

if TYPE_CHECKING:
    from .http_protocol import HttpProtocol


class Clients:
    def __init__(self, app: App, refused: Counter[int] | None = None) -> None:
        """`refused`: counts by status what is no request that could be given to `app`."""
        self.app = app
        self.refused: Counter[int] = refused if refused is not None else Counter()
        self.connections: set[HttpProtocol] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        """One for each request."""
        self.closes_connections = False
        """Whether each answer is the last on its connection, so that clients go and find another router."""

    def sweep(self, now: float) -> None:
        """Now and then: close connections on which nothing has been asked for long."""
        for connection in list(self.connections):
            connection.close_if_idle(now)
