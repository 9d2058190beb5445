"""A worker made of a bare socket: it shows what bytes the router sent, and answers with the bytes it is told to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import orjson

Handler = Callable[["PeerConnection"], Awaitable[None]]


class PeerConnection:
    """One accepted connection; `request` reads one request off it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.head = b""
        self.body = b""

    async def request(self) -> None:
        """Raises asyncio.IncompleteReadError where the connection ends instead."""
        self.head = await self.reader.readuntil(b"\r\n\r\n")
        length = self.header(b"content-length")
        self.body = await self.reader.readexactly(int(length)) if length else b""

    @property
    def request_line(self) -> bytes:
        return self.head.split(b"\r\n", 1)[0]

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        lines = self.head.split(b"\r\n")[1:-2]
        return [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines)]

    def header(self, name: bytes) -> bytes | None:
        return next((value for known, value in self.headers if known.lower() == name), None)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def closed_by_router(self) -> None:
        """Returns when the router has closed its side."""
        with suppress(ConnectionError):
            while await self.reader.read(65536):
                pass


class Peer:
    """Listens on a free port; answers probes by itself, and lets `handler` do the rest."""

    def __init__(self, handler: Handler, *models: str, asks_handler: bool = False) -> None:
        """`models`: what it lists; none for a 404. `asks_handler`: the handler answers for that instead."""
        self.handler = handler
        self.models = models
        self._asks_handler = asks_handler
        self.seen: list[PeerConnection] = []
        """One entry for each request, in order of arrival. Probes and scrapes are left out."""
        self.metrics = b""
        self.connections = 0
        self.url = ""

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                connection = PeerConnection(reader, writer)
                await connection.request()
                if connection.request_line.startswith(b"GET /health"):
                    await connection.send(response(b"{}"))
                    continue
                own = self._of_the_router(connection)
                if own is not None:
                    await connection.send(own)
                    continue
                self.seen.append(connection)
                await self.handler(connection)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _of_the_router(self, connection: PeerConnection) -> bytes | None:
        """The answer to what the router asks for itself."""
        if connection.header(b"user-agent") != b"warmroute" or connection.header(b"connection") != b"close":
            return None
        if connection.request_line == b"GET /metrics HTTP/1.1":
            return response(self.metrics, headers=b"content-type: text/plain\r\n")
        if connection.request_line == b"GET /v1/models HTTP/1.1" and not self._asks_handler:
            return models(*self.models) if self.models else response(b"{}", b"404 Not Found")
        return None

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Peer"]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()


def response(body: bytes, status: bytes = b"200 OK", headers: bytes = b"content-type: application/json\r\n") -> bytes:
    return b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\n\r\n%b" % (status, headers, len(body), body)


def models(*names: str) -> bytes:
    return response(orjson.dumps({"object": "list", "data": [{"id": name, "object": "model"} for name in names]}))


def answering(data: bytes) -> Handler:
    async def answer(connection: PeerConnection) -> None:
        await connection.send(data)

    return answer


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
