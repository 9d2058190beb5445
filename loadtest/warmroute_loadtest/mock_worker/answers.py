"""An answer on its way: whole at its end, or as a stream."""

import asyncio
from math import inf
from typing import NamedTuple

from ..simulator.worker import Happening, Job
from . import wording
from .connection import Connection
from .engine import Engine

_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"


class Exchange(NamedTuple):
    """A request that is being answered."""

    connection: Connection
    engine: Engine
    job: Job
    block_tokens: int
    stream_interval: int
    opened: bytes
    """What all JSON of the answer begins with: see `wording`."""
    chat: bool
    include_usage: bool
    chunked: bool
    cut: bool
    """The answer breaks off in the middle."""

    def usage(self) -> bytes:
        job = self.job
        return wording.usage(job.input_tokens, job.cached_blocks * self.block_tokens, job.output_tokens)


class WholeAnswer:
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._lost = False

    def reached(self, what: Happening) -> None:
        if what is Happening.END and not self._lost:
            opened, chat, job = self._exchange.opened, self._exchange.chat, self._exchange.job
            body = wording.whole(opened, job.output_tokens, self._exchange.usage(), chat=chat)
            self._exchange.connection.reply(body, part=0.5 if self._exchange.cut else 1.0)

    def resume(self) -> None:
        pass

    def lost(self) -> None:
        self._lost = True
        self._exchange.engine.abort(self._exchange.job)


class StreamedAnswer:
    """An event of one token, then of `stream_interval` each. What is due goes out one event in each turn of the loop,
    so that each is a packet of its own."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._connection = exchange.connection
        self._tokens = exchange.job.output_tokens
        self._cut_at = max(self._tokens // 2, 1) if exchange.cut else inf
        self._sent = 0
        self._next = min(self._tokens, 1)
        """Tokens that will have been sent after the next event."""
        self._due = -1  # not even an event without any
        self._scheduled = False
        self._over = False
        framing = b"transfer-encoding: chunked\r\n\r\n" if exchange.chunked else b"connection: close\r\n\r\n"
        self._connection.write(_STREAM_HEAD + framing)

    def reached(self, what: Happening) -> None:
        if what is Happening.END:
            self._due = self._tokens
        else:  # the last event waits for the end, which comes in the same moment as the last token
            due = 1 if what is Happening.FIRST_BYTE else self._due + self._exchange.stream_interval
            self._due = min(due, self._tokens - 1)
        if not self._scheduled:
            self._send()

    def resume(self) -> None:
        if not self._scheduled:
            self._send()

    def lost(self) -> None:
        self._over = True
        self._exchange.engine.abort(self._exchange.job)

    def _send(self) -> None:
        self._scheduled = False
        if self._next > self._due or self._over or not self._connection.writable:
            return
        start, sent = self._sent, self._next
        is_last = sent == self._tokens
        self._write(wording.event(self._exchange.opened, start, sent - start, chat=self._exchange.chat, last=is_last))
        if sent >= self._cut_at:
            self._over = True
            self._connection.close()
        elif is_last:
            self._finish()
        else:
            self._sent, self._next = sent, min(sent + self._exchange.stream_interval, self._tokens)
            if self._next <= self._due:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._send)

    def _finish(self) -> None:
        exchange = self._exchange
        rest = wording.usage_event(exchange.opened, exchange.usage()) if exchange.include_usage else b""
        self._write(rest + wording.DONE)
        if exchange.chunked:
            self._connection.write(b"0\r\n\r\n")
        self._connection.done()

    def _write(self, data: bytes) -> None:
        self._connection.write(b"%x\r\n%b\r\n" % (len(data), data) if self._exchange.chunked else data)
