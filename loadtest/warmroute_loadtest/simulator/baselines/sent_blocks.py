"""Which workers were sent which blocks, bounded: what every approximate router remembers in some form.

A hash names its whole prefix, so a set of hashes per worker gives the longest match exactly. Blocks are touched from
the prompt's end to its start: a block is never older than one behind it, the oldest goes first, and so whatever is
left of a prompt is always its head. That is what lets a binary search find where a worker's part ends.
"""

from collections import OrderedDict
from collections.abc import Container, Sequence

from warmroute_router.policies.base import W

Sent = tuple[int, int]
"""A worker's index and a block's hash."""


class SentBlocks:
    def __init__(self) -> None:
        self._workers: dict[int, OrderedDict[int, tuple[float, int]]] = {}
        """For each worker its blocks, oldest first, each with the time and the turn of its last use."""
        self._turn = 0
        self.blocks = 0
        """Blocks of all workers; one that two workers hold counts twice."""

    def held(self, worker: int) -> int:
        return len(self._workers.get(worker, ()))

    def holders(self, block: int) -> list[int]:
        return [worker for worker, blocks in self._workers.items() if block in blocks]

    def match(self, hashes: Sequence[int], worker: int) -> int:
        """How many leading blocks of the prompt the worker was sent."""
        return leading(hashes, self._workers.get(worker, ()))

    def longest(self, hashes: Sequence[int], workers: Sequence[W]) -> tuple[int, list[W]]:
        """The longest match and all who have it: all workers where nothing matches."""
        matches = [self.match(hashes, worker.index) for worker in workers]
        most = max(matches)
        return most, [worker for worker, matched in zip(workers, matches, strict=True) if matched == most]

    def add(self, hashes: Sequence[int], worker: int, now: float) -> None:
        blocks = self._workers.setdefault(worker, OrderedDict())
        self._turn += 1
        use = (now, self._turn)
        before = len(blocks)
        for block in reversed(hashes):
            blocks[block] = use
            blocks.move_to_end(block)
        self.blocks += len(blocks) - before

    def forget(self, worker: int) -> list[Sent]:
        """Drop all that the worker was sent; returns what went."""
        blocks = self._workers.pop(worker, OrderedDict())
        self.blocks -= len(blocks)
        return [(worker, block) for block in blocks]

    def trim(self, worker: int, bound: int) -> list[Sent]:
        """Drop the worker's oldest blocks until it has at most `bound`; returns what went."""
        dropped = []
        while self.held(worker) > bound:
            dropped.append(self._pop(worker))
        return dropped

    def trim_all(self, bound: int) -> None:
        """Drop the oldest blocks of any worker until all of them together have at most `bound`."""
        while self.blocks > bound:
            self._pop(min((worker for worker, blocks in self._workers.items() if blocks), key=self._oldest_turn))

    def expire(self, before: float) -> None:
        """Drop what was last used earlier than `before`."""
        for worker, blocks in self._workers.items():
            while blocks and next(iter(blocks.values()))[0] < before:
                self._pop(worker)

    def _oldest_turn(self, worker: int) -> int:
        return next(iter(self._workers[worker].values()))[1]

    def _pop(self, worker: int) -> Sent:
        block, _ = self._workers[worker].popitem(last=False)
        self.blocks -= 1
        return worker, block


def leading(hashes: Sequence[int], blocks: Container[int]) -> int:
    """How many of the first hashes are in `blocks`, which must have all that comes before a block that it has."""
    if not hashes or hashes[0] not in blocks:
        return 0
    low, high = 1, len(hashes)
    while low < high:
        middle = (low + high + 1) // 2
        if hashes[middle - 1] in blocks:
            low = middle
        else:
            high = middle - 1
    return low
