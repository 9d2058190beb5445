"""One node of the prefix tree, and what is told of it elsewhere."""

from array import array
from typing import NamedTuple


class Node:
    __slots__ = ("children", "hashes", "newer", "older", "parent", "seen", "used")

    def __init__(self, hashes: "array[int]", parent: "Node | None", used: int) -> None:
        self.hashes = hashes
        self.parent = parent
        """None for the root and for what is no longer in the tree."""
        self.children: dict[int, Node] = {}
        """By the child's first hash."""
        self.seen: dict[int, float] = {}
        """For each worker, the reading of its own clock when it was last sent this node."""
        self.used = used
        """The tick of the last use by any worker."""
        self.newer = self.older = self
        """Neighbours in the ring."""

    def link(self, newer: "Node") -> None:
        """Into the ring, next to `newer` on its older side."""
        self.newer, self.older = newer, newer.older
        newer.older.newer = self
        newer.older = self

    def unlink(self) -> None:
        self.newer.older = self.older
        self.older.newer = self.newer

    def move(self, newer: "Node") -> None:
        if newer.older is not self:
            self.unlink()
            self.link(newer)


class Record(NamedTuple):
    """One node, to be sent elsewhere.

    parent: the last hash of the node above it, 0 at the root.
    hashes: uint64, its own blocks.
    seen: for each worker, the reading of its clock when it was last sent this node.
    used: when any worker was last sent it, in requests of the tree that it comes from.
    """

    parent: int
    hashes: "array[int]"
    seen: dict[int, float]
    used: int


def common_prefix(edge: "array[int]", hashes: "array[int]", start: int) -> int:
    """How many leading hashes of `edge` equal `hashes[start:]`; the first one is known to."""
    low, high = 1, min(len(edge), len(hashes) - start)
    if edge[high - 1] == hashes[start + high - 1]:
        return high
    while low < high:
        middle = (low + high) // 2
        if edge[middle] == hashes[start + middle]:
            low = middle + 1
        else:
            high = middle
    return low
