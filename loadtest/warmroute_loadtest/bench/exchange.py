"""One request on its way: what has come of its answer so far, and when. Times are of `time.perf_counter`."""

from typing import Any

import orjson

from .record import UNANSWERED
from .sse import EventReader

_DONE = b"[DONE]"
_MOST_REASON = 160
"""Characters of a server's own words that are kept."""
_ODD = (orjson.JSONDecodeError, AttributeError, TypeError, KeyError, IndexError)
"""What an answer raises that has another shape than OpenAI's."""


class Exchange:
    """Fed by its connection: `header`s, `head`, `body` in pieces, and at last `end` or `fail`."""

    __slots__ = (
        "_events",
        "_finished",
        "_last_at",
        "_pieces",
        "ended_at",
        "error",
        "first_at",
        "gaps",
        "headers",
        "status",
        "text",
        "usage",
    )

    def __init__(self) -> None:
        self.status = UNANSWERED
        self.error = ""
        self.headers: dict[bytes, bytes] = {}
        """By their names in lower case."""
        self.first_at: float | None = None
        """When the body began; in a stream, when the first text came."""
        self.ended_at = 0.0
        self.gaps: list[float] = []
        """Between the events of a stream that carry text; those that came in one piece have none between them."""
        self.text: list[str] = []
        self.usage: dict[str, Any] = {}
        self._events: EventReader | None = None
        self._finished = False
        self._last_at = 0.0
        self._pieces: list[bytes] = []

    def header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def head(self, status: int) -> None:
        self.status = status
        if self.headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            self._events = EventReader()

    def body(self, piece: bytes, now: float) -> None:
        if self._events is not None:
            for data in self._events.feed(piece):
                self._event(data, now)
            return
        if self.first_at is None:
            self.first_at = now
        self._pieces.append(piece)

    def end(self, now: float) -> None:
        """The answer is here, whatever it says."""
        self.ended_at = now
        if self._events is not None:
            if not self._finished and not self.error:
                self.error = "the stream ended without [DONE]"
        elif 200 <= self.status < 300:
            self._read_whole()
        else:
            self.error = _reason(b"".join(self._pieces)) or f"status {self.status}"

    def fail(self, reason: str, now: float) -> None:
        """There is no whole answer, and there will be none."""
        self.status = UNANSWERED
        self.error = reason
        self.ended_at = now

    def told(self, *path: str) -> int | None:
        """A number of the usage, where there is one."""
        value: Any = self.usage
        for field in path:
            value = value.get(field) if isinstance(value, dict) else None
        return value if isinstance(value, int) else None

    def json(self) -> Any:
        """Of an answer that is no stream. Raises orjson.JSONDecodeError."""
        return orjson.loads(b"".join(self._pieces))

    def _event(self, data: bytes, now: float) -> None:
        if data == _DONE:
            self._finished = True
            return
        try:
            event = orjson.loads(data)
            if event.get("error"):
                self.error = self.error or _reason(data)
            if isinstance(usage := event.get("usage"), dict):
                self.usage = usage
            choices = event.get("choices")
            said = _said(choices[0], "delta") if choices else None
        except _ODD:
            self.error = self.error or "an event of the stream has an unknown shape"
            return
        if said is None:
            return
        if self.first_at is None:
            self.first_at = now
        else:
            self.gaps.append(now - self._last_at)
        self._last_at = now
        self.text.append(said)

    def _read_whole(self) -> None:
        try:
            answer = self.json()
            if isinstance(usage := answer.get("usage"), dict):
                self.usage = usage
            self.text.append(_said(answer["choices"][0], "message") or "")
        except _ODD:
            self.error = "the answer has an unknown shape"


def _said(choice: dict[str, Any], field: str) -> str | None:
    """The text; None where there is none, and empty where the model thinks aloud, which is no part of the answer."""
    message = choice.get(field)
    if message is None:
        message = {"content": choice.get("text")}
    if content := message.get("content"):
        return str(content)
    return "" if message.get("reasoning_content") or message.get("reasoning") else None


def _reason(body: bytes) -> str:
    """What the server says for itself, in one line; empty if it says nothing."""
    try:
        error = orjson.loads(body)["error"]
        text = error if isinstance(error, str) else str(error.get("message") or error.get("type") or "")
    except _ODD:
        text = body[:_MOST_REASON].decode(errors="replace")
    return " ".join(text.split())[:_MOST_REASON]
