"""The prompt of a request, as bytes that grow in the order in which the engine's prompt grows.

A chat template renders tools, then the messages in their order, each with its role. The key does the same, so
that the key of one turn of a conversation is a prefix of the next turn's. Model, adapter and cache salt choose
the namespace: prompts of two namespaces share nothing. The key only has to say *which* prefix this is; it is
never shown to a model.
"""

from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import orjson
from xxhash import xxh3_128_digest, xxh3_128_hexdigest

from .types import Body

# Control characters that a JSON text only has as escapes: rare inside a prompt.
_MESSAGE = b"\x1e"
_FIELD = b"\x1f"
_TOOLS = b"\x1d"

_WITH_STREAM_OPTIONS = frozenset({"/v1/chat/completions", "/v1/completions"})
_NAMESPACE_FIELDS = ("model", "lora_path", "cache_salt", "extra_key", "chat_template")
_PLAIN = 2
"""Fields of a message that has a role and content and no more."""
# What else of a message the templates render.
_MESSAGE_FIELDS = ("name", "reasoning_content", "tool_calls", "tool_call_id")
_BEFORE_BASE64 = (b";base64,", b'"data":"', b'"data": "')
"""In data URLs; in Anthropic's images and OpenAI's audio."""
_LONG = 64 * 1024
_LARGE = 2 * 1024 * 1024
"""Bytes of a body from which on it is worth to look for them."""
# Parts whose bytes stand for something else than text: known by their hash, a data URL may be megabytes.
_MEDIA_TYPES = frozenset(
    {
        "image",
        "image_url",
        "input_image",
        "input_audio",
        "audio_url",
        "video_url",
        "input_file",
        "file",
        "document",
    }
)

Json = Any
"""What orjson returns; every reader below raises TypeError, KeyError or ValueError on a shape it does not know."""


class Prompt(NamedTuple):
    namespace: bytes
    key: bytes
    model: str
    session: str
    """What the client calls its session, in `prompt_cache_key` or `user`; empty where it does not."""
    streamed: bool
    lacks_usage: bool
    """A stream whose client did not ask for usage, on an API where it could have."""


def read_prompt(path: str, body: Body) -> Prompt | None:
    """The prompt in a request body, or None where the path or the shape of the body is not known.

    Such a request is proxied all the same, by load alone: the engine knows best what to say about it.
    """
    reader = _READERS.get(path)
    if reader is None:
        return None
    try:
        payload = orjson.loads(_without_base64(body) if len(body) >= _LARGE else body)
        namespace = _namespace(payload)
        pieces: list[bytes] = []
        reader(payload, pieces)
        streamed = payload.get("stream") is True
        lacks_usage = streamed and path in _WITH_STREAM_OPTIONS and "stream_options" not in payload
        model, session = _string(payload, "model"), _session(payload)
        return Prompt(namespace, b"".join(pieces), model, session, streamed, lacks_usage)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def read_model(body: Body) -> str:
    """Of a body that is no prompt, as for embeddings; empty where it names none."""
    try:
        return _string(orjson.loads(body), "model")
    except (ValueError, AttributeError):
        return ""


def _without_base64(json: Body) -> Body:
    """JSON in which long base64 data is replaced by its hash: parsing an image takes three times its memory.

    Bytes are looked for, not parsed: what merely looks like base64 data is replaced as well.
    """
    for mark in _BEFORE_BASE64:
        json = _without_strings_behind(mark, json)
    return json


def _without_strings_behind(mark: bytes, body: Body) -> Body:
    view, pieces, done = memoryview(body), list[Body | memoryview](), 0
    at = body.find(mark)
    while at >= 0:
        start = at + len(mark)
        end = body.find(b'"', start)
        if end < 0:
            break  # no JSON
        if end - start >= _LONG and body.find(b"\\", start, end) < 0:
            pieces += (view[done:start], xxh3_128_hexdigest(view[start:end]).encode())
            done = end
        at = body.find(mark, end)
    return b"".join((*pieces, view[done:])) if pieces else body


def _namespace(payload: Json) -> bytes:
    if not isinstance(payload, dict):
        raise TypeError("not an object")
    namespace = b""
    for field in _NAMESPACE_FIELDS:
        value = payload.get(field)
        if value is not None:
            namespace += field.encode() + _FIELD + _text(value) + _MESSAGE
    return namespace


def _string(payload: Json, field: str) -> str:
    value = payload.get(field)
    return value if isinstance(value, str) else ""


def _session(payload: Json) -> str:
    return _string(payload, "prompt_cache_key") or _string(payload, "user")


# Each reader adds to the pieces of a key.


def _chat(payload: Json, pieces: list[bytes]) -> None:
    _tools(payload, pieces)
    for message in _list(payload["messages"]):
        _message(message, pieces)


def _anthropic_messages(payload: Json, pieces: list[bytes]) -> None:
    _tools(payload, pieces)
    if payload.get("system"):
        _message({"role": "system", "content": payload["system"]}, pieces)
    for message in _list(payload["messages"]):
        _message(message, pieces)


def _responses(payload: Json, pieces: list[bytes]) -> None:
    _tools(payload, pieces)
    if payload.get("instructions"):
        _message({"role": "system", "content": payload["instructions"]}, pieces)
    items = payload["input"]
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    for item in _list(items):
        if "role" in item:
            _message(item, pieces)
        else:  # function_call, function_call_output, reasoning
            pieces.append(_MESSAGE + orjson.dumps(item))


def _completions(payload: Json, pieces: list[bytes]) -> None:
    _text_or_tokens(payload["prompt"], pieces)


def _generate(payload: Json, pieces: list[bytes]) -> None:
    text = payload.get("text")
    _text_or_tokens(payload["input_ids"] if text is None else text, pieces)


_READERS: dict[str, Callable[[Json, list[bytes]], None]] = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completions,
    "/v1/messages": _anthropic_messages,
    "/v1/responses": _responses,
    "/generate": _generate,
}


def _tools(payload: Json, pieces: list[bytes]) -> None:
    tools = payload.get("tools")
    if tools:
        pieces.append(_TOOLS + orjson.dumps(tools))


def _message(message: Json, pieces: list[bytes]) -> None:
    pieces.append(_MESSAGE + _text(message["role"]) + _FIELD)
    content = message.get("content")
    if isinstance(content, str):
        pieces.append(content.encode())
    elif content is not None:
        pieces.extend(map(_part, _list(content)))
    if len(message) > _PLAIN:
        for field in _MESSAGE_FIELDS:
            value = message.get(field)
            if value is not None:
                pieces.append(_FIELD + field.encode() + _FIELD + _text(value))


def _part(part: Json) -> bytes:
    if not isinstance(part, dict):
        raise TypeError("not an object")
    if "text" in part and part.get("type", "text") in ("text", "input_text", "output_text"):
        return _text(part["text"])
    # Clients move this marker from turn to turn; no engine renders it.
    shown = {field: value for field, value in part.items() if field != "cache_control"}
    rendered = orjson.dumps(shown)
    if part.get("type") not in _MEDIA_TYPES:
        return rendered
    # As in a large body: the same picture must be the same in each turn, however long the chat has become.
    return xxh3_128_digest(_without_base64(rendered) if len(rendered) >= _LONG else rendered)


def _text_or_tokens(prompt: Json, pieces: list[bytes]) -> None:
    """A text, token ids, or a batch of either. The first prompt of a batch decides where the batch goes."""
    if isinstance(prompt, str):
        pieces.append(prompt.encode())
    elif prompt and isinstance(prompt[0], int):
        pieces.append(array("I", prompt).tobytes())
    else:
        pieces.extend(map(_one_of_many, _list(prompt)))


def _one_of_many(prompt: Json) -> bytes:
    return (prompt.encode() if isinstance(prompt, str) else array("I", _list(prompt)).tobytes()) + _MESSAGE


def _text(value: Json) -> bytes:
    return value.encode() if isinstance(value, str) else orjson.dumps(value)


def _list(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise TypeError("not a list")
    return value
