"""Clients that do not behave. None of them may harm anybody else, whatever becomes of their own requests."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import NoReturn

from .clients import PATIENCE, Outcome, read_result, request_of
from .replies import Ending, Replies
from .schedule import Call

Misdeed = Callable[[int, Call], Awaitable[str | None]]
"""At a port, with what to ask for there. Those that stay do so until they are cancelled. Returns what is wrong with
the answer where there is anything to say of it. Raises ConnectionError where it is thrown out, or not let in."""

_LONG = 5_000
"""Words of an answer that is not read to its end: a megabyte."""
_SMALL = 4096
"""Bytes that the kernel keeps for somebody who does not read."""
_BRIEF = 0.3
"""Seconds for which an answer to nonsense is waited for."""
_POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
_GET = b"GET / HTTP/1.1\r\nhost: x\r\n"

NONSENSE = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,
    b"HELO there\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"G\x00T / HTTP/1.1\r\nhost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"CONNECT example.com:443 HTTP/1.1\r\nhost: example.com\r\n\r\n",
    b"GET http://example.com/v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /../../etc/passwd HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    _GET + b"no colon\r\n\r\n",
    _GET + b"x: a\x00b\r\n\r\n",
    _GET + b" folded: y\r\n\r\n",
    _GET + b"x: " + b"a" * 1_000_000 + b"\r\n\r\n",
    _GET + b"x: y\r\n" * 20_000 + b"\r\n",
    _GET + b"connection: upgrade\r\nupgrade: websocket\r\n\r\n",
    _POST + b"content-length: 3\r\ncontent-length: 5\r\n\r\nabcde",
    _POST + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    _POST + b"content-length: -1\r\n\r\n",
    _POST + b"content-length: " + b"9" * 40 + b"\r\n\r\n",
    _POST + b"transfer-encoding: chunked\r\n\r\nnot-hex\r\n",
    _POST + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n",
    _POST + b'content-length: 9\r\n\r\n{"model":',
    _POST + b"content-length: 4\r\n\r\n\xff\xfe\x00\x01",
)


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def skip(self, mark: bytes) -> None:
        """Reads up to `mark`, or to the end."""
        with suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await self.reader.readuntil(mark)

    async def stay(self) -> None:
        """Until it is thrown out."""
        while await self.reader.read(65536):
            pass


@asynccontextmanager
async def _connected(port: int, receive_buffer: int | None = None) -> AsyncIterator[_Connection]:
    """Ends with a reset."""
    loop = asyncio.get_running_loop()
    own = socket.socket()
    own.setblocking(False)
    if receive_buffer is not None:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    with own:
        await loop.sock_connect(own, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=own, limit=_SMALL)
        try:
            yield _Connection(reader, writer)
        finally:
            writer.transport.abort()


def _long(call: Call) -> bytes:
    return request_of(replace(call, streamed=True, words=_LONG))


async def leave_before_the_head(port: int, call: Call) -> None:
    del call
    async with _connected(port):
        pass


async def leave_in_the_head(port: int, call: Call) -> None:
    async with _connected(port) as connection:
        connection.send(request_of(call)[:30])
        await asyncio.sleep(0.01)


async def leave_in_the_body(port: int, call: Call) -> None:
    async with _connected(port) as connection:
        connection.send(request_of(call)[:-20])
        await asyncio.sleep(0.01)


async def leave_before_the_answer(port: int, call: Call) -> None:
    """At once, or some milliseconds later."""
    async with _connected(port) as connection:
        connection.send(request_of(call))
        await asyncio.sleep(0.001 * call.prompt)


async def leave_after_the_head(port: int, call: Call) -> None:
    async with _connected(port) as connection:
        connection.send(request_of(call))
        await connection.skip(b"\r\n\r\n")


async def leave_after_the_first_chunk(port: int, call: Call) -> None:
    async with _connected(port) as connection:
        connection.send(_long(call))
        await connection.skip(b"data: ")


async def read_a_byte_a_second(port: int, call: Call) -> None:
    async with _connected(port, _SMALL) as connection:
        connection.send(_long(call))
        while await connection.reader.read(1):  # noqa: ASYNC110 - nobody will tell it when
            await asyncio.sleep(1.0)


async def read_nothing(port: int, call: Call) -> NoReturn:
    async with _connected(port, _SMALL) as connection:
        connection.send(_long(call))
        await asyncio.Event().wait()
    raise AssertionError("it stays until it is cancelled")


async def keep_the_body_back(port: int, call: Call) -> None:
    async with _connected(port) as connection:
        connection.send(request_of(call)[:-1])
        await connection.stay()


async def drip_the_head(port: int, call: Call) -> None:
    async with _connected(port) as connection:
        for byte in request_of(call):
            connection.send(bytes((byte,)))
            await asyncio.sleep(0.2)
            if connection.reader.at_eof():
                return


async def say_nothing(port: int, call: Call) -> None:
    del call
    async with _connected(port) as connection:
        await connection.stay()


async def talk_nonsense(port: int, call: Call) -> None:
    async with _connected(port) as connection:
        connection.send(random.Random(call.token).choice(NONSENSE))
        with suppress(TimeoutError):
            async with asyncio.timeout(_BRIEF):
                await connection.stay()


async def pipeline(port: int, call: Call) -> str | None:
    """Three requests at once; as many answers as come are to come in order."""
    calls = [replace(call, token=f"{call.token}-{number}") for number in range(3)]
    async with _connected(port) as connection:
        connection.send(b"".join(map(request_of, calls)))
        replies = Replies(connection.reader)
        for each in calls:
            reply = await replies.next(PATIENCE)
            if read_result(each, reply, 0.0, 0.0).outcome is Outcome.MISTAKEN:
                return f"pipelined request {each.token} got the answer of another one"
            if reply.ending is not Ending.COMPLETE:
                break
    return None


MISDEEDS: dict[str, Misdeed] = {
    misdeed.__name__: misdeed
    for misdeed in (
        leave_before_the_head,
        leave_in_the_head,
        leave_in_the_body,
        leave_before_the_answer,
        leave_after_the_head,
        leave_after_the_first_chunk,
        read_a_byte_a_second,
        read_nothing,
        keep_the_body_back,
        drip_the_head,
        say_nothing,
        talk_nonsense,
        pipeline,
    )
}
