"""Alibaba's Bailian (Qwen) traces: blocks of 16 tokens, seconds, and turns that name the turn before them."""

from array import array
from typing import NamedTuple

from .formats import Format, Options, Requests
from .request import TraceRequest
from .source import Json, Source, full_blocks, seconds, tokens

BLOCK_TOKENS = 16
_NO_PARENT = -1


class _Row(NamedTuple):
    timestamp: float
    block_ids: "array[int]"
    input_tokens: int
    output_tokens: int
    chat: int
    parent: int


def _row(entry: Json) -> _Row:
    input_tokens = tokens(entry["input_length"])
    return _Row(
        seconds(entry["timestamp"]),
        full_blocks(array("Q", entry["hash_ids"]), input_tokens, BLOCK_TOKENS),
        input_tokens,
        tokens(entry["output_length"]),
        int(entry["chat_id"]),
        int(entry["parent_chat_id"]),
    )


def _read(source: Source, options: Options) -> Requests:
    rows = list(source.parsed(_row))
    start = min((row.timestamp for row in rows), default=0.0)
    # A turn whose parent is missing (the trace was cut there) starts a session of its own.
    first_turn: dict[int, int] = {}
    requests = []
    for row in sorted(rows, key=lambda row: row.timestamp):
        root = row.chat if row.parent == _NO_PARENT else first_turn.get(row.parent, row.chat)
        first_turn[row.chat] = root
        requests.append(
            TraceRequest(row.timestamp - start, row.block_ids, row.input_tokens, row.output_tokens, str(root))
        )
    return Requests(BLOCK_TOKENS, requests)


def _holds(entry: dict[str, Json]) -> bool:
    return {"chat_id", "parent_chat_id", "hash_ids", "input_length"} <= entry.keys()


BAILIAN = Format("bailian", _holds, _read)
