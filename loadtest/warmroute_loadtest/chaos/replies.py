"""A client's side of HTTP/1.1, as little as it takes: what became of an answer, and a connection that is kept."""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import httptools

_MOST = 1 << 20
"""Bytes of one answer; whoever sends more is not listened to."""


class Ending(StrEnum):
    COMPLETE = "complete"
    CUT = "cut"
    """The connection was closed before the end, or what came is not HTTP."""
    SILENT = "silent"
    """Nothing came for as long as the client had patience."""
    TOO_LONG = "too_long"


@dataclass(slots=True)
class Reply:
    ending: Ending = Ending.CUT
    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    """Names in lower case."""
    body: bytearray = field(default_factory=bytearray)


class Replies:
    """All of one connection, in their order; httptools calls back."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._parser: Any = httptools.HttpResponseParser(self)
        self._complete: deque[Reply] = deque()
        self._current = Reply()
        self.keep_alive = True

    async def next(self, patience: float) -> Reply:
        """`patience`: seconds in which something has to come."""
        ending = await self._end(patience)
        if self._complete:
            return self._complete.popleft()
        self.keep_alive = False
        self._current.ending = ending
        return self._current

    async def _end(self, patience: float) -> Ending:
        try:
            while not self._complete:
                async with asyncio.timeout(patience):
                    data = await self._reader.read(65536)
                if not data:
                    return Ending.CUT
                self._parser.feed_data(data)
                if len(self._current.body) > _MOST:
                    return Ending.TOO_LONG
        except TimeoutError:
            return Ending.SILENT
        except (ConnectionError, httptools.HttpParserError):
            self.keep_alive = False
            return Ending.CUT
        return Ending.COMPLETE

    def on_header(self, name: bytes, value: bytes) -> None:
        self._current.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._current.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._current.body += body

    def on_message_complete(self) -> None:
        self._current.ending = Ending.COMPLETE
        self._complete.append(self._current)
        self._current = Reply()
        self.keep_alive = self._parser.should_keep_alive()


class KeptConnection:
    """Opened when it is needed, and closed where an answer did not end well."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: tuple[Replies, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes, patience: float) -> Reply:
        """Raises OSError where there is no connection."""
        if self._open is None:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            self._open = (Replies(reader), writer)
        replies, writer = self._open
        kept = False
        try:
            writer.write(request)
            reply = await replies.next(patience)
            kept = replies.keep_alive
        finally:
            if not kept:
                self.close()
        return reply

    def close(self) -> None:
        if self._open is not None:
            self._open[1].transport.abort()
            self._open = None
