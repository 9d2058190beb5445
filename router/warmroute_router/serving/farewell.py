"""The end of a connection whose client may still be sending.

A socket that closes with unread bytes takes along what it has sent and the client has not read yet (RST). So what
comes is thrown away, until the client closes or has been quiet for a moment.
"""

import asyncio


class Farewell:
    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, *, pause: float, timeout: float
    ) -> None:
        """Seconds: without a byte from the client, and with."""
        self.discarded = 0
        """Bytes that have come since the last look."""
        self._transport = transport
        self._loop = loop
        self._pause = pause
        self._until = loop.time() + timeout
        if transport.can_write_eof():
            transport.write_eof()
        self._clock = loop.call_later(pause, self._look)

    def end(self) -> None:
        self._clock.cancel()

    def _look(self) -> None:
        unread = self._transport.get_write_buffer_size()
        if unread or (self.discarded and self._loop.time() < self._until):
            self.discarded = 0
            self._clock = self._loop.call_later(self._pause, self._look)
        else:
            self._transport.abort()
