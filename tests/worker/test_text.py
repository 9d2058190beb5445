"""Text as it comes out token by token, against the same text cut in one go."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from warmroute_worker.text import Detokenizer, OutputText, StopFilter


def decode_bytes(ids: Sequence[int]) -> str:
    """A tokenizer of single bytes, the hardest case for half characters."""
    return bytes(ids).decode("utf-8", errors="replace")


@given(st.text(max_size=30))
def test_no_half_character_and_no_lost_one(text: str) -> None:
    detokenizer = Detokenizer(decode_bytes)
    pieces = [detokenizer.add(byte) for byte in text.encode()]
    assert "".join(pieces) + detokenizer.flush() == text
    if "\ufffd" not in text:
        assert all("\ufffd" not in piece for piece in pieces)


@given(st.binary(max_size=30))
def test_bytes_that_are_no_text_come_out_as_the_decoder_shows_them(data: bytes) -> None:
    detokenizer = Detokenizer(decode_bytes)
    assert "".join(detokenizer.add(byte) for byte in data) + detokenizer.flush() == decode_bytes(data)


@st.composite
def split_texts(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """A text over few letters in pieces, and stop strings that may lie across them."""
    pieces = draw(st.lists(st.text("ab.", max_size=4), max_size=12))
    stops = draw(st.lists(st.text("ab.", min_size=1, max_size=4), min_size=1, max_size=3))
    return pieces, stops


def cut_at_first(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Reads on letter by letter; where a stop string is complete, the text ends where the earliest one begins."""
    for end in range(len(text) + 1):
        places = [text[:end].find(stop) for stop in stops if stop in text[:end]]
        if places:
            return text[: min(places)], True
    return text, False


@given(split_texts())
def test_the_cut_is_the_same_however_the_text_is_split(case: tuple[list[str], list[str]]) -> None:
    pieces, stops = case
    text = "".join(pieces)
    stop_filter = StopFilter(stops)
    shown = ""
    for piece in pieces:
        shown += stop_filter.add(piece)
        assert cut_at_first(text, stops)[0].startswith(shown), "nothing of a stop string is ever shown"
        if stop_filter.stopped:
            break
    if not stop_filter.stopped:
        shown += stop_filter.flush()
    assert (shown, stop_filter.stopped) == cut_at_first(text, stops)


@given(st.lists(st.text("ab.", max_size=4), max_size=12), st.text("ab.", min_size=1, max_size=4))
def test_one_stop_string_cuts_where_str_find_finds_it(pieces: list[str], stop: str) -> None:
    text, stop_filter, shown = "".join(pieces), StopFilter([stop]), ""
    for piece in pieces:
        shown += stop_filter.add(piece)
        if stop_filter.stopped:
            break
    if not stop_filter.stopped:
        shown += stop_filter.flush()
    place = text.find(stop)
    assert stop_filter.stopped == (place >= 0)
    assert shown == (text[:place] if place >= 0 else text)


def test_text_that_cannot_be_the_start_of_a_stop_string_is_not_held_back() -> None:
    stop_filter = StopFilter(["###"])
    assert stop_filter.add("hello") == "hello"
    assert stop_filter.add(" #") == " "
    assert stop_filter.add("# no") == "## no"


@pytest.mark.parametrize("stop", [(), ("Ω!",)])
def test_output_text_flushes_what_both_stages_hold(stop: tuple[str, ...]) -> None:
    output = OutputText(decode_bytes, stop)
    data = "Ω".encode()
    shown = "".join(output.add(byte) for byte in data)
    assert shown + output.flush() == "Ω"
    assert not output.stopped


def test_a_stop_string_may_be_completed_by_the_flush() -> None:
    output = OutputText(decode_bytes, ("\ufffd",))
    assert output.add(0xCE) == ""  # half a character
    assert output.flush() == ""
    assert output.stopped
