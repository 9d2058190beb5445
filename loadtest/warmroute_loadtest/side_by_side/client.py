"""The client of the scenarios: a new connection for each request, and an account of how its answer ended."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx
import orjson

from ..rivals.running import RunningRouter

PATIENCE = 30.0
"""Seconds after which a client gives up, where a scenario does not say otherwise."""
_ids = count(1)


@dataclass
class Answer:
    token: str
    """What the worker is to say back."""
    status: int | None = None
    """None: not even a status came."""
    headers: httpx.Headers = field(default_factory=httpx.Headers)
    body: bytes = b""
    ending: str = "complete"
    """Or `cut`, `timeout`, `refused`."""
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        """200, whole, and the answer to this request."""
        return self.status == 200 and self.ending == "complete" and self.token.encode() in self.body

    @property
    def has_error_event(self) -> bool:
        return b'"error"' in self.body

    def __str__(self) -> str:
        if self.right:
            return "200"
        if self.status is None:
            return self.ending
        if self.ending != "complete":
            return f"{self.status} {self.ending}"
        if self.status == 200:
            return "200 with an error event" if self.has_error_event else "200 with another answer"
        return str(self.status)


class Client:
    """Asks one router. Never reuses a connection, so that no scenario meets the leftovers of a request before."""

    def __init__(self, http: httpx.AsyncClient, router: RunningRouter) -> None:
        self.http = http
        self.router = router

    async def ask(
        self,
        prompt: str = "",
        *,
        stream: bool = False,
        patience: float = PATIENCE,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Answer:
        """One chat completion, read to its end."""
        token, body = chat(prompt, stream=stream, **fields)
        return await self.post("/v1/chat/completions", body, token=token, patience=patience, headers=headers)

    async def post(
        self,
        path: str,
        body: bytes,
        *,
        token: str = "",
        patience: float = PATIENCE,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        answer, started = Answer(token), time.monotonic()
        try:
            async with asyncio.timeout(patience):
                await self._exchange(path, body, headers or {}, answer)
        except TimeoutError:
            answer.ending = "timeout"
        except httpx.ConnectError:
            answer.ending = "refused"
        except httpx.HTTPError:
            answer.ending = "cut"
        answer.seconds = time.monotonic() - started
        return answer

    async def _exchange(self, path: str, body: bytes, headers: Mapping[str, str], answer: Answer) -> None:
        sent = {"content-type": "application/json", **headers}
        async with self.http.stream("POST", self.router.url + path, content=body, headers=sent) as response:
            answer.status, answer.headers = response.status_code, response.headers
            async for data in response.aiter_raw():
                answer.body += data

    async def ask_many(self, number: int, **options: Any) -> list[Answer]:
        """At the same time, each with a prompt of its own."""
        return await asyncio.gather(*(self.ask(unlike(n), **options) for n in range(number)))

    async def ask_in_turn(self, number: int, **options: Any) -> list[Answer]:
        return [await self.ask(unlike(n), **options) for n in range(number)]

    async def drain(self) -> int:
        """Bytes of one answer that is too large to be kept, head included."""
        reader, writer = await self.connect()
        writer.write(raw_chat(chat()[1], "connection: close"))
        got = 0
        while data := await reader.read(1 << 20):
            got += len(data)
        writer.close()
        return got

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection, for what no HTTP client would send."""
        return await asyncio.open_connection("127.0.0.1", self.router.port, limit=1 << 20)


def chat(prompt: str = "", **fields: Any) -> tuple[str, bytes]:
    """A token of its own, and a body that has it at the end of its prompt."""
    token = f"id=t{next(_ids)}x"
    content = f"{prompt} {token}".strip()
    fields = {name: value for name, value in fields.items() if value is not False}
    return token, orjson.dumps({"model": "mock", "messages": [{"role": "user", "content": content}], **fields})


def raw_chat(body: bytes, *headers: str) -> bytes:
    """The request as bytes, for a bare connection."""
    lines = ["POST /v1/chat/completions HTTP/1.1", "host: router", "content-type: application/json"]
    head = "\r\n".join([*lines, f"content-length: {len(body)}", *headers, "", ""])
    return head.encode() + body


def unlike(number: int) -> str:
    """A prompt that shares no beginning with that of another number."""
    return f"{number} tells a story of its own: " + f"word{number} " * 40


def tally(answers: Iterable[Answer]) -> str:
    """`38×200, 2×500`: the commonest first."""
    counts = Counter(str(answer) for answer in answers)
    return ", ".join(f"{number}×{kind}" for kind, number in counts.most_common())


def lost(answers: Iterable[Answer]) -> int:
    return sum(not answer.right for answer in answers)
