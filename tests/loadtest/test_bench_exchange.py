"""Whatever JSON comes as an answer, there is an end to it that says what it was."""

from typing import Any

import orjson
from hypothesis import example, given
from hypothesis import strategies as st
from warmroute_loadtest.bench.exchange import Exchange

FIELDS = (
    *("choices", "delta", "message", "content", "text", "reasoning_content", "usage", "prompt_tokens", "error"),
    *("prompt_tokens_details", "cached_tokens"),
)
json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=12,
)


def read(status: int, content_type: bytes, body: bytes) -> Exchange:
    exchange = Exchange()
    exchange.header(b"Content-Type", content_type)
    exchange.head(status)
    exchange.body(body, 1.0)
    exchange.end(2.0)
    assert "".join(exchange.text) is not None
    for path in (("prompt_tokens",), ("completion_tokens",), ("prompt_tokens_details", "cached_tokens")):
        assert isinstance(exchange.told(*path), int | None)
    assert "\n" not in exchange.error
    return exchange


@given(payload=json)
@example(payload={"choices": [{"text": 1}], "usage": {"prompt_tokens_details": [1]}})
@example(payload={"choices": "ab", "error": {"message": "a\nb"}})
def test_any_json(payload: Any) -> None:
    body = orjson.dumps(payload)
    whole = read(200, b"application/json", body)
    assert whole.error or isinstance(payload["choices"][0], dict)
    assert read(500, b"application/json", body).error
    stream = read(200, b"text/event-stream; charset=utf-8", b"data: " + body + b"\n\ndata: [DONE]\n\n")
    assert stream.error or isinstance(payload, dict)


@given(body=st.binary(max_size=40).filter(lambda body: b"data" not in body))  # `data\n\n` is an event
def test_any_bytes(body: bytes) -> None:
    assert read(200, b"application/json", body).error
    assert read(404, b"text/plain", body).error
    assert read(200, b"text/event-stream", body).error == "the stream ended without [DONE]"


def test_a_chunk_of_a_stream() -> None:
    events: tuple[dict[str, Any], ...] = (
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"reasoning": "hm"}}]},
        {"choices": [{"delta": {"content": "a"}}]},
        {"choices": [{"text": "b"}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 7}},
        {"choices": [], "usage": None},
    )
    body = b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    exchange = read(200, b"text/event-stream", body)
    assert (exchange.error, "".join(exchange.text), exchange.gaps) == ("", "ab", [0.0, 0.0])
    assert (exchange.told("prompt_tokens"), exchange.first_at, exchange.ended_at) == (7, 1.0, 2.0)
