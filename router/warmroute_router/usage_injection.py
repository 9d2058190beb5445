"""Asking for usage on behalf of a client that did not, and hiding the answer to that from it.

Engines report cached tokens of a stream only in an extra last event, and only if `stream_options.include_usage` asks
for it. The router asks, reads that event, and takes it out again: the client sees byte for byte what it would have.
"""

import re

import orjson

from .types import Body

_OPTION = b'"stream_options":{"include_usage":true},'
_MAX_HELD = 64 * 1024
"""Bytes of an event that has not ended yet. A longer one passes unseen."""
_EVENT_END = re.compile(rb"\r?\n\r?\n")


def ask_for_usage(body: Body) -> bytes:
    """Add the option to a JSON object that has no `stream_options`. Everything else stays as it was written."""
    start = body.index(b"{") + 1
    return b"".join((body[:start], _OPTION, memoryview(body)[start:]))


class UsageFilter:
    """Passes a stream of server-sent events on, but for the one that only tells usage."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """What may go on. The beginning of an event waits for its end: nobody could use it before."""
        if not self._held and chunk.endswith(b"\n\n"):  # whole events, as engines write them
            return _without_usage(chunk) if b'"usage"' in chunk else chunk
        data = self._held + chunk if self._held else chunk
        end = _end_of_last_event(data)
        if len(data) - end > _MAX_HELD:
            end = len(data)
        self._held = data[end:]
        complete = data[:end]
        return _without_usage(complete) if b'"usage"' in complete else complete

    def flush(self) -> bytes:
        held, self._held = self._held, b""
        return held


def _end_of_last_event(data: bytes) -> int:
    # From the left, as events are read: of `\r\n\r\n\n` the last line is the next event's.
    return max((match.end() for match in _EVENT_END.finditer(data)), default=0)


def _without_usage(events: bytes) -> bytes:
    kept: list[bytes] = []
    start = 0
    for end in (match.end() for match in _EVENT_END.finditer(events)):
        event = events[start:end]
        # Where a chunk ended in the middle of blank lines, the others come before the next event.
        blank = len(event) - len(event.lstrip(b"\r\n"))
        kept.append(event[:blank] if _only_tells_usage(event[blank:]) else event)
        start = end
    kept.append(events[start:])
    return b"".join(kept)


def _only_tells_usage(event: bytes) -> bool:
    if not event.startswith(b"data:") or b'"usage"' not in event:
        return False
    try:
        payload = orjson.loads(event[5:])
    except orjson.JSONDecodeError:
        return False
    return isinstance(payload, dict) and payload.get("choices") == [] and isinstance(payload.get("usage"), dict)
