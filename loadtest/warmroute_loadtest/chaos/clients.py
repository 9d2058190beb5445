"""Clients that behave, and that look closely at what they get."""

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from .answers import read_text
from .replies import Ending, KeptConnection, Reply
from .schedule import Call

PATIENCE = 20.0
"""Seconds without a byte after which a client gives up: far more than the router's timeouts."""
_RULES = "A book can be reserved for three days; after that it goes back to the others. " * 25


class Outcome(StrEnum):
    ANSWERED = "answered"
    """Whole, right, and its own."""
    MISTAKEN = "another request's answer"
    GARBLED = "complete, but not an answer"
    STATUS = "error status"
    ERROR_EVENT = "error event in a stream"
    CUT = "connection cut"
    SILENT = "silence"
    TOO_LONG = "more than anybody reads"
    NO_CONNECTION = "no connection"


@dataclass(frozen=True, slots=True)
class Result:
    call: Call
    outcome: Outcome
    started: float
    ended: float
    """On the event loop's clock."""
    status: int = 0
    code: str = ""
    """Of the error, as its body says."""
    began: bool = False
    """Whether any byte of an answer's body came."""
    worker: str = ""
    """Who answered."""


class GoodClient:
    """One request after the other, over one connection as long as it holds."""

    def __init__(self, port: int, patience: float = PATIENCE) -> None:
        self._connection = KeptConnection(port)
        self._patience = patience

    async def ask(self, call: Call) -> Result:
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            reply = await self._connection.ask(request_of(call), self._patience)
        except OSError:
            return Result(call, Outcome.NO_CONNECTION, started, loop.time())
        return read_result(call, reply, started, loop.time())

    def close(self) -> None:
        self._connection.close()


def request_of(call: Call) -> bytes:
    """The token is where it does not make a prompt of its own."""
    text = f"Visitor {call.prompt} asks. words={call.words} {_RULES}"
    prompt = {"messages": [{"role": "user", "content": text}]} if call.chat else {"prompt": text}
    stream: dict[str, object] = {"stream": True} if call.streamed else {}
    if call.streamed and call.usage:
        stream["stream_options"] = {"include_usage": True}
    body = orjson.dumps({"model": "mock", **prompt, **stream, "user": f"id={call.token}"})
    path = b"/v1/chat/completions" if call.chat else b"/v1/completions"
    head = b"POST %b HTTP/1.1\r\nhost: chaos\r\ncontent-type: application/json\r\n" % path
    return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)


def read_result(call: Call, reply: Reply, started: float, ended: float) -> Result:
    code, worker = "", ""
    if reply.ending is not Ending.COMPLETE:
        outcome = Outcome[reply.ending.name]
    elif reply.status != 200:
        outcome, code = Outcome.STATUS, _error_code(bytes(reply.body))
    else:
        outcome, code, worker = _read_answer(call, reply)
    return Result(call, outcome, started, ended, reply.status, code, bool(reply.body), worker)


def _read_answer(call: Call, reply: Reply) -> tuple[Outcome, str, str]:
    """Of a complete reply with status 200: the outcome, an error's code, and the worker."""
    try:
        text = _text_of_stream(call, bytes(reply.body)) if call.streamed else _text(orjson.loads(reply.body))
    except _ErrorEvent as error:
        return Outcome.ERROR_EVENT, str(error), ""
    except (ValueError, LookupError, TypeError):
        return Outcome.GARBLED, "", ""
    read = read_text(text)
    if read is None:
        return Outcome.GARBLED, "", ""
    token, worker, words = read
    if token != call.token:
        return Outcome.MISTAKEN, "", worker
    return (Outcome.ANSWERED if words == call.words else Outcome.GARBLED), "", worker


class _ErrorEvent(Exception):  # noqa: N818 - not an error of ours
    """Its code."""


def _text_of_stream(call: Call, body: bytes) -> str:
    """Raises ValueError where the stream has no end, or has usage that was not asked for, or has none that was."""
    payloads = [event.partition(b"data: ")[2] for event in body.split(b"\n\n") if event]
    if payloads and payloads[-1].startswith(b'{"error"'):
        raise _ErrorEvent(_error_code(payloads[-1]))
    if not payloads or payloads.pop() != b"[DONE]":
        raise ValueError("the stream has no end")
    events = [orjson.loads(payload) for payload in payloads]
    if any(event.get("usage") for event in events) != call.usage:
        raise ValueError("usage")
    return "".join(_text(event) for event in events if event["choices"])


def _text(payload: Any) -> str:
    choice = payload["choices"][0]
    text = choice["text"] if "text" in choice else choice.get("delta", choice.get("message"))["content"]
    return str(text)


def _error_code(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"]["code"])
    except (ValueError, LookupError, TypeError):
        return ""
