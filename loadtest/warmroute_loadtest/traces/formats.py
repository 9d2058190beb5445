"""What a reader of one format is: how it knows its files, and how it reads them."""

from collections.abc import Callable
from typing import NamedTuple

from .request import TraceRequest
from .source import Json, Source


class Options(NamedTuple):
    """What the person who loads a trace may choose; each reader takes what concerns it."""

    limit: int | None
    """The first so many requests will do. A reader may stop there; more than that does no harm."""
    sessions_per_s: float


class Requests(NamedTuple):
    block_tokens: int
    requests: list[TraceRequest]


class Format(NamedTuple):
    name: str
    holds: Callable[[dict[str, Json]], bool]
    """Is this entry one of this format's? Asked of the first entries, by the order of FORMATS."""
    read: Callable[[Source, Options], Requests]
