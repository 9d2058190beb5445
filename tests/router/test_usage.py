"""What is read off a reply: each engine's form, whole or in pieces, and unknown wherever it is not plainly said."""

import gzip
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from warmroute_router.types import Headers
from warmroute_router.usage import MAX_JSON, STREAM_TAIL, Usage, UsageReader

JSON: Headers = [(b"content-type", b"application/json")]
STREAM: Headers = [(b"content-type", b"text/event-stream; charset=utf-8")]

CHAT = {
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {
        "prompt_tokens": 100,
        "completion_tokens": 2,
        "total_tokens": 102,
        "prompt_tokens_details": {"cached_tokens": 64, "audio_tokens": 0},
    },
}
COMPLETION = {
    "object": "text_completion",
    "choices": [{"text": "hi"}],
    "usage": {"prompt_tokens": 9, "total_tokens": 11, "prompt_tokens_details": {"cached_tokens": 0}},
}
RESPONSE = {
    "object": "response",
    "output": [{"type": "message", "content": [{"type": "output_text", "text": "hi"}]}],
    "usage": {"input_tokens": 50, "input_tokens_details": {"cached_tokens": 48}, "output_tokens": 1},
}
ANTHROPIC = {
    "type": "message",
    "content": [{"type": "text", "text": "hi"}],
    "usage": {
        "input_tokens": 5,
        "cache_creation_input_tokens": 20,
        "cache_read_input_tokens": 300,
        "output_tokens": 7,
    },
}
SGLANG = {"text": "hi", "meta_info": {"id": "x", "prompt_tokens": 30, "completion_tokens": 2, "cached_tokens": 29}}


def sse(*events: Any, end: bytes = b"") -> bytes:
    return b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events) + end


STREAMS = {
    "chat": (
        sse(
            {"choices": [{"delta": {"content": "hi"}}], "usage": None},
            {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": None},
            {"choices": [], "usage": CHAT["usage"]},
            end=b"data: [DONE]\n\n",
        ),
        Usage(100, 64),
    ),
    "chat-usage-in-every-event": (
        sse(
            {"choices": [], "usage": {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 64}}},
            {"choices": [], "usage": {"prompt_tokens": 101, "prompt_tokens_details": {"cached_tokens": 65}}},
            end=b"data: [DONE]\n\n",
        ),
        Usage(101, 65),
    ),
    "completions": (
        sse({"choices": [{"text": "hi"}]}, {"choices": [], "usage": COMPLETION["usage"]}, end=b"data: [DONE]\n\n"),
        Usage(9, 0),
    ),
    "responses": (
        b"event: response.created\n"
        + sse({"type": "response.created", "response": {"usage": None}})
        + b"event: response.output_text.delta\n"
        + sse({"type": "response.output_text.delta", "delta": "hi"})
        + b"event: response.completed\n"
        + sse({"type": "response.completed", "response": RESPONSE}),
        Usage(50, 48),
    ),
    "anthropic": (
        b"event: message_start\n"
        + sse({"type": "message_start", "message": ANTHROPIC})
        + b"event: content_block_delta\n"
        + sse({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hi"}})
        + b"event: message_delta\n"
        + sse({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}})
        + b"event: message_stop\n"
        + sse({"type": "message_stop"}),
        Usage(325, 300),
    ),
    "sglang": (
        sse(
            {"text": "h", "meta_info": {"prompt_tokens": 30, "cached_tokens": 29}},
            {"text": "hi", "meta_info": {"prompt_tokens": 30, "cached_tokens": 29}},
            end=b"data: [DONE]\n\n",
        ),
        Usage(30, 29, leaves_out_zero=False),
    ),
    "crlf-and-no-space": (
        b'data:{"choices":[]}\r\n\r\ndata:{"usage":{"prompt_tokens":3,"cached_tokens":1}}\r\n\r\n: ping\r\n\r\n',
        Usage(3, 1),
    ),
    "no-usage": (sse({"choices": [{"delta": {"content": "token"}}]}, end=b"data: [DONE]\n\n"), None),
    "empty": (b"", None),
}


def read(headers: Headers, *chunks: bytes) -> Usage | None:
    reader = UsageReader(headers)
    for chunk in chunks:
        reader.feed(chunk)
    return reader.result()


def read_json(reply: Any) -> Usage | None:
    return read(JSON, orjson.dumps(reply))


def read_usage(usage: Any) -> Usage | None:
    """The same from a document and from a stream."""
    document, stream = read_json({"usage": usage}), read(STREAM, sse({"choices": [], "usage": usage}))
    assert document == stream
    return document


def cut(body: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({min(place, len(body)) for place in places} | {len(body)})
    return [body[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize(
    ("reply", "usage"),
    [
        (CHAT, Usage(100, 64)),
        (COMPLETION, Usage(9, 0)),
        (RESPONSE, Usage(50, 48)),
        (ANTHROPIC, Usage(325, 300)),
        (SGLANG, Usage(30, 29, leaves_out_zero=False)),
    ],
    ids=["chat", "completions", "responses", "anthropic", "sglang"],
)
def test_each_form_of_a_document_is_read(reply: object, usage: Usage) -> None:
    assert read_json(reply) == usage


@pytest.mark.parametrize("name", STREAMS)
def test_each_form_of_a_stream_is_read(name: str) -> None:
    body, usage = STREAMS[name]
    assert read(STREAM, body) == usage


@given(st.sampled_from(sorted(STREAMS)), st.lists(st.integers(0, 1200), max_size=30))
def test_no_splitting_of_a_stream_changes_what_is_read(name: str, places: list[int]) -> None:
    body, usage = STREAMS[name]
    assert read(STREAM, *cut(body, places)) == usage


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_byte_by_byte_is_read(name: str) -> None:
    body, usage = STREAMS[name]
    assert read(STREAM, *(body[at : at + 1] for at in range(len(body)))) == usage


LONG = sse({"usage": {"prompt_tokens": 7, "cached_tokens": 7}}) + sse({"choices": [{"text": "tokens"}]}) * 4000


@settings(max_examples=50)
@given(st.lists(st.integers(0, len(LONG) + 200), max_size=30))
def test_no_splitting_of_a_long_stream_changes_what_is_read(places: list[int]) -> None:
    assert len(LONG) > 2 * STREAM_TAIL
    assert read(STREAM, *cut(LONG + STREAMS["chat"][0], places)) == Usage(100, 64)


@given(st.sampled_from([CHAT, COMPLETION, RESPONSE, ANTHROPIC, SGLANG]), st.lists(st.integers(0, 400), max_size=10))
def test_no_splitting_of_a_document_changes_what_is_read(reply: object, places: list[int]) -> None:
    body = orjson.dumps(reply)
    assert read(JSON, *cut(body, places)) == read(JSON, body) is not None


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 10},
        {"prompt_tokens": 10, "prompt_tokens_details": None},
        {"prompt_tokens": 10, "prompt_tokens_details": {}},
        {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": None}},
        {"prompt_tokens": 10, "prompt_tokens_details": [3]},
        {"input_tokens": 10, "output_tokens": 1},
        {"input_tokens": 10, "input_tokens_details": None},
    ],
    ids=str,
)
def test_where_the_engine_does_not_say_what_was_cached_it_is_unknown_and_not_zero(usage: object) -> None:
    assert read_usage(usage) == Usage(10, None)


@pytest.mark.parametrize("odd", [True, False, -1, 1.0, 0.5, "7", None, [7], {"n": 7}, 1e20], ids=repr)
def test_a_count_of_an_odd_type_is_unknown(odd: object) -> None:
    unsaid = Usage(10, None) if odd is None else None
    assert read_usage({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": odd}}) == unsaid
    assert read_usage({"prompt_tokens": odd, "prompt_tokens_details": {"cached_tokens": 3}}) is None
    assert read_usage({"input_tokens": odd}) is None
    assert read_usage({"input_tokens": odd, "cache_read_input_tokens": 3}) is None
    assert read_usage({"input_tokens": 3, "cache_read_input_tokens": odd}) is None
    own = read_json({"meta_info": {"prompt_tokens": 10, "cached_tokens": odd}})
    assert own == (unsaid and unsaid._replace(leaves_out_zero=False))


def test_more_cached_than_there_was_cannot_be() -> None:
    """Some versions of SGLang count it again for each of `n` answers."""
    assert read_usage({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 11}}) is None
    assert read_json({"meta_info": {"prompt_tokens": 10, "cached_tokens": 40}}) is None


def test_zero_is_a_count() -> None:
    assert read_usage({"prompt_tokens": 0, "prompt_tokens_details": {"cached_tokens": 0}}) == Usage(0, 0)


def test_anthropics_counts_are_disjoint_and_the_created_part_may_be_missing() -> None:
    assert read_usage({"input_tokens": 5, "cache_read_input_tokens": 7}) == Usage(12, 7)
    created = {"input_tokens": 5, "cache_read_input_tokens": 7, "cache_creation_input_tokens": None}
    assert read_usage(created) == Usage(12, 7)
    assert read_usage({**created, "cache_creation_input_tokens": 11}) == Usage(23, 7)


@pytest.mark.parametrize("odd", [None, 7, "usage", [], [{"prompt_tokens": 10}], {}, {"total_tokens": 5}], ids=repr)
def test_a_usage_of_an_odd_shape_is_unknown(odd: object) -> None:
    assert read_usage(odd) is None
    assert read_json(odd) is None
    assert read_json({"response": odd, "message": odd, "meta_info": odd}) is None


@pytest.mark.parametrize("size", [1000, 16 * 1024, STREAM_TAIL, STREAM_TAIL + 1])
def test_of_a_long_stream_a_bounded_part_is_kept_and_its_end_is_found(size: int) -> None:
    event = sse({"choices": [{"delta": {"content": "some tokens"}}]})
    body = event * (10 * 1024 * 1024 // len(event)) + STREAMS["chat"][0]
    reader = UsageReader(STREAM)
    most = 0
    for start in range(0, len(body), size):
        reader.feed(body[start : start + size])
        most = max(most, sum(map(len, reader._chunks)))
    assert STREAM_TAIL <= most < STREAM_TAIL + size
    assert reader.result() == Usage(100, 64)


def test_what_is_kept_is_enough_for_a_last_event_as_long_as_the_tail() -> None:
    body = sse({"usage": CHAT["usage"], "padding": ""})
    body = body.replace(b'""', b'"%b"' % (b"x" * (STREAM_TAIL - len(body))))
    assert len(body) == STREAM_TAIL
    assert read(STREAM, b": ping\n\n" * 10_000, body) == Usage(100, 64)


@pytest.mark.parametrize("pieces", [1, 7])
def test_a_document_is_read_up_to_the_limit_and_dropped_over_it(pieces: int) -> None:
    body = orjson.dumps(CHAT)
    fits = body + b" " * (MAX_JSON - len(body))
    step = -(-len(fits) // pieces)
    chunks = [fits[start : start + step] for start in range(0, len(fits), step)]
    assert len(chunks) == pieces
    assert read(JSON, *chunks) == Usage(100, 64)

    reader = UsageReader(JSON)
    for chunk in (*chunks, b" ", *chunks):
        reader.feed(chunk)
    assert reader.result() is None
    assert not reader._chunks


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"content-type", b"text/plain")],
        [(b"content-type", b"text/html; x=application/json")],
        [(b"content-type", b"")],
        [(b"content-length", b"7")],
    ],
    ids=str,
)
def test_other_content_types_are_not_kept(headers: Headers) -> None:
    for body in (orjson.dumps(CHAT), STREAMS["chat"][0]):
        reader = UsageReader(headers)
        reader.feed(body)
        assert not reader._chunks
        assert reader.result() is None


def test_the_content_type_is_found_in_any_case_and_with_parameters() -> None:
    headers = [(b"server", b"x"), (b"content-type", b"application/json; charset=utf-8")]
    assert read(headers, orjson.dumps(CHAT)) == Usage(100, 64)
    assert read([(b"content-type", b"Text/Event-Stream")], STREAMS["chat"][0]) == Usage(100, 64)


@pytest.mark.parametrize("headers", [JSON, STREAM], ids=["document", "stream"])
def test_a_compressed_reply_is_unknown(headers: Headers) -> None:
    body = orjson.dumps(CHAT) if headers is JSON else STREAMS["chat"][0]
    assert read([*headers, (b"content-encoding", b"gzip")], gzip.compress(body)) is None


@given(st.sampled_from([JSON, STREAM]), st.lists(st.binary(max_size=200), max_size=8))
def test_garbage_is_unknown_and_never_raises(headers: Headers, chunks: list[bytes]) -> None:
    assert read(headers, *chunks) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "usage",
                    "meta_info",
                    "response",
                    "message",
                    "prompt_tokens",
                    "input_tokens",
                    "cached_tokens",
                    "prompt_tokens_details",
                    "cache_read_input_tokens",
                    "cache_creation_input_tokens",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(json_values)
def test_any_json_gives_counts_or_nothing(value: object) -> None:
    for usage in (read_json(value), read(STREAM, sse(value))):
        if usage is not None:
            assert type(usage.prompt_tokens) is int
            assert usage.prompt_tokens >= 0
            assert usage.cached_tokens is None or (type(usage.cached_tokens) is int and usage.cached_tokens >= 0)


def test_nesting_too_deep_for_a_parser_is_unknown() -> None:
    deep = b'{"usage":' * 100_000 + b"1" + b"}" * 100_000
    assert read(JSON, deep) is None
    assert read(STREAM, b"data: " + deep) is None


FAKE = 'data: {"usage":{"prompt_tokens":999,"prompt_tokens_details":{"cached_tokens":999}}}'


def test_a_text_that_speaks_of_usage_is_a_text() -> None:
    for text in (FAKE, f"\n\n{FAKE}\n\n", FAKE.removeprefix("data: "), '"usage"', "\r\n" + FAKE):
        choice = {"message": {"content": text}, "delta": {"content": text}, "text": text}
        assert read_json({"choices": [choice]}) is None
        assert read_json({"choices": [choice], "usage": CHAT["usage"]}) == Usage(100, 64)
        assert read(STREAM, sse({"choices": [choice]}, end=b"data: [DONE]\n\n")) is None
        after = sse({"choices": [], "usage": CHAT["usage"]}, {"choices": [choice]}, end=b"data: [DONE]\n\n")
        assert read(STREAM, after) == Usage(100, 64)


def test_usage_deeper_inside_is_not_the_replys() -> None:
    tool_call = {"function": {"arguments": {"usage": CHAT["usage"]}}}
    assert read_json({"choices": [{"message": {"tool_calls": [tool_call]}, "usage": CHAT["usage"]}]}) is None


def test_an_sse_line_that_is_no_data_is_not_read() -> None:
    line = orjson.dumps({"usage": CHAT["usage"]})
    assert read(STREAM, b": " + line + b"\n\nevent: " + line + b"\n\n" + line + b"\n\n") is None
