"""Hiding the usage event: whatever way the stream is split, the client's bytes are those without it."""

from itertools import pairwise

import orjson
from hypothesis import example, given
from hypothesis import strategies as st
from warmroute_router.usage_injection import UsageFilter, ask_for_usage

USAGE = b'data: {"id":"1","choices":[],"usage":{"prompt_tokens":5}}'

ordinary = st.sampled_from(
    [
        b'data: {"choices":[{"delta":{"content":"usage"}}]}',
        b'data: {"choices":[{"delta":{"content":"\\"usage\\": {}"}}],"usage":null}',
        b'data: {"choices":[{"index":0}],"usage":{"prompt_tokens":5}}',
        b'data: {"choices":[],"usage":null}',
        b'data: {"error":{"message":"usage"}}',
        b"data: [DONE]",
        b": a comment",
        b"event: ping\ndata: {}",
        b'data: {"usage": broken',
        b"",
    ]
)
ends = st.sampled_from([b"\n\n", b"\r\n\r\n"])


@given(
    st.lists(st.tuples(ordinary | st.just(USAGE), ends), max_size=8),
    st.binary(max_size=5),
    st.lists(st.integers(0, 400), max_size=8),
)
@example([(b"", b"\r\n\r\n"), (b"", b"\n\n"), (USAGE, b"\n\n")], b"", [5])
@example([(b"", b"\r\n\r\n"), (b"", b"\n\n"), (USAGE, b"\n\n")], b"", [6, 9])
@example([(b"data: 1", b"\r\n\r\n"), (USAGE, b"\r\n\r\n")], b"", [8, 9, 10, 11])
def test_only_the_usage_event_is_missing_however_the_stream_is_split(
    events: list[tuple[bytes, bytes]], rest: bytes, cuts: list[int]
) -> None:
    rest = rest.replace(b"\n", b"").replace(b"\r", b"")
    stream = b"".join(event + end for event, end in events) + rest
    expected = b"".join(event + end for event, end in events if event != USAGE) + rest
    usage_filter = UsageFilter()
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    shown = b"".join(usage_filter.feed(stream[a:b]) for a, b in pairwise(places))
    assert shown + usage_filter.flush() == expected


@given(st.binary(max_size=300))
def test_bytes_that_are_no_events_pass_as_they_are(data: bytes) -> None:
    usage_filter = UsageFilter()
    assert usage_filter.feed(data) + usage_filter.flush() == data


def test_a_whole_event_is_not_held_back() -> None:
    usage_filter = UsageFilter()
    assert usage_filter.feed(b"data: 1\n\ndata: 2") == b"data: 1\n\n"
    assert usage_filter.feed(b"\n\n") == b"data: 2\n\n"


def test_an_event_without_an_end_is_held_up_to_a_bound() -> None:
    usage_filter = UsageFilter()
    piece = b"x" * 10_000
    shown = b"".join(usage_filter.feed(piece) for _ in range(20))
    assert len(usage_filter._held) <= 64 * 1024
    assert shown + usage_filter.flush() == piece * 20


@given(
    st.dictionaries(st.text(max_size=5).filter(lambda key: key != "stream_options"), st.integers(-9, 9), min_size=1)
)
def test_asking_adds_one_field_and_changes_nothing_else(fields: dict[str, int]) -> None:
    for body in (orjson.dumps(fields), b"\n " + orjson.dumps(fields, option=orjson.OPT_INDENT_2)):
        asked = ask_for_usage(body)
        assert orjson.loads(asked) == {"stream_options": {"include_usage": True}} | fields
        assert asked.replace(b'"stream_options":{"include_usage":true},', b"", 1) == body
