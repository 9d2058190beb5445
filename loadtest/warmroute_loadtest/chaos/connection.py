"""The worker's side of one connection: whole requests in, raw bytes out, and word of a client that leaves."""

import asyncio
import re
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, cast

_MOST_UNREAD = 256 * 1024
"""Bytes that may wait for somebody to ask for them."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that lets a close send RST."""
_TOKEN = re.compile(rb"\bid=([0-9A-Za-z-]+)")
_STREAM = re.compile(rb'"stream"\s*:\s*true')
_WORDS = re.compile(rb"\bwords=([0-9]{1,6})")
_USAGE = re.compile(rb'"include_usage"\s*:\s*true')


class ClientGone(Exception):  # noqa: N818 - not an error
    """The other side has closed the connection, or its half of it."""


@dataclass(frozen=True, slots=True)
class Request:
    head: bytes
    """Raw, with the empty line at its end."""
    body: bytes = b""

    @property
    def method(self) -> str:
        return self.head.split(b" ", 1)[0].decode("latin-1")

    @property
    def path(self) -> str:
        return self.head.split(b" ", 2)[1].decode("latin-1").partition("?")[0]

    def headers(self, name: bytes) -> list[bytes]:
        """All values of one header; `name` is in lower case."""
        lines = (line.partition(b":") for line in self.head.split(b"\r\n")[1:])
        return [value.strip() for known, _, value in lines if known.lower() == name]

    @property
    def streamed(self) -> bool:
        return _STREAM.search(self.body) is not None

    @property
    def wants_usage(self) -> bool:
        return _USAGE.search(self.body) is not None

    @property
    def token(self) -> str:
        """The last `id=TOKEN` of the body: what tells whose answer an answer is."""
        found = _TOKEN.findall(self.body)
        return found[-1].decode("ascii") if found else ""

    @property
    def words(self) -> int | None:
        """How long the answer shall be, where the body says so: `words=NUMBER`."""
        found = _WORDS.search(self.body)
        return int(found[1]) if found else None


class Connection(asyncio.Protocol):
    def __init__(self, made: Callable[["Connection"], None], lost: Callable[["Connection"], None]) -> None:
        self._made = made
        self._lost = lost
        self._buffer = bytearray()
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._reading = False
        self._paused = False
        self.gone = asyncio.Event()
        """The other side has closed, or nothing is left of the connection."""
        self.ended = False
        """This side has closed it."""

    # For the worker

    async def read_head(self) -> bytes:
        """Raises ClientGone where the connection ends instead."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            await self._more()
        return self._take(end + 4)

    async def read_body(self, head: bytes) -> bytes:
        request = Request(head)
        if b"chunked" in b"".join(request.headers(b"transfer-encoding")).lower():
            return await self._read_chunks()
        return await self._read_exactly(int((request.headers(b"content-length") or [b"0"])[0]))

    async def send(self, data: bytes) -> None:
        """Waits where the other side does not read. Raises ClientGone."""
        if self.gone.is_set():
            raise ClientGone
        self._transport.write(data)
        await self._writable.wait()

    async def pause(self, seconds: float) -> None:
        """Raises ClientGone as soon as the other side closes."""
        try:
            async with asyncio.timeout(seconds):
                await self.gone.wait()
        except TimeoutError:
            return
        raise ClientGone

    async def hang(self) -> NoReturn:
        """Until the other side closes."""
        await self.gone.wait()
        raise ClientGone

    def close(self) -> None:
        """After what has been sent."""
        self.ended = True
        self._transport.close()

    def reset(self) -> None:
        """At once, with RST."""
        self.ended = True
        if not self._transport.is_closing():
            own = cast("socket.socket", self._transport.get_extra_info("socket"))
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    # Reading

    async def _read_exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            await self._more()
        return self._take(count)

    async def _read_line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            await self._more()
        return self._take(end + 2)

    async def _read_chunks(self) -> bytes:
        chunks: list[bytes] = []
        while size := int((await self._read_line()).split(b";")[0], 16):
            chunks.append((await self._read_exactly(size + 2))[:-2])
        while await self._read_line() != b"\r\n":  # trailers
            pass
        return b"".join(chunks)

    def _take(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    async def _more(self) -> None:
        if self.gone.is_set():
            raise ClientGone
        self._arrived.clear()
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        self._reading = True
        try:
            await self._arrived.wait()
        finally:
            self._reading = False

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._made(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._arrived.set()
        if not self._reading and not self._paused and len(self._buffer) > _MOST_UNREAD:
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        self._leave()
        return True  # what is still to be sent may be sent

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._leave()
        self._lost(self)

    def _leave(self) -> None:
        for event in (self.gone, self._arrived, self._writable):
            event.set()

    def pause_writing(self) -> None:
        if not self.gone.is_set():
            self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
