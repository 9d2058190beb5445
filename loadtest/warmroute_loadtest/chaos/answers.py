"""Right answers in OpenAI's shapes, and how a client knows that one is whole and its own."""

import re
from dataclasses import dataclass

import orjson

from .connection import Request

_EVENTS = b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
OWN_PATHS = frozenset(
    {
        "/health",
        "/health_generate",
        "/v1/models",
        "/metrics",
        "/get_server_info",
        "/server_info",
        "/get_model_info",
        "/model_info",
    }
)
_TEXT = re.compile(r"id=(?P<token>\S*) worker=(?P<worker>\S+) (?P<words>.*)end")


@dataclass(frozen=True, slots=True)
class Answer:
    """`head`, then `pieces`: each a chunk of a stream, or a part of a whole body."""

    head: bytes
    pieces: list[bytes]
    body: bytes
    """Without any framing."""
    content_type: bytes


def answer_to(request: Request, worker: str, chunks: int, model: str) -> Answer:
    """`chunks` words, each with the request's token and its number, so that no part can be missing or another's."""
    chat = request.path.endswith("/chat/completions")
    texts = [
        f"id={request.token} worker={worker} ",
        *(f"{request.token}:{number} " for number in range(chunks)),
        "end",
    ]
    usage = _usage(len(request.body) // 4, len(texts))
    shape = {"id": f"mock-{request.token}", "created": 0, "model": model}
    if not request.streamed:
        return _whole(orjson.dumps(shape | _result(chat, "".join(texts)) | {"usage": usage}), chunks)
    events = [_event(shape | _delta(chat, text, last=number == chunks + 1)) for number, text in enumerate(texts)]
    if request.wants_usage:
        kind = "chat.completion.chunk" if chat else "text_completion"
        events.append(_event(shape | {"object": kind, "choices": [], "usage": usage}))
    return _streamed([*events, b"data: [DONE]\n\n"])


def read_text(text: str) -> tuple[str, str, int] | None:
    """Token, worker and number of words of a whole text; None where it is not whole, or mixed with another."""
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    words = match["words"].split()
    if words != [f"{match['token']}:{number}" for number in range(len(words))]:
        return None
    return match["token"], match["worker"], len(words)


def error(status: int, message: str) -> bytes:
    body = orjson.dumps(
        {"error": {"message": message, "type": "mock_error", "param": None, "code": f"mock_{status}"}}
    )
    again = b"retry-after: 1\r\n" if status in (429, 503) else b""
    return response(body, b"%d Mock" % status, again)


def response(
    body: bytes, status: bytes = b"200 OK", headers: bytes = b"", content_type: bytes = b"application/json"
) -> bytes:
    lines = b"content-type: %b\r\n%bcontent-length: %d\r\n" % (content_type, headers, len(body))
    return b"HTTP/1.1 %b\r\n%b\r\n%b" % (status, lines, body)


def own_answer(path: str, model: str, started: float, running: int) -> bytes:
    """To what routers and people ask of a worker itself, at `OWN_PATHS`."""
    if path == "/metrics":
        lines = f'process_start_time_seconds {started}\nvllm:num_requests_running{{model_name="{model}"}} {running}\n'
        return response(lines.encode(), content_type=b"text/plain; version=0.0.4")
    if path == "/v1/models":
        card = {"id": model, "object": "model", "created": 0, "owned_by": "mock"}
        return response(orjson.dumps({"object": "list", "data": [card]}))
    names = {"model_path": model, "served_model_name": model, "tokenizer_path": model}
    return response(orjson.dumps({"status": "ok", "version": "mock", "is_generation": True, "dp_size": 1, **names}))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _streamed(events: list[bytes]) -> Answer:
    head = b"HTTP/1.1 200 OK\r\n%b\r\n" % _EVENTS
    framed = [chunk(event) for event in events]
    framed[-1] += b"0\r\n\r\n"
    return Answer(head, framed, b"".join(events), b"text/event-stream")


def _whole(body: bytes, chunks: int) -> Answer:
    size = -(-len(body) // (chunks + 1))
    head, _, _ = response(body).partition(body)
    return Answer(head, [body[at : at + size] for at in range(0, len(body), size)], body, b"application/json")


def _event(payload: object) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def _usage(prompt: int, completion: int) -> dict[str, object]:
    """Half of each prompt was cached."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": prompt // 2},
    }


def _result(chat: bool, text: str) -> dict[str, object]:
    if chat:
        message = {"role": "assistant", "content": text}
        choice: dict[str, object] = {"index": 0, "message": message, "finish_reason": "stop"}
        return {"object": "chat.completion", "choices": [choice]}
    return {"object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}


def _delta(chat: bool, text: str, last: bool) -> dict[str, object]:
    finish = "stop" if last else None
    if chat:
        choice: dict[str, object] = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
        return {"object": "chat.completion.chunk", "choices": [choice]}
    return {"object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": finish}]}
