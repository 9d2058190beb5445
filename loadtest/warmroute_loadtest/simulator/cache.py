"""The KV memory of one simulated worker: whole blocks, shared by prefix; of the unused ones the oldest go first."""

from collections import OrderedDict
from collections.abc import Sequence


class BlockCache:
    """At most `capacity` blocks. A block is pinned by running requests, or idle and kept for reuse, or private.

    Private blocks hold what nobody can share: a prompt's last partial block and the answer. Ids name whole
    prefixes, so whoever pins a block pins all before it, and blocks go idle from a prompt's end to its start:
    the oldest idle block never has an idle or pinned one behind it, and what is left of a prompt is its head.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = capacity
        self._pins: dict[int, int] = {}
        """Running requests per block."""
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Oldest first; as in vLLM, a block's age counts from the end of the last request that had it."""

    @property
    def used(self) -> int:
        return self.capacity - self._free

    @property
    def pinned(self) -> int:
        return len(self._pins)

    @property
    def in_use(self) -> int:
        """By running requests, private blocks too: all but the free and the idle ones."""
        return self.used - len(self._idle)

    def holds(self, block: int) -> bool:
        return block in self._pins or block in self._idle

    def cached(self, block_ids: Sequence[int]) -> int:
        """How many leading blocks are there."""
        low, high = 0, len(block_ids)
        while low < high:
            middle = (low + high) // 2
            if self.holds(block_ids[middle]):
                low = middle + 1
            else:
                high = middle
        return low

    def admit(self, block_ids: Sequence[int], private: int) -> int | None:
        """Pin a prompt's blocks, take what is missing, and say how many were cached; None where it does not fit."""
        cached = self.cached(block_ids)
        missing = len(block_ids) - cached + private
        reused_idle = sum(block in self._idle for block in block_ids[:cached])
        if missing > self._free + len(self._idle) - reused_idle:
            return None
        pins, idle = self._pins, self._idle
        for block in block_ids[:cached]:
            idle.pop(block, None)
            pins[block] = pins.get(block, 0) + 1
        while self._free < missing:
            idle.popitem(last=False)
            self._free += 1
        for block in block_ids[cached:]:
            pins[block] = 1
        self._free -= missing
        return cached

    def release(self, block_ids: Sequence[int], private: int) -> None:
        """The request is over: its private blocks are free, the others idle unless somebody else has them too."""
        pins, idle = self._pins, self._idle
        for block in reversed(block_ids):
            left = pins[block] - 1
            if left:
                pins[block] = left
            else:
                del pins[block]
                idle[block] = None
        self._free += private

    def forget(self, block_ids: Sequence[int]) -> None:
        """These idle blocks are not there after all."""
        for block in block_ids:
            del self._idle[block]
        self._free += len(block_ids)
