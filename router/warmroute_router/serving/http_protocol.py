"""The client's side of HTTP: uvicorn's protocol, guarded against clients that are slow, too long, or ambiguous.

A request whose head and body come in one read costs a look at its head and no timer. Only where something is missing
after a read do the clock and the counters run. What a client has sent wrong is answered in the OpenAI error shape,
and the connection ends: behind a broken message nobody can say where the next one begins.
"""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from ..errors import RequestError
from ..silence import notice_silence
from ..types import ON_DISCONNECT, Scope
from .http_head import (
    MAX_HEAD,
    MAX_HEADERS,
    MAX_TARGET,
    check_head,
    head_too_large,
    invalid,
    target_too_long,
    too_slow,
)

MAX_PIPELINED = 64
"""Requests that may wait on one connection for the answer before theirs."""
READ_ON = 16
"""As long as there are no more of them, the connection is read on: else nobody would see that the client leaves."""

_IDLE, _HEAD, _BODY = range(3)


class GuardedProtocol(HttpToolsProtocol):
    """One connection. Seconds, where not said otherwise."""

    head_timeout = 10.0
    """From a head's first byte to its last; also from the connection to its first byte."""
    body_timeout = 30.0
    """From a head's end to the body's end, and `1 / body_rate` more for each byte that has come."""
    body_rate = 500
    """Bytes per second."""
    linger_pause = 2.0
    """Without a byte from the client, after which a connection that is to close does."""
    linger_timeout = 30.0
    """The same with bytes from the client."""
    stall_timeout = 300.0
    """That a client may leave sent bytes unacknowledged, or its window closed (TCP_USER_TIMEOUT)."""

    _stage = _IDLE
    """Which part of a message has begun and not ended yet."""
    _fed = 0
    """Bytes of the last read, as far as they can belong to a head, or to what a chunked body has beside its data."""
    _overhead = 0
    """The sum of these, over the reads of one head, or since the last data of a body."""
    _body_started = 0.0
    _body_received = 0
    _clock: asyncio.TimerHandle | None = None
    """Runs while the client is the one to be waited for."""
    _deaf = False
    """Nothing more is understood from this client, only thrown away."""
    _discarded = 0
    _on_disconnect: Callable[[], None] | None = None
    """Of the request that is served."""
    _served: RequestResponseCycle | None = None
    """Whose answer is on its way. `cycle` is the last that has come."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # uvloop has set TCP_NODELAY already.
        sock = transport.get_extra_info("socket")
        notice_silence(sock, idle=60, interval=15, count=4, unread=self.stall_timeout)
        self._clock = self.loop.call_later(self.head_timeout, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._served is not None and not self._served.response_complete:
            self._served.disconnected = True
            self._served.message_event.set()
            if self._on_disconnect is not None:
                self._on_disconnect()
        self._stop_clock()
        self._unset_keepalive_if_required()  # uvicorn leaves it where the connection broke

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            self._discarded += len(data)
            return
        self._unset_keepalive_if_required()
        rest = data
        while rest:
            self._fed = len(rest)
            try:
                self.parser.feed_data(rest)
                break
            except httptools.HttpParserUpgrade as upgrade:
                rest = self._decline_upgrade(rest[upgrade.args[0] :])
            except httptools.HttpParserError as error:
                cause = error.__context__
                self._refuse(cause if isinstance(cause, RequestError) else invalid(f"{error}"))
                return
        if self._stage or self.cycle is None or self.cycle.response_complete:
            self._await_rest(len(data))

    # httptools callbacks

    def on_message_begin(self) -> None:
        if self._clock is not None:
            self._stop_clock()
        self._stage = _HEAD
        self._overhead = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self._clock is not None:
            self._stop_clock()
        self._check_size()
        self.url = check_head(
            self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers
        )  # its origin-form
        super().on_headers_complete()
        if self.pipeline and len(self.pipeline) <= READ_ON:
            self.flow.resume_reading()
        self._stage = _BODY
        self._overhead = 0
        # The scope keeps the list: without this, trailers of a chunked body would still get into it.
        self.headers = []

    def on_body(self, body: bytes) -> None:
        self._fed = self._overhead = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._clock is not None:
            self._stop_clock()
        self._stage = _IDLE
        self._fed = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._on_disconnect = None
        super().on_response_complete()
        if (self._stage or self._deaf) and not self.transport.is_closing():
            self._after_answer()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._served = cycle
        self._on_disconnect = None
        cast("Scope", cycle.scope)["extensions"] = {ON_DISCONNECT: self._tell_of_disconnect}
        super()._start_asgi_task(cycle, app)

    def _tell_of_disconnect(self, callback: Callable[[], None]) -> None:
        self._on_disconnect = callback
        if self._served is not None and self._served.disconnected:
            self.loop.call_soon(callback)

    # Limits

    def _check_size(self) -> None:
        """Of a whole head. Raises RequestError."""
        if len(self.url) > MAX_TARGET:
            raise target_too_long()
        if len(self.headers) > MAX_HEADERS:
            raise head_too_large()
        if len(self.pipeline) >= MAX_PIPELINED:
            raise invalid(f"more than {MAX_PIPELINED} requests wait on this connection")
        # A read that held more than this head tells nothing of its size: then it is counted.
        if not self._fed or self._overhead + self._fed > MAX_HEAD:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > MAX_HEAD:
                raise head_too_large()

    def _await_rest(self, size: int) -> None:
        """After a read at whose end something is missing."""
        self._overhead += self._fed
        self._body_received += size
        if self._stage == _HEAD and len(self.url) > MAX_TARGET:
            self._refuse(target_too_long())
        elif self._stage and (self._overhead > MAX_HEAD or len(self.headers) > MAX_HEADERS):
            self._refuse(head_too_large())
        else:
            if self._stage == _BODY:
                self._close_gently_after(self.cycle)
            if self._clock is None and self._waits_for_client():
                self._start_clock()

    # Deadlines

    def _waits_for_client(self) -> bool:
        """Not so while an answer is on its way, or a request waits for its turn."""
        if self.cycle is None or self.cycle.response_complete:
            return True
        return self._stage == _BODY and not self.cycle.response_started and not self.pipeline

    def _start_clock(self) -> None:
        timeout = self.head_timeout
        if self._stage == _BODY:
            timeout = self.body_timeout
            self._body_started = self.loop.time()
            self._body_received = len(self.cycle.body)
        self._clock = self.loop.call_later(timeout, self._time_is_up)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _time_is_up(self) -> None:
        self._clock = None
        if self.transport.is_closing() or not self._waits_for_client():
            return  # `_after_answer` starts it again
        if self._stage == _BODY and (left := self._body_time_left()) > 0:
            self._clock = self.loop.call_later(left, self._time_is_up)
        else:
            self._refuse(too_slow())

    def _body_time_left(self) -> float:
        if self.flow.read_paused:  # by the router: the client cannot go on
            self._body_started = self.loop.time()
            return self.body_timeout
        due = self._body_started + self.body_timeout + self._body_received / self.body_rate
        return due - self.loop.time()

    # The end of a connection

    def _refuse(self, error: RequestError) -> None:
        """The connection's last answer, unless an earlier one is on its way: then it closes after that."""
        self._deaf = True
        self._stop_clock()
        cycle = self.cycle
        in_body = self._stage == _BODY
        if cycle is None or cycle.response_complete:
            self._linger(None if in_body else error)  # a body may have had its answer early
        elif not in_body or cycle.response_started:
            cycle.keep_alive = False
            self._close_gently_after(cycle)
        else:
            cycle.disconnected = True
            cycle.message_event.set()
            if not self.pipeline:  # else `_after_answer` closes when it would have been its turn
                self._linger(error)

    def _after_answer(self) -> None:
        if self._deaf:
            self._unset_keepalive_if_required()
            if self.cycle.disconnected and not self.pipeline:
                self._linger()
        elif self._waits_for_client():
            self._unset_keepalive_if_required()
            self._stop_clock()
            self._start_clock()

    def _close_gently_after(self, cycle: RequestResponseCycle) -> None:
        """Let a cycle close by `_close`: a socket that closes with unread bytes may take the answer with it (RST)."""
        if cycle.transport is self.transport:
            gentle = SimpleNamespace(
                write=self.transport.write, is_closing=self.transport.is_closing, close=self._close
            )
            cycle.transport = cast("asyncio.Transport", gentle)

    def _close(self) -> None:
        if self._stage == _BODY or self._deaf:
            self._linger()
        else:
            self.transport.close()

    def _linger(self, error: RequestError | None = None) -> None:
        """Close once the client has, or has been quiet for a moment: it may still be sending, and read only then."""
        if self.transport.is_closing():
            return
        self._deaf = True
        self._stop_clock()
        self._unset_keepalive_if_required()
        self.pipeline.clear()
        self.flow.resume_reading()
        if error is not None:
            self.transport.write(_answer(error))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._linger_on(self.loop.time() + self.linger_timeout)

    def _linger_on(self, until: float) -> None:
        self._discarded = 0
        self._clock = self.loop.call_later(self.linger_pause, self._end_lingering, until)

    def _end_lingering(self, until: float) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread or (self._discarded and self.loop.time() < until):
            self._linger_on(until)
        else:
            self.transport.abort()

    def _decline_upgrade(self, rest: bytes) -> bytes:
        """The parser stops behind a head with `Upgrade`, since another protocol could follow. Here it is HTTP.

        Returns what of `rest` is to be read.
        """
        lengths = dict(self.scope["headers"])
        if b"transfer-encoding" in lengths or lengths.get(b"content-length", b"0").strip(b" 0\t"):
            self._deaf = True  # the parser has skipped the body, so where it ends is unknown
            self.cycle.keep_alive = False
            self._close_gently_after(self.cycle)
            return b""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        return rest


def _answer(error: RequestError) -> bytes:
    body = error.body
    head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
    return STATUS_LINE[error.status] + head + body
