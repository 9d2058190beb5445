"""All that a router knows of its workers' caches, for one that has just started: a peer, or itself after a restart.

    head: version, block size; of each worker how full its cache is, its retention, its load of late; tokens per byte
    records of the tree, most recently used first, a few at a time

Ages go out instead of readings, since every router has its own clocks.
"""

from collections.abc import Iterator
from itertools import islice
from math import inf

from ..blocks import BLOCK_BYTES
from ..calibration import TIME_TO_LIVE
from ..fleet import State, Worker
from ..routing import Routing
from ..tree import MAX_TREE_BLOCKS, Record, Restoration
from .wire import decode_json, decode_records, encode_json, encode_records, numbers_by_name

VERSION = 1
_RECORDS = 64
"""Of one chunk: some 0.3 ms of work, so that whoever makes chunks between requests does not hold them up."""
_BLOCKS = 16 * 1024
"""Of one chunk, about."""
_MAX_RUN = 128 * 1024
"""Of one record: of a longer run only the head is told."""
_MAX_BLOCKS = 2 * MAX_TREE_BLOCKS
"""Of one snapshot. A tree holds half of that, and changes while it is told."""


def snapshot(routing: Routing) -> Iterator[bytes]:
    """Chunks. The routing may go on between two of them."""
    workers = {worker.index: worker for worker in routing.fleet.workers}
    yield _head(routing)
    records = routing.tree.records()
    while chunk := list(_some(records)):
        yield encode_records(_with_ages(record, workers) for record in chunk)


def _some(records: Iterator[Record]) -> Iterator[Record]:
    blocks = 0
    for record in islice(records, _RECORDS):
        yield record
        blocks += len(record.hashes)
        if blocks >= _BLOCKS:
            return


def _head(routing: Routing) -> bytes:
    # Infinity is no JSON: what is not known is left out.
    workers = [
        {
            "url": worker.url,
            "filled": worker.retention.filled,
            "recent": routing.recent_of(worker),
            **({"retention": worker.retention.blocks} if worker.retention.blocks < inf else {}),
            **({"started": worker.started} if worker.started is not None else {}),
        }
        for worker in routing.fleet.workers
    ]
    return encode_json(
        {
            "version": VERSION,
            "block_bytes": BLOCK_BYTES,
            "workers": workers,
            "tokens_per_byte": routing.token_ratio.known,
        }
    )


def _with_ages(record: Record, workers: dict[int, Worker]) -> Record:
    ages = {
        index: workers[index].retention.clock - reading for index, reading in record.seen.items() if index in workers
    }
    return record._replace(seen=ages, hashes=record.hashes[:_MAX_RUN])


class Loading:
    """Takes the chunks of a snapshot, in order. Whatever it took before a bad one stays."""

    def __init__(self, routing: Routing, age: float = 0.0) -> None:
        """`age`: seconds since the snapshot was taken."""
        self._routing = routing
        self._age = age
        self._restoration = Restoration(routing.tree)
        self._blocks = 0
        self._workers: dict[int, Worker] | None = None
        """By the number that they have in the snapshot, those that are known here too."""

    def feed(self, chunk: bytes) -> None:
        """Raises ValueError on garbage, and on the snapshot of another version."""
        if self._workers is None:
            self._workers = self._read_head(chunk)
            return
        records = decode_records(chunk)
        self._blocks += sum(len(record.hashes) for record in records)
        if len(records) > _RECORDS or self._blocks > _MAX_BLOCKS:
            raise ValueError("a snapshot that is larger than any can be")
        for record in records:
            seen = {
                self._workers[number].index: self._workers[number].retention.clock - age
                for number, age in record.seen.items()
                if number in self._workers and self._workers[number].state is not State.GONE
            }
            self._restoration.add(record._replace(seen=seen))

    def _read_head(self, chunk: bytes) -> dict[int, Worker]:
        head = decode_json(chunk)
        if head.get("version") != VERSION or head.get("block_bytes") != BLOCK_BYTES:
            raise ValueError("the snapshot of another version")
        told = head.get("workers")
        if not isinstance(told, list) or not all(isinstance(item, dict) for item in told):
            raise ValueError("no list of workers")
        for model, ratio in numbers_by_name(head.get("tokens_per_byte", {})):
            self._routing.token_ratio.adopt(model, ratio)
        own = {worker.url: worker for worker in self._routing.fleet.workers}
        workers: dict[int, Worker] = {}
        for number, item in enumerate(told):
            worker = own.get(str(item.pop("url", None)))
            figures = dict(numbers_by_name(item))
            started = figures.get("started")
            # Of an engine that does not say since when it runs, nobody knows what has become of it in a long time.
            unsure = started is None and self._age > TIME_TO_LIVE
            if worker is None or unsure or _restarted(worker, started):
                continue
            workers[number] = worker
            worker.retention.adopt(figures.get("filled", 0.0), figures.get("retention", inf))
            self._routing.adopt(worker, figures.get("recent", 0.0))
            worker.started = worker.started or started
        return workers


def _restarted(worker: Worker, started: float | None) -> bool:
    """Whether its engine is known to be another one than the snapshot speaks of."""
    return worker.started is not None and started is not None and worker.started != started
