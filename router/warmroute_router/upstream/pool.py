"""The connections to one worker: kept open when their exchange ended well, last in first out."""

import asyncio
import errno
import logging
import ssl
from urllib.parse import urlsplit

from ..config import TimeoutConfig, WorkerSpec
from ..errors import ConnectFailed, ConnectionLost, ConnectTimedOut, router_exhausted
from ..silence import notice_silence
from ..types import Body
from .connection import Connection

logger = logging.getLogger(__name__)

IDLE_TIMEOUT = 4.0
"""Seconds. Below the 5 s after which the common engines (uvicorn's default) close an idle connection."""
STALE = 1.0
"""Seconds within which a kept connection breaks that its worker had closed already."""

UNREAD = 120.0
"""Seconds that a worker may leave what it was sent unread. A busy one may leave a long body for a while."""
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})
"""Errors that say nothing of the worker."""


class Pool:
    def __init__(self, spec: WorkerSpec, timeouts: TimeoutConfig, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: how to speak with workers whose URL is `https`. Where it is missing, they cannot be spoken with."""
        parts = urlsplit(spec.url)
        assert parts.hostname is not None, f"not an absolute URL: {spec.url}"
        self._host = parts.hostname
        secure = parts.scheme == "https"
        assert tls is not None or not secure, "TLS wants a context"
        self._tls = tls if secure else None
        self._server_name = (spec.server_name or parts.hostname) if secure else None
        self._port = parts.port or (443 if secure else 80)
        self._timeouts = timeouts
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._past_reads = 0
        self.host_header = spec.host.encode("ascii")
        self.path_prefix = parts.path.encode("ascii")

    async def request(self, head: bytes, body: Body, *, no_body: bool = False, repeatable: bool = True) -> Connection:
        """Send a request; returns the connection once the response's head is there.

        A kept connection may have been closed by the worker in the same instant. If it breaks before a single
        byte came back, the request goes out once more, on a new connection (RFC 9112, section 9.3.1). What must not
        be sent twice has a new one at once.
        """
        connection = self._take_idle() if repeatable else None
        fresh = connection is None
        while True:
            if connection is None:
                connection = await self._connect()
            self._busy.add(connection)
            try:
                connection.send(head, body, no_body=no_body)
                await connection.head()
                return connection
            except BaseException as error:
                self._drop(connection)
                if fresh or type(error) is not ConnectionLost or connection.answered or self._is_old(connection):
                    raise
            connection, fresh = None, True

    def _is_old(self, connection: Connection) -> bool:
        """Whether its exchange has gone on for so long that it cannot have been closed before it began."""
        return self._now() - connection.sent_at > STALE

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next request, or close it where its exchange did not end well."""
        if connection.reusable and not self._closed:
            self._busy.discard(connection)
            connection.idle_since = self._now()
            self._idle.append(connection)
        else:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self._busy.discard(connection)
        self._past_reads += connection.reads
        connection.discard()

    def sweep(self, now: float) -> None:
        """Now and then: end what takes too long, and close what nobody has used for long."""
        if self._timeouts.first_byte is not None or self._timeouts.idle is not None:
            for connection in list(self._busy):
                connection.check(now, self._timeouts)
        kept = [
            connection for connection in self._idle if connection.alive and now - connection.idle_since < IDLE_TIMEOUT
        ]
        if len(kept) < len(self._idle):
            gone, self._idle = set(self._idle).difference(kept), kept
            for connection in gone:
                self._drop(connection)

    def give_up_waiting(self, reason: str) -> None:
        """Break off where nothing of the answer has come yet: another worker may still give it."""
        for connection in list(self._busy):
            if not connection.begun:
                connection.fail(ConnectionLost(reason))

    def close(self) -> None:
        """The idle ones at once, those that are busy when their exchanges end."""
        self._closed = True
        while self._idle:
            self._drop(self._idle.pop())

    @property
    def idle(self) -> int:
        return len(self._idle)

    @property
    def busy(self) -> int:
        return len(self._busy)

    @property
    def reads(self) -> int:
        """Pieces of answers that have come: as long as it moves, the worker lives."""
        return self._past_reads + sum(connection.reads for connection in (*self._idle, *self._busy))

    def _take_idle(self) -> Connection | None:
        oldest = self._now() - IDLE_TIMEOUT
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since >= oldest and connection.alive:
                return connection
            self._drop(connection)
        return None

    def _now(self) -> float:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()  # which asks the system who it is, each time
        return self._loop.time()

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeouts.connect):
                transport, connection = await loop.create_connection(
                    lambda: Connection(loop), self._host, self._port, ssl=self._tls, server_hostname=self._server_name
                )
        except TimeoutError as error:
            raise ConnectTimedOut(self._timeouts.connect) from error
        except OSError as error:
            if error.errno in _OURS:
                logger.error("no connection to %s: %s", self._host, error)
                raise router_exhausted(error.strerror or str(error)) from error
            raise ConnectFailed(str(error), refused=isinstance(error, ConnectionRefusedError)) from error
        notice_silence(transport.get_extra_info("socket"), idle=30, interval=10, count=9, unread=UNREAD)
        return connection
