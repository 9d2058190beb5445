"""The client's side of HTTP/1.1: connections, guarded against clients that are slow, too long, or ambiguous.

Written by hand because it is the hot path. A request whose head and body come in one read costs its task, one write
for its answer, and no timer. Only where something is missing after a read do the clock and the counters run. What a
client has sent wrong is answered in the OpenAI error shape, and the connection ends: behind a broken message nobody
can say where the next one begins.
"""

import asyncio
from collections import deque
from typing import cast

from ..errors import RequestError
from ..silence import notice_silence
from ..types import Scope
from ..writing import write_together
from .clients import Clients
from .cycle import Cycle, common_scope
from .farewell import Farewell
from .http_head import invalid, last_answer, too_slow
from .request_parser import BODY, RequestParser

MAX_PIPELINED = 64
"""Requests that may wait on one connection for the answer before theirs."""
READ_ON = 16
"""As long as there are no more of them, the connection is read on: else nobody would see that the client leaves."""


class HttpProtocol(asyncio.Protocol):
    """One connection. Seconds, where not said otherwise."""

    head_timeout = 10.0
    """From a head's first byte to its last; also from the connection to its first byte."""
    body_timeout = 30.0
    """From a head's end, or from when the router reads again, to its body's end; `1 / body_rate` more per byte."""
    body_rate = 500
    """Bytes per second."""
    keep_alive = 75.0
    """From an answer to the next request: longer than the idle timeout of clients and load balancers."""
    linger_pause = 2.0
    """Without a byte from the client, after which a connection that is to close does."""
    linger_timeout = 30.0
    """The same with bytes from the client."""
    stall_timeout = 300.0
    """That a client may leave sent bytes unacknowledged, or its window closed (TCP_USER_TIMEOUT)."""

    _transport: asyncio.Transport
    """Since `connection_made`, like the parser."""
    _parser: RequestParser

    def __init__(self, clients: Clients, loop: asyncio.AbstractEventLoop) -> None:
        self.write_paused = False
        self._clients = clients
        self._loop = loop
        self._cycle: Cycle | None = None
        """The last that has come."""
        self._served: Cycle | None = None
        """Whose answer is on its way."""
        self._pipeline: deque[Cycle] = deque()
        self._read_paused = False
        self._drained: asyncio.Future[None] | None = None
        self._idle_since = 0.0
        self._body_started = 0.0
        self._body_received = 0
        self._clock: asyncio.TimerHandle | None = None
        """Runs while the client is the one to be waited for."""
        self._deaf = False
        """Nothing more is understood from this client, only thrown away."""
        self._farewell: Farewell | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # uvloop has set TCP_NODELAY already.
        notice_silence(transport.get_extra_info("socket"), idle=60, interval=15, count=4, unread=self.stall_timeout)
        self._parser = RequestParser(self, common_scope(transport))
        self._clients.connections.add(self)
        self._clock = self._loop.call_later(self.head_timeout, self._transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._clients.connections.discard(self)
        self._stop_clock()
        if self._farewell is not None:
            self._farewell.end()
        self.resume_writing()
        self._parser.close()
        self._pipeline.clear()
        if self._served is not None and not self._served.complete:
            self._served.disconnect()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            if self._farewell is not None:
                self._farewell.discarded += len(data)
            return
        parser = self._parser
        steps = parser.steps
        try:
            if not parser.feed(data):
                self._deaf = True
                cast("Cycle", self._cycle).keep_alive = False
            if parser.steps != steps:
                self._stop_clock()
            if parser.stage or self._cycle is None or self._cycle.complete:
                parser.check_part()
                self._body_received += len(data)
                if self._clock is None and self._waits_for_client():
                    self._start_clock()
        except RequestError as error:
            self._refuse(error)

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # What has been read

    def begin(self, scope: Scope, *, keep_alive: bool, expects_continue: bool) -> None:
        if len(self._pipeline) >= MAX_PIPELINED:
            raise invalid(f"more than {MAX_PIPELINED} requests wait on this connection")
        before = self._cycle
        self._cycle = cycle = Cycle(self, scope, keep_alive=keep_alive, expects_continue=expects_continue)
        if before is None or before.complete:
            self._serve(cycle)
            return
        self._pipeline.append(cycle)
        if len(self._pipeline) > READ_ON:
            self.pause_reading()

    def body(self, body: bytes) -> None:
        cycle = cast("Cycle", self._cycle)
        if not cycle.complete:
            cycle.feed(body)

    def end(self) -> None:
        cast("Cycle", self._cycle).feed_end()

    # What a cycle asks for

    @property
    def closes_connections(self) -> bool:
        return self._clients.closes_connections

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def write_both(self, head: bytes, body: bytes) -> None:
        write_together(self._transport, head, body)

    async def drained(self) -> None:
        self._drained = self._loop.create_future()
        try:
            await self._drained
        finally:
            self._drained = None

    def pause_reading(self) -> None:
        if not self._read_paused:
            self._read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._read_paused and not self._transport.is_closing():
            self._read_paused = False
            self._body_started = self._loop.time()  # while nobody read, the client could not go on
            self._transport.resume_reading()

    def answered(self, cycle: Cycle) -> None:
        if not cycle.keep_alive:
            self._close()
        if self._transport.is_closing():
            return
        self.resume_reading()
        if self._pipeline:
            waiting = self._pipeline.popleft()
            if not waiting.disconnected:
                self._serve(waiting)
        else:
            self._idle_since = self._loop.time()
        if self._parser.stage or self._deaf:
            self._after_answer()

    def cut(self) -> None:
        self._close()

    def ended(self, cycle: Cycle) -> None:
        if cycle.task is not None:
            self._clients.tasks.discard(cycle.task)

    def _serve(self, cycle: Cycle) -> None:
        self._served = cycle
        cycle.task = task = self._loop.create_task(cycle.run(self._clients.app))
        self._clients.tasks.add(task)

    # Deadlines

    def close_if_idle(self, now: float) -> None:
        """Between requests nothing else looks at the time."""
        idle = self._cycle is not None and self._cycle.complete and not self._parser.stage and not self._deaf
        if idle and now - self._idle_since > self.keep_alive:
            self._transport.close()

    def shutdown(self, *, new: bool) -> None:
        """Close once no answer is on its way; with `new` also where nothing has been asked yet."""
        if self._cycle is None:
            if new:
                self._transport.close()
        elif self._cycle.complete:
            self._transport.close()
        else:
            self._cycle.keep_alive = False

    @property
    def unsent(self) -> int:
        """Bytes of answers that the client has not taken."""
        return self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """As if the client had left."""
        self._transport.abort()

    def _waits_for_client(self) -> bool:
        """Not so while an answer is on its way, or a request waits for its turn."""
        if self._cycle is None or self._cycle.complete:
            return True
        return self._parser.stage == BODY and not self._cycle.started and not self._pipeline

    def _start_clock(self) -> None:
        timeout = self.head_timeout
        if self._parser.stage == BODY:
            timeout = self.body_timeout
            self._body_started = self._loop.time()
            self._body_received = cast("Cycle", self._cycle).body_size
        self._clock = self._loop.call_later(timeout, self._time_is_up)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _time_is_up(self) -> None:
        self._clock = None
        if self._transport.is_closing() or not self._waits_for_client():
            return  # `_after_answer` starts it again
        if self._parser.stage == BODY and (left := self._body_time_left()) > 0:
            self._clock = self._loop.call_later(left, self._time_is_up)
        else:
            self._refuse(too_slow())

    def _body_time_left(self) -> float:
        if self._read_paused:
            return self.body_timeout
        due = self._body_started + self.body_timeout + self._body_received / self.body_rate
        return due - self._loop.time()

    # The end of a connection

    def _refuse(self, error: RequestError) -> None:
        """The connection's last answer, unless an earlier one is on its way: then it closes after that."""
        self._deaf = True
        self._stop_clock()
        cycle = self._cycle
        in_body = self._parser.stage == BODY
        if cycle is None or cycle.complete:
            self._linger(None if in_body else error)  # a body may have had its answer early
        elif not in_body or cycle.started:
            cycle.keep_alive = False
        else:
            cycle.disconnect()
            if not self._pipeline:  # else `_after_answer` closes when it would have been its turn
                self._linger(error)

    def _after_answer(self) -> None:
        """In the middle of a message, or after one that nobody understood."""
        if self._deaf:
            if cast("Cycle", self._cycle).disconnected and not self._pipeline:
                self._linger()
        elif self._waits_for_client():
            self._stop_clock()
            self._start_clock()

    def _close(self) -> None:
        """A socket that closes with unread bytes may take the answer with it (RST)."""
        if self._parser.stage == BODY or self._deaf:
            self._linger()
        else:
            self._transport.close()

    def _linger(self, error: RequestError | None = None) -> None:
        """Close once the client has, or has been quiet for a moment: it may still be sending, and read only then."""
        if self._transport.is_closing() or self._farewell is not None:
            return
        self._deaf = True
        self._stop_clock()
        self._pipeline.clear()
        self.resume_reading()
        if error is not None:
            self._clients.refused[error.status] += 1
            self._transport.write(last_answer(error))
        self._farewell = Farewell(self._transport, self._loop, pause=self.linger_pause, timeout=self.linger_timeout)
