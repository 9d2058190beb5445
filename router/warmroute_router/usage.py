"""What the engine says of a prompt in its reply: how long it was, and how much of it came from the cache."""

from collections import deque
from typing import Any, NamedTuple

import orjson

from .types import Headers

MAX_JSON = 1024 * 1024
"""Bytes. A longer reply is passed on unread."""
STREAM_TAIL = 64 * 1024
"""Bytes of a stream's end that are kept. The last event has the usage, and in the Responses API the whole answer."""


class Usage(NamedTuple):
    prompt_tokens: int
    cached_tokens: int | None
    """None where the engine does not say."""
    leaves_out_zero: bool = True
    """Whether an engine that says it in this form may say nothing where it is zero, as vLLM and SGLang do."""


class UsageReader:
    """Watches one reply go by. Nothing is parsed before its end, and no more than a bounded part is kept."""

    def __init__(self, headers: Headers) -> None:
        """Names are in lower case."""
        kind = dict(headers).get(b"content-type", b"").lower()
        self.streamed = kind.startswith(b"text/event-stream")
        self._limit = STREAM_TAIL if self.streamed else MAX_JSON
        self._wanted = self.streamed or kind.startswith(b"application/json")
        self._chunks: deque[bytes] = deque()
        self._size = 0

    def feed(self, chunk: bytes) -> None:
        if not self._wanted:
            return
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._size <= self._limit:
            return
        if not self.streamed:
            self._wanted = False
            self._chunks.clear()
            return
        while self._size - len(self._chunks[0]) >= self._limit:
            self._size -= len(self._chunks.popleft())

    def result(self) -> Usage | None:
        if not self._wanted:
            return None
        body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        if not self.streamed:
            return _usage_of(_parse(body))
        # From the end, since the usage is in one of the last events, up to a full line.
        for line in reversed(body.splitlines()):
            if line.startswith(b"data:") and b"token" in line:
                usage = _usage_of(_parse(line[5:]))
                if usage is not None:
                    return usage
        return None


def _parse(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def _usage_of(reply: Any) -> Usage | None:
    if not isinstance(reply, dict):
        return None
    usage = _read_either(reply)
    for field in ("response", "message"):
        if usage is None and isinstance(holder := reply.get(field), dict):
            usage = _read_either(holder)
    return usage


def _read_either(holder: dict[str, Any]) -> Usage | None:
    usage = _read(holder.get("usage"))
    if usage is not None:
        return usage
    usage = _read(holder.get("meta_info"))
    return None if usage is None else usage._replace(leaves_out_zero=False)


def _read(usage: Any) -> Usage | None:
    """OpenAI's chat and Responses forms, Anthropic's, and SGLang's own `meta_info`. None where it cannot be true."""
    if not isinstance(usage, dict):
        return None
    if "cache_read_input_tokens" in usage:  # Anthropic: three disjoint parts of the prompt
        read = _count(usage["cache_read_input_tokens"])
        rest = _count(usage.get("input_tokens"))
        created = _count(usage.get("cache_creation_input_tokens")) or 0
        return None if read is None or rest is None else Usage(rest + read + created, read)
    prompt = _count(usage.get("prompt_tokens", usage.get("input_tokens")))
    if prompt is None:
        return None
    details = usage.get("prompt_tokens_details", usage.get("input_tokens_details"))
    said = details.get("cached_tokens") if isinstance(details, dict) else usage.get("cached_tokens")
    if said is None:
        return Usage(prompt, None)
    cached = _count(said)
    # More than the prompt: some versions of SGLang count it again for each of `n` answers.
    return None if cached is None or cached > prompt else Usage(prompt, cached)


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
