"""The prefix tree: which worker holds which prefixes, as far as the router can know.

A radix tree over the block hashes of `blocks.py`. Since a hash names its whole prefix, a run of blocks without a
branch is one node with its hashes in one array, two runs are compared by binary search, and no text is kept.
All workers share the tree: each node knows which of them were sent it, and when. A worker that holds a node
holds every node above it.
"""

import heapq
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf

MAX_TREE_BLOCKS = 1_000_000
"""256 MB of prompts, about 64 million tokens."""

_NO_HORIZONS: Mapping[int, float] = {}


class _Node:
    __slots__ = ("children", "hashes", "parent", "queued", "seen", "used")

    def __init__(self, hashes: "array[int]", parent: "_Node | None", used: int) -> None:
        self.hashes = hashes
        self.parent = parent
        self.children: dict[int, _Node] = {}
        """By the child's first hash."""
        self.seen: dict[int, float] = {}
        """For each worker, the reading of its own clock when it was last sent this node."""
        self.used = used
        """The tick of the last touch by any worker."""
        self.queued = False
        """Whether the eviction queue has an entry for this node."""


class PrefixTree:
    """Block hashes per worker, at most `max_blocks` in all; the least recently used leaves go first.

    Workers are small integers. `match` and `insert` are linear in the number of *nodes* on the path.
    """

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._root = _Node(array("Q"), None, 0)
        self._tick = 0
        self._queue: list[tuple[int, int, _Node]] = []
        self._queued = 0
        self.blocks = 0
        self.evicted = 0
        """Blocks evicted since the start."""
        self.held: Counter[int] = Counter()
        """Blocks per worker, for each worker that holds any."""

    def match(self, hashes: Sequence[int], horizons: Mapping[int, float] = _NO_HORIZONS) -> dict[int, int]:
        """How many leading blocks each worker holds; a worker that holds none is left out.

        What was last sent to a worker at or before its horizon, a reading of its clock, does not count any more.
        """
        depths: dict[int, int] = {}
        # From the deepest node up: what holds this one holds all above it, so the first depth seen counts.
        for node, depth in reversed(self._walk(hashes)):
            for worker, reading in node.seen.items():
                if worker not in depths and reading > horizons.get(worker, -inf):
                    depths[worker] = depth
            if len(depths) == len(self.held):
                break
        return depths

    def path(self, hashes: Sequence[int], worker: int) -> list[tuple[int, float]]:
        """What `worker` was sent of this prompt, from the root down: up to which depth, at which of its readings."""
        return [(depth, node.seen[worker]) for node, depth in self._walk(hashes) if worker in node.seen]

    def insert(self, hashes: "array[int]", worker: int, reading: float = 0.0) -> None:
        """Note that `worker` was sent this prompt at this `reading` of its clock, and evict what is then too much."""
        self._tick += 1
        path = self._walk(hashes)
        node, depth = path[-1] if path else (self._root, 0)
        if path:
            start = path[-2][1] if len(path) > 1 else 0
            if depth - start < len(node.hashes):
                node = self._split(node, depth - start)
                path[-1] = (node, depth)
        if depth < len(hashes):
            leaf = _Node(hashes[depth:], node, self._tick)
            node.children[hashes[depth]] = leaf
            self.blocks += len(leaf.hashes)
            self._enqueue(leaf)
            path.append((leaf, len(hashes)))
        for node, _ in path:
            if worker not in node.seen:
                self.held[worker] += len(node.hashes)
            node.seen[worker] = reading
            node.used = self._tick
        while self.blocks > self._max_blocks:
            self._evict_oldest_leaf(self.blocks - self._max_blocks)

    def forget(self, worker: int) -> None:
        """Take back all that `worker` was sent, in time linear in what it held."""
        stack = [self._root]
        while stack:
            node = stack.pop()
            for child in list(node.children.values()):
                if child.seen.pop(worker, None) is None:
                    continue
                stack.append(child)
                if not child.seen:
                    self._detach(child)
        del self.held[worker]

    def _walk(self, hashes: Sequence[int]) -> list[tuple[_Node, int]]:
        """The nodes that `hashes` runs through, each with the number of blocks matched at its end.

        Only the last of them may be matched in part.
        """
        path: list[tuple[_Node, int]] = []
        node, depth = self._root, 0
        while depth < len(hashes):
            child = node.children.get(hashes[depth])
            if child is None:
                break
            matched = _common_prefix(child.hashes, hashes, depth)
            depth += matched
            path.append((child, depth))
            if matched < len(child.hashes):
                break
            node = child
        return path

    def _split(self, node: _Node, length: int) -> _Node:
        """Cut a node in two after `length` blocks; returns the upper one."""
        assert node.parent is not None, "the root is never split"
        upper = _Node(node.hashes[:length], node.parent, node.used)
        upper.seen = node.seen.copy()
        node.parent.children[node.hashes[0]] = upper
        node.hashes = node.hashes[length:]
        node.parent = upper
        upper.children[node.hashes[0]] = node
        return upper

    def _detach(self, node: _Node) -> None:
        parent = node.parent
        assert parent is not None, "the root stays"
        del parent.children[node.hashes[0]]
        node.parent = None
        self.blocks -= len(node.hashes)
        if not parent.children and parent.parent is not None:
            self._enqueue(parent)

    def _enqueue(self, leaf: _Node) -> None:
        if not leaf.queued:
            leaf.queued = True
            self._queued += 1
            heapq.heappush(self._queue, (leaf.used, self._queued, leaf))

    def _evict_oldest_leaf(self, excess: int) -> None:
        """Cut up to `excess` blocks off the end of the leaf that was touched longest ago.

        Touching a leaf does not move it in the queue: its entry is checked, and put right, when it comes up.
        """
        used, _, leaf = heapq.heappop(self._queue)
        leaf.queued = False
        if leaf.parent is None or leaf.children:
            return
        if leaf.used > used:
            self._enqueue(leaf)
            return
        cut = min(excess, len(leaf.hashes))
        self.evicted += cut
        for worker in leaf.seen:
            self.held[worker] -= cut
            if not self.held[worker]:
                del self.held[worker]
        if cut == len(leaf.hashes):
            self._detach(leaf)
            return
        del leaf.hashes[-cut:]
        self.blocks -= cut
        self._enqueue(leaf)


def _common_prefix(edge: "array[int]", hashes: Sequence[int], start: int) -> int:
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
