"""The workers of the scenarios: a `FaultWorker` that can have a key, and a script instead of its own answers."""

from collections import deque
from collections.abc import Awaitable, Callable

from ..chaos.answers import error, response
from ..chaos.connection import Connection, Request
from ..chaos.fault_worker import FaultWorker

Script = Callable[[Connection, Request], Awaitable[None]]
CHAT = "/v1/chat/completions"
_SEEN = 4096


class Worker(FaultWorker):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.seen = deque(maxlen=_SEEN)
        self.script: Script | None = None
        """Answers what clients ask."""
        self.api_key: str | None = None
        """Asked for under `/v1`, as engines do."""

    @property
    def prompts(self) -> int:
        """Chat completions that it has read."""
        return sum(request.path == CHAT for request in self.seen)

    def has_seen(self, token: str) -> bool:
        return any(token == f"id={request.token}" for request in self.seen)

    async def _exchange(self, connection: Connection, head: bytes, first: bool) -> None:
        request = Request(head)
        if request.method == "PRI":  # a router that would like to know whether it speaks HTTP/2
            connection.close()
        elif request.method == "GET":  # loads, versions and other things that only some engines have
            await connection.send(error(404, "no such path"))
        else:
            await super()._exchange(connection, head, first)

    async def _answer(self, connection: Connection, head: bytes, first: bool) -> None:
        admitted = self._admits(Request(head))
        if admitted and self.script is None:
            await super()._answer(connection, head, first)
            return
        request = Request(head, await connection.read_body(head))
        self.seen.append(request)
        if self.script is None or not admitted:
            await connection.send(_UNAUTHORIZED)
        else:
            await self.script(connection, request)

    async def _answer_own(self, connection: Connection, request: Request) -> None:
        if self._admits(request) or not request.path.startswith("/v1/"):
            await super()._answer_own(connection, request)
        else:
            await connection.send(_UNAUTHORIZED)

    def _admits(self, request: Request) -> bool:
        """By the first Authorization, if there are two."""
        return self.api_key is None or request.headers(b"authorization")[:1] == [b"Bearer " + self.api_key.encode()]


_UNAUTHORIZED = response(b'{"error":"Unauthorized"}', b"401 Unauthorized")
