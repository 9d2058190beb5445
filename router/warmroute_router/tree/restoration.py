"""A tree that is told by another one, or by its own past."""

from array import array
from math import isfinite

from .node import Node, Record
from .prefix_tree import PrefixTree

MAX_DEPTH = 1024
"""Nodes above one another in a record: no conversation branches that often."""


class Restoration:
    """Grafts records into a tree, which may hold other things and go on changing meanwhile.

    A worker's reading is the later of both. The first record counts as used just now, the others as long before it
    as they were; none as later than the one before, since they come newest first. What cannot be placed, because
    its parent has not come before it, is skipped; no record can harm the tree.
    """

    def __init__(self, tree: PrefixTree) -> None:
        self._tree = tree
        self._known: dict[int, tuple[int, array[int]]] = {}
        """By last hash, what came: the parent's last hash and the hashes."""
        self._shift: int | None = None
        self._used = tree.tick
        self._newer: Node | None = None

    def add(self, record: Record) -> None:
        parent, hashes, seen, used = record
        seen = {worker: reading for worker, reading in seen.items() if isfinite(reading)}
        if not hashes or not seen or (parent and parent not in self._known):
            return
        if self._shift is None:
            self._shift = self._used - used
        self._used = min(self._used, used + self._shift)
        # The whole prefix, and not the parent's node: that may be split, merged or evicted by now.
        parts = [hashes]
        above = parent
        while above:
            above, part = self._known[above]
            parts.append(part)
            if len(parts) > MAX_DEPTH:
                return
        prefix = array("Q")
        for part in reversed(parts):
            prefix.extend(part)
        # The first to come under its name stays, so nothing can become its own parent.
        self._known.setdefault(hashes[-1], (parent, hashes))
        self._newer = self._tree.graft(prefix, len(prefix) - len(hashes), seen, self._used, self._newer)
