"""Mooncake's JSON lines, and what AIPerf and Dynamo have added to them.

`timestamp` (ms), `input_length`, `output_length`, `hash_ids` of 512 tokens. Added: `session_id`, `delay` (ms after
the session's turn before), `text_input` in place of the ids, the spellings in _ALIASES. Each line is a whole prompt.

The stamps are rounded down (in the conversation trace to about 3 s, ten requests each), so that all equal stamps are
laid evenly over the gap to the next one: see `arrivals.spread`. A line without a stamp comes `delay` after the answer
to its session's line before; without one before it, it starts a session, and such sessions are a Poisson process.
"""

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from .arrivals import next_turn, poisson, spread
from .formats import Format, Options, Requests
from .request import TraceRequest
from .source import Json, Source, full_blocks, seconds, tokens
from .text import text_prompt

BLOCK_TOKENS = 512
_ALIASES = {
    "created_time": "timestamp",
    "delay_ms": "delay",
    "input_tokens": "input_length",
    "output_tokens": "output_length",
    "input_text": "text_input",
}


class _Row(NamedTuple):
    timestamp: float | None
    delay: float
    block_ids: "array[int]"
    input_tokens: int
    output_tokens: int
    session: str | None


def _canonical(entry: dict[str, Json]) -> dict[str, Json]:
    return {_ALIASES.get(field, field): value for field, value in entry.items() if value is not None}


def _row(entry: Json) -> _Row:
    if not isinstance(entry, dict):
        raise TypeError("not an object")
    fields = _canonical(entry)
    block_ids, input_tokens = _prompt(fields)
    return _Row(
        seconds(fields["timestamp"]) / 1000 if "timestamp" in fields else None,
        max(0.0, seconds(fields.get("delay", 0)) / 1000),
        block_ids,
        input_tokens,
        tokens(fields["output_length"]),
        str(fields["session_id"]) if "session_id" in fields else None,
    )


def _prompt(fields: dict[str, Json]) -> "tuple[array[int], int]":
    if "hash_ids" not in fields and "text_input" in fields:
        prompt = text_prompt("/v1/completions", {"prompt": fields["text_input"]}, BLOCK_TOKENS)
        return prompt.block_ids, prompt.tokens
    input_tokens = tokens(fields["input_length"])
    return full_blocks(array("Q", fields["hash_ids"]), input_tokens, BLOCK_TOKENS), input_tokens


def _arrivals(rows: list[_Row], sessions_per_s: float) -> Iterator[float]:
    stamped = iter(spread([row.timestamp for row in rows if row.timestamp is not None]))
    starts = poisson(sessions_per_s)
    following: dict[str, float] = {}
    for row in rows:
        if row.timestamp is not None:
            arrival = next(stamped)
        elif row.session is not None and row.session in following:
            arrival = following[row.session] + row.delay
        else:
            arrival = next(starts)
        if row.session is not None:
            following[row.session] = next_turn(arrival, row.output_tokens, think_s=0.0)
        yield arrival


def _read(source: Source, options: Options) -> Requests:
    rows = list(source.parsed(_row))
    requests = [
        TraceRequest(arrival, row.block_ids, row.input_tokens, row.output_tokens, row.session)
        for row, arrival in zip(rows, _arrivals(rows, options.sessions_per_s), strict=True)
    ]
    return Requests(BLOCK_TOKENS, requests)


def _holds(entry: dict[str, Json]) -> bool:
    fields = _canonical(entry).keys()
    return "output_length" in fields and ({"hash_ids", "input_length"} <= fields or "text_input" in fields)


MOONCAKE = Format("mooncake", _holds, _read)
