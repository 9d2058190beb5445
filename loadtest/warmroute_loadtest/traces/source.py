"""The file of a trace as a stream of entries: JSON lines, one JSON document, or CSV; plain, gzip or xz."""

import csv
import gzip
import lzma
import math
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from itertools import islice
from typing import Any, TypeAlias, TypeVar

import orjson

from .request import TraceError

Json: TypeAlias = Any
"""One entry as it was decoded; whoever reads it raises one of MALFORMED on a shape that it does not know."""
T = TypeVar("T")

MALFORMED = (ArithmeticError, KeyError, TypeError, ValueError, csv.Error)
TOLERATED = 0.01
"""The share of malformed entries up to which a trace is still worth reading."""
_PEEK = 10

# Larger than any prompt and any log: what is beyond is a broken number, and would cost memory without end.
_MOST_TOKENS = 1 << 24
_MOST_SECONDS = 1e12


@contextmanager
def open_trace(path: str) -> Iterator[BufferedIOBase]:
    """By the first bytes and not by the name: a download often has lost its suffix."""
    with open(path, "rb") as stream:
        magic = stream.read(6)
        stream.seek(0)
        if magic.startswith(b"\x1f\x8b"):
            with gzip.GzipFile(fileobj=stream) as plain:
                yield plain
        elif magic == b"\xfd7zXZ\x00":
            with lzma.LZMAFile(stream) as unpacked:
                yield unpacked
        else:
            yield stream


class Source:
    """Hands out the entries one by one, and counts those that nobody could read."""

    def __init__(self, name: str, stream: BufferedIOBase) -> None:
        self.name = name
        self.skipped = 0
        self._read = 0
        self._first_bad = ""
        self._stream = stream
        self._unit, self._units = "line", "lines"
        self._document: list[Json] | None = None
        self._decode: Callable[[Any], Json] = orjson.loads
        self._header_lines = 0
        self._recognise_shape()

    def parsed(self, parse: Callable[[Json], T]) -> Iterator[T]:
        """What `parse` makes of each entry; where it raises one of MALFORMED the entry is left out and counted."""
        for number, raw in self._raw():
            self._read += 1
            try:
                value = parse(self._decode(raw))
            except MALFORMED as error:
                self.skipped += 1
                self._first_bad = self._first_bad or f"{self._unit} {number} is malformed ({_reason(error)})"
                continue
            yield value

    def first(self) -> Iterator[Json]:
        """The first few entries that can be decoded, to recognise the format by."""
        for _, raw in islice(self._raw(), _PEEK):
            try:
                yield self._decode(raw)
            except MALFORMED:
                continue

    def check(self) -> None:
        """After reading: is what was left out little enough to believe the rest?"""
        if self.skipped > TOLERATED * self._read:
            raise TraceError(f"{self.name}: {self._first_bad}; so are {self.skipped} of {self._read} {self._units}")

    def _recognise_shape(self) -> None:
        _, first = next(self._lines(), (0, b""))
        if first[:1] == b"[" or (first[:1] == b"{" and not _is_json(first)):
            self._stream.seek(0)
            self._read_document(self._stream.read())
        elif names := csv_header(first):
            self._decode = lambda line: dict(zip(names, _csv_fields(line), strict=True))
            self._header_lines = 1

    def _read_document(self, data: bytes) -> None:
        try:
            document = orjson.loads(data)
        except orjson.JSONDecodeError:  # then it is JSON lines whose first line is broken
            return
        self._document = document if isinstance(document, list) else [document]
        self._unit, self._units = "entry", "entries"
        self._decode = lambda entry: entry

    def _raw(self) -> Iterator[tuple[int, Any]]:
        if self._document is not None:
            return iter(enumerate(self._document, 1))
        return islice(self._lines(), self._header_lines, None)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        self._stream.seek(0)
        for number, line in enumerate(self._stream, 1):
            text = line.removeprefix(b"\xef\xbb\xbf").strip()
            if text:
                yield number, text


def csv_header(line: bytes) -> list[str]:
    """The names in a CSV file's first line; none if it is no such line: all CSV traces have a time stamp."""
    try:
        names = [name.strip() for name in _csv_fields(line)]
    except MALFORMED:
        return []
    return names if any(name.lower() == "timestamp" for name in names) else []


def _csv_fields(line: bytes) -> list[str]:
    return next(csv.reader((line.decode(),)), [])


def _is_json(data: bytes) -> bool:
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True


def _reason(error: Exception) -> str:
    """One line, whatever the file holds."""
    text = f"no {error.args[0]}" if isinstance(error, KeyError) else str(error) or type(error).__name__
    return " ".join(text.split())[:120]


def tokens(value: Json) -> int:
    number = _number(value)
    if not 0 <= number <= _MOST_TOKENS or number != int(number):
        raise ValueError(f"{value!r} is no number of tokens")
    return int(number)


def seconds(value: Json) -> float:
    number = _number(value)
    if not abs(number) <= _MOST_SECONDS:  # nan is not either
        raise ValueError(f"{value!r} is no time")
    return number


def _number(value: Json) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f"{value!r} is no number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is no number")
    return number


def full_blocks(ids: "array[int]", input_tokens: int, block_tokens: int) -> "array[int]":
    """The ids of the full blocks; ValueError if there are more ids than the prompt has room for."""
    if len(ids) > -(-input_tokens // block_tokens):
        raise ValueError(f"{len(ids)} blocks of {block_tokens} tokens in a prompt of {input_tokens}")
    return ids[: input_tokens // block_tokens]
