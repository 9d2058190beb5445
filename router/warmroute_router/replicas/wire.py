"""How batches and snapshots look as bytes: a line of JSON, and behind it all hashes that it speaks of, in its order.

    {"sent": [["http://a:8000", 2, 600]], "loads": {"http://a:8000": [3, 1200, 600, 0.25]}}\\n<16 bytes>

Whatever comes from outside is checked here: `ValueError` is all that garbage can cause.
"""

import sys
from array import array
from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any

import orjson

from ..tree import Record
from .gossip import Batch, Sent, ToldLoad

MAX_COUNT = 1 << 50
"""Nothing that is counted here is more; keeps sums exact."""
_HASH_BYTES = 8


def encode_batch(batch: Batch) -> bytes:
    head = {
        "sent": [[sent.worker, len(sent.hashes), sent.tokens] for sent in batch.sent],
        "loads": {url: list(load) for url, load in batch.loads.items()},
    }
    return _join(head, (sent.hashes for sent in batch.sent))


def decode_batch(data: bytes) -> Batch:
    """Raises ValueError on what is none."""
    head, hashes = _split(data)
    sent: list[Sent] = []
    for item in _list(head.get("sent", [])):
        worker, length, tokens = _list(item, 3)
        sent.append(Sent(_text(worker), hashes.next(_count(length)), _count(tokens)))
    loads = {}
    for url, load in _dict(head.get("loads", {})).items():
        in_flight, waiting_tokens, oldest_tokens, age = _list(load, 4)
        loads[url] = ToldLoad(_count(in_flight), _count(waiting_tokens), _count(oldest_tokens), _number(age))
    hashes.end()
    return Batch(sent, loads)


def encode_records(records: Iterable[Record]) -> bytes:
    """Of a snapshot's chunk. Readings are ages here: see `snapshot`."""
    records = list(records)
    nodes = [[len(record.hashes), list(record.seen.items()), record.used] for record in records]
    return _join({"nodes": nodes}, (array("Q", [record.parent]) + record.hashes for record in records))


def decode_records(data: bytes) -> list[Record]:
    """Raises ValueError on what are none."""
    head, hashes = _split(data)
    records: list[Record] = []
    for item in _list(head.get("nodes")):
        length, seen, used = _list(item, 3)
        ages = {_count(worker): _number(age) for worker, age in (_list(pair, 2) for pair in _list(seen))}
        parent = hashes.next(1)[0]
        records.append(Record(parent, hashes.next(_count(length)), ages, _whole(used)))
    hashes.end()
    return records


def encode_json(head: dict[str, Any]) -> bytes:
    return _join(head, ())


def decode_json(data: bytes) -> dict[str, Any]:
    """Raises ValueError on what is no JSON object in a line of its own."""
    head, hashes = _split(data)
    hashes.end()
    return head


def _join(head: dict[str, Any], parts: Iterable["array[int]"]) -> bytes:
    return b"".join((orjson.dumps(head), b"\n", *(_little_endian(part).tobytes() for part in parts)))


def _split(data: bytes) -> tuple[dict[str, Any], "_Hashes"]:
    line, separator, rest = data.partition(b"\n")
    if not separator or len(rest) % _HASH_BYTES:
        raise ValueError("cut off")
    return _dict(orjson.loads(line)), _Hashes(rest)


def _little_endian(hashes: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        hashes = hashes[:]
        hashes.byteswap()
    return hashes


class _Hashes:
    """The hashes behind a line, to be taken piece by piece."""

    def __init__(self, data: bytes) -> None:
        self._all = array("Q")
        self._all.frombytes(data)
        self._all = _little_endian(self._all)
        self._taken = 0

    def next(self, length: int) -> "array[int]":
        end = self._taken + length
        if end > len(self._all):
            raise ValueError("fewer hashes than announced")
        piece = self._all[self._taken : end]
        self._taken = end
        return piece

    def end(self) -> None:
        if self._taken < len(self._all):
            raise ValueError("more hashes than announced")


def _list(value: Any, length: int | None = None) -> list[Any]:
    if type(value) is not list or (length is not None and len(value) != length):
        raise ValueError("expected a list")
    return value


def _dict(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise ValueError("expected an object")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("expected a string")
    return value


def _count(value: Any) -> int:
    if _whole(value) < 0:
        raise ValueError("expected a count")
    return int(value)


def _whole(value: Any) -> int:
    if type(value) is not int or abs(value) > MAX_COUNT:
        raise ValueError("expected a whole number")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not isfinite(value):
        raise ValueError("expected a number")
    return float(value)


def numbers_by_name(value: Any) -> Iterator[tuple[str, float]]:
    """The items of an object of numbers. Raises ValueError on anything else."""
    for name, number in _dict(value).items():
        yield name, _number(number)
