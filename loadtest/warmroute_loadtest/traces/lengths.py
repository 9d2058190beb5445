"""Azure's and BurstGPT's CSV: when requests came and how long they were, nothing of what they shared.

Every block is therefore a new one, and the ceiling is zero.
"""

import math
from array import array
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from warmroute_router.blocks import BLOCK_TOKENS

from .arrivals import spread
from .formats import Format, Options, Requests
from .request import TraceRequest
from .source import Json, Source, seconds, tokens


class _Columns(NamedTuple):
    name: str
    time: str
    input_tokens: str
    output_tokens: str
    clock: Callable[[str], float]
    tick: float
    """To how many seconds the file rounds its times. 0: it does not."""
    session: str = ""


class _Row(NamedTuple):
    time: float
    input_tokens: int
    output_tokens: int
    session: str | None


def _date(text: str) -> float:
    """Seconds since 1970. A time without a zone is read as UTC, or a change of clocks would tear the trace."""
    moment = datetime.fromisoformat(text)
    return moment.timestamp() if moment.tzinfo else moment.replace(tzinfo=UTC).timestamp()


def _format(columns: _Columns) -> Format:
    needed = {columns.time, columns.input_tokens, columns.output_tokens}

    def parse(entry: Json) -> _Row:
        return _Row(
            columns.clock(entry[columns.time]),
            tokens(entry[columns.input_tokens]),
            tokens(entry[columns.output_tokens]),
            str(entry[columns.session]) if entry.get(columns.session) else None,
        )

    def read(source: Source, options: Options) -> Requests:
        rows = list(_enough(source.parsed(parse), options.limit))
        arrivals = spread([row.time for row in rows], columns.tick)
        return Requests(BLOCK_TOKENS, list(_requests(rows, arrivals)))

    return Format(columns.name, lambda entry: needed <= entry.keys(), read)


def _enough(rows: Iterator[_Row], limit: int | None) -> Iterator[_Row]:
    """The first rows, and on until the times go on: the last group of equal times is whole, and its gap is known."""
    last = math.inf
    for number, row in enumerate(rows, 1):
        yield row
        if number == limit:
            last = row.time
        if row.time > last:
            return


def _requests(rows: list[_Row], arrivals: list[float]) -> Iterator[TraceRequest]:
    used = 0
    for row, arrival in zip(rows, arrivals, strict=True):
        blocks = row.input_tokens // BLOCK_TOKENS
        yield TraceRequest(
            arrival, array("Q", range(used, used + blocks)), row.input_tokens, row.output_tokens, row.session
        )
        used += blocks


AZURE = _format(_Columns("azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", _date, tick=0.0))
BURSTGPT = _format(
    _Columns("burstgpt", "Timestamp", "Request tokens", "Response tokens", seconds, tick=1.0, session="Session ID")
)
