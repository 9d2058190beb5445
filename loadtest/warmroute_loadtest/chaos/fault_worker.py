"""A worker without a model on bare sockets: right answers in OpenAI's shapes, and any fault that it is told to have.

Many of them run in one event loop. `fault` and `health` may be set at any time:

    async with FaultWorker("w0") as worker:
        worker.fault = Fault(Kind.STALL, after=3)
"""

import asyncio
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from types import TracebackType

from .answers import OWN_PATHS, answer_to, error, own_answer
from .connection import ClientGone, Connection, Request
from .faults import GOOD, KILLED, Fault, Health, Kind
from .misbehaviour import MISBEHAVIOURS

_SEEN = 256
"""Requests that are remembered."""


class FaultWorker:
    """`journal` is told the token of each request, when it has been read, and the fault that it meets.

    It is told again, with `KILLED`, where a `stop` cuts the answer off.
    """

    def __init__(
        self,
        name: str,
        *,
        model: str = "mock",
        concurrency: int | None = None,
        journal: Callable[[str, Fault], None] | None = None,
    ) -> None:
        """`concurrency`: requests that it works on at a time; further ones wait, as an engine's queue does."""
        self.name = name
        self.model = model
        self.health: Health = "up"
        self.delay = 0.0
        """Seconds before the first byte."""
        self.chunks = 8
        """Words of an answer, where the request does not say."""
        self.chunk_interval = 0.0
        """Seconds before each further piece of it."""
        self.requests = 0
        """Of the data path: all but the GETs that routers send themselves."""
        self.concurrent = 0
        """Of these, in flight."""
        self.max_concurrent = 0
        self.aborted = 0
        """Of these, left by the client before their end."""
        self.connections = 0
        """Accepted so far."""
        self.seen: deque[Request] = deque(maxlen=_SEEN)
        self.port = 0
        self._journal = journal
        self._slots = asyncio.Semaphore(concurrency) if concurrency is not None else None
        self._fault = GOOD
        self._up = False
        self._reserved: socket.socket | None = None
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._open: dict[Connection, asyncio.Task[None]] = {}
        self._idle: set[Connection] = set()
        self._tokens: dict[Connection, str] = {}
        """Of each connection's last request: what has been sent of its answer may not have left yet."""
        self._ending: set[asyncio.Task[None]] = set()

    # Life

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def open_connections(self) -> int:
        return len(self._open)

    @property
    def fault(self) -> Fault:
        return self._fault

    @fault.setter
    def fault(self, fault: Fault) -> None:
        """Meets the requests that are read from now on."""
        self._fault = fault
        self._listen_or_not()
        if fault.kind is Kind.REFUSE:
            for connection in self._idle:
                connection.close()

    async def start(self) -> None:
        """On a free port, which stays its own, whether it listens or not, until `close`."""
        self._reserved = _bound(self.port)
        self.port = self._reserved.getsockname()[1]
        self._come_up()

    def stop(self) -> None:
        """As SIGKILL does: every connection is reset at once, and the port refuses."""
        self._up = False
        self._listen_or_not()
        for connection in list(self._open):
            if self._journal is not None and connection in self._tokens:
                self._journal(self._tokens[connection], KILLED)
            connection.reset()

    async def restart(self, gone: float = 0.0) -> None:
        """A new process on the same port, after `gone` seconds of none."""
        self.stop()
        await asyncio.sleep(gone)
        if self._reserved is not None:
            self._come_up()

    async def close(self) -> None:
        """Returns when nothing of it is left."""
        self.stop()
        tasks = [*self._open.values(), *self._ending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    async def __aenter__(self) -> "FaultWorker":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _come_up(self) -> None:
        self._started = time.time()
        self._up = True
        self._listen_or_not()

    def _listen_or_not(self) -> None:
        """Takes effect at once, so that who sets a fault knows what the next connection meets."""
        shall_listen = self._up and self._fault.kind is not Kind.REFUSE
        if shall_listen and self._listener is None:
            self._listener = _bound(self.port)
            self._listener.listen(1024)
            self._listener.setblocking(False)
            self._accepting = asyncio.create_task(self._accept(self._listener))
        elif not shall_listen and self._listener is not None and self._accepting is not None:
            self._listener.shutdown(socket.SHUT_RDWR)  # at once, where close waits for the loop to let go of it
            self._let_end(self._accepting)
            self._listener = self._accepting = None

    async def _accept(self, listener: socket.socket) -> None:
        """Until the listener is shut down."""
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    accepted, _ = await loop.sock_accept(listener)
                except OSError:
                    if self._listener is listener:
                        raise
                    return
                with suppress(ConnectionError):  # it has left already
                    await loop.connect_accepted_socket(lambda: Connection(self._made, self._lost), accepted)

    def _made(self, connection: Connection) -> None:
        self.connections += 1
        if not self._up:  # taken off the backlog in the moment of its end
            connection.reset()
        self._open[connection] = asyncio.create_task(self._serve(connection))

    def _lost(self, connection: Connection) -> None:
        self._tokens.pop(connection, None)
        self._let_end(self._open.pop(connection))

    def _let_end(self, task: asyncio.Task[None]) -> None:
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    # Serving

    async def _serve(self, connection: Connection) -> None:
        try:
            first = True
            while not connection.ended:
                head = await self._next_head(connection)
                if head is None:
                    return
                request = Request(head)
                if request.method == "GET" and request.path in OWN_PATHS:
                    await self._answer_own(connection, request)
                else:
                    await self._exchange(connection, head, first)
                    first = False
        except ClientGone:
            connection.close()

    async def _next_head(self, connection: Connection) -> bytes | None:
        self._idle.add(connection)
        try:
            if self._fault.kind is not Kind.CLOSE_IDLE:
                return await connection.read_head()
            async with asyncio.timeout(self._fault.seconds):
                return await connection.read_head()
        except TimeoutError:
            connection.close()
            return None
        finally:
            self._idle.discard(connection)

    async def _exchange(self, connection: Connection, head: bytes, first: bool) -> None:
        self.requests += 1
        self.concurrent += 1
        self.max_concurrent = max(self.max_concurrent, self.concurrent)
        try:
            async with self._slot():
                await self._answer(connection, head, first)
        except ClientGone:
            self.aborted += not connection.ended  # its own end is nobody's leaving
            raise
        finally:
            self.concurrent -= 1

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        if self._slots is None:
            yield
            return
        async with self._slots:
            yield

    async def _answer(self, connection: Connection, head: bytes, first: bool) -> None:
        fault = self._fault
        if fault.kind is Kind.ACCEPT_AND_HANG:
            await connection.hang()
        if fault.kind is Kind.EARLY_RESPONSE:
            await connection.send(error(fault.status, "answered before the body was read"))
            fault = GOOD  # of this one there is nothing else to say
            await connection.read_body(head)
            return
        if fault.kind is Kind.CLOSE_ON_REUSE and not first:
            connection.close()
            return
        request = Request(head, await connection.read_body(head))
        self.seen.append(request)
        self._tokens[connection] = request.token
        if self._journal is not None:
            self._journal(request.token, fault)
        await connection.pause(self.delay + (fault.seconds if fault.kind is Kind.SLOW else 0.0))
        words = self.chunks if request.words is None else request.words
        answer = answer_to(request, self.name, words, self.model)
        if misbehave := MISBEHAVIOURS.get(fault.kind):
            await misbehave(connection, answer, fault)
            return
        await connection.send(answer.head)
        for piece in answer.pieces:
            if self.chunk_interval:
                await connection.pause(self.chunk_interval)
            await connection.send(piece)

    async def _answer_own(self, connection: Connection, request: Request) -> None:
        if self.health == "hang":
            await connection.hang()
        elif self.health == "close":
            connection.close()
        elif self.health == "503" and request.path.startswith("/health"):
            await connection.send(error(503, "not ready"))
        else:
            await connection.send(own_answer(request.path, self.model, self._started, self.concurrent))


def _bound(port: int) -> socket.socket:
    """To a free port where `port` is 0. Several may be bound to one port as long as only one of them listens."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound
