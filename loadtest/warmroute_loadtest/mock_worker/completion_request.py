"""A request for a completion, read and checked."""

from array import array
from typing import Any, NamedTuple

import orjson
from xxhash import xxh3_64_intdigest

MAX_TOKENS = 2**20
"""Of one answer: a whole one is put together in memory."""


class InvalidRequest(Exception):  # noqa: N818 - named as engines name it
    """The request cannot be served. The message is one line, for the client."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class CompletionRequest(NamedTuple):
    text: bytes
    """The prompt, as it would go to the tokenizer."""
    max_tokens: int
    stream: bool
    include_usage: bool


def read_request(body: bytes, *, chat: bool, default_max_tokens: int) -> CompletionRequest:
    """Raises InvalidRequest."""
    try:
        payload = orjson.loads(body)
        text = chat_text(payload["messages"]) if chat else payload["prompt"].encode()
        limit = payload.get("max_completion_tokens")
        max_tokens = payload.get("max_tokens") if limit is None else limit
        stream = bool(payload.get("stream"))
        include_usage = stream and bool((payload.get("stream_options") or {}).get("include_usage"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidRequest(f"not a request that this worker understands: {error!r}") from None
    if max_tokens is None:
        max_tokens = default_max_tokens
    if type(max_tokens) is not int or not 0 <= max_tokens <= MAX_TOKENS:
        raise InvalidRequest(f"max_tokens is {max_tokens!r}, and must be a number from 0 to {MAX_TOKENS}")
    return CompletionRequest(text, max_tokens, stream, include_usage)


def chat_text(messages: list[dict[str, Any]]) -> bytes:
    """A chat template, in which the text of one turn begins that of the next."""
    return "".join([f"<|{message['role']}|>{_text_of(message)}" for message in messages]).encode()


def _text_of(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content or ())  # images have none, nor do calls of tools


def block_ids(text: bytes, block_bytes: int) -> "array[int]":
    """One id for each full block, which names everything before it too."""
    ids = array("Q")
    chain = 0
    for start in range(0, len(text) - block_bytes + 1, block_bytes):
        chain = xxh3_64_intdigest(text[start : start + block_bytes], chain)
        ids.append(chain)
    return ids
