"""Events out of a stream, however it is cut, against a reader that has all of it at once."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from warmroute_loadtest.bench.sse import EventReader

lines = st.one_of(
    st.just(b""),
    st.sampled_from(
        [b"data", b"data:", b"data: ", b": a comment", b"event: x", b"id: 1", b"dat", b"data :x", b"datax: y"]
    ),
    st.binary(max_size=6).map(lambda text: b"data: " + re.sub(rb"[\r\n]", b"", text)),
    st.binary(max_size=6).map(lambda text: b"data:" + re.sub(rb"[\r\n]", b"", text)),
)
streams = st.lists(st.tuples(lines, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=12).map(
    lambda parts: b"".join(line + end for line, end in parts)
)


def events_of(stream: bytes) -> list[bytes]:
    """As https://html.spec.whatwg.org/multipage/server-sent-events.html puts it, line by line."""
    events: list[bytes] = []
    data: list[bytes] = []
    *whole, _ = re.split(rb"\r\n|\r|\n", stream)
    for line in whole:
        field, _, value = line.partition(b":")
        if line == b"":
            if data:
                events.append(b"\n".join(data))
            data = []
        elif field == b"data":
            data.append(re.sub(rb"^ ", b"", value))
    return events


def read(*pieces: bytes) -> list[bytes]:
    reader = EventReader()
    return [event for piece in pieces for event in reader.feed(piece)]


@given(stream=streams, cuts=st.lists(st.integers(0, 200), max_size=8))
def test_any_stream_cut_anywhere(stream: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(places)]
    assert read(*pieces) == events_of(stream)


@given(stream=streams)
def test_byte_by_byte(stream: bytes) -> None:
    assert read(*(stream[place : place + 1] for place in range(len(stream)))) == events_of(stream)


@pytest.mark.parametrize(
    ("pieces", "events"),
    [
        ([b"data: a\n\ndata: b\n\n"], [b"a", b"b"]),
        ([b"data: a\r", b"\n\r", b"\n"], [b"a"]),
        ([b"data: a\r", b"\r", b"data: b\r\r"], [b"a", b"b"]),
        ([b"data: a\ndata:\ndata: c\n\n"], [b"a\n\nc"]),
        ([b": ping\n\n", b"data: a"], []),
    ],
)
def test_by_hand(pieces: list[bytes], events: list[bytes]) -> None:
    assert read(*pieces) == events
