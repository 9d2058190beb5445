"""The prefix tree: which worker holds which prefixes, as far as the router can know.

A radix tree over the block hashes of `blocks.py`. Since a hash names its whole prefix, a run of blocks without a
branch is one node with its hashes in one array, two runs are compared by binary search, and no text is kept.
All workers share the tree: each node knows which of them were sent it, and when. A worker that holds a node
holds every node above it. A node whose only child says the same of the same workers is merged with it.

All nodes are also in a ring in the order of their last use, which the root closes. Whoever uses a node uses those
above it and puts them on its newer side, so the oldest node is always a leaf: the next one to evict.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import NamedTuple, Protocol

MAX_TREE_BLOCKS = 1_000_000
"""256 MB of prompts, about 64 million tokens."""
MAX_TREE_ENTRIES = MAX_TREE_BLOCKS // 4
"""90 MB at worst: a node with one worker is two entries and about 700 bytes."""
_MAX_DEPTH = 1024
"""Nodes above one another in a record: no conversation branches that often."""


class _Node:
    __slots__ = ("children", "hashes", "newer", "older", "parent", "seen", "used")

    def __init__(self, hashes: "array[int]", parent: "_Node | None", used: int) -> None:
        self.hashes = hashes
        self.parent = parent
        """None for the root and for what is no longer in the tree."""
        self.children: dict[int, _Node] = {}
        """By the child's first hash."""
        self.seen: dict[int, float] = {}
        """For each worker, the reading of its own clock when it was last sent this node."""
        self.used = used
        """The tick of the last use by any worker."""
        self.newer = self.older = self
        """Neighbours in the ring."""

    def link(self, newer: "_Node") -> None:
        """Into the ring, next to `newer` on its older side."""
        self.newer, self.older = newer, newer.older
        newer.older.newer = self
        newer.older = self

    def unlink(self) -> None:
        self.newer.older = self.older
        self.older.newer = self.newer

    def move(self, newer: "_Node") -> None:
        if newer.older is not self:
            self.unlink()
            self.link(newer)


_Steps = list[tuple[_Node, int]]
"""The nodes that a prompt runs through, each with the number of its blocks matched at the node's end."""


class Keeping(Protocol):
    """How long one worker keeps a block. Readings of its clock, and blocks."""

    @property
    def horizon(self) -> float:
        """As many blocks as a reading is after this one are predicted to be cached of its prefix."""

    @property
    def floor(self) -> float:
        """Of what was sent up to this reading nothing is cached any more."""

    @property
    def blocks(self) -> float:
        """The retention."""


class Cached(NamedTuple):
    """By worker, how many leading blocks of a prompt; a worker without any is left out."""

    blocks: dict[int, int]
    """Predicted in its cache."""
    doubtful: dict[int, int]
    """With those that are predicted gone, but not for long. Only of workers that have such."""


class Path:
    """What the tree held of a prompt when `PrefixTree.find` looked. Ask it before the tree changes."""

    __slots__ = ("_steps", "_tick", "hashes")

    def __init__(self, hashes: "array[int]", steps: _Steps, tick: int) -> None:
        self.hashes = hashes
        self._steps = steps
        self._tick = tick

    def cached(self, keeping: Mapping[int, Keeping]) -> Cached:
        """What each worker is predicted to hold. `keeping`: of all workers, how long each keeps a block.

        A prompt's end is evicted before its head. So of what was last sent to a worker, as many blocks count as the
        reading is past the horizon. What is gone is doubtful for one retention more.
        """
        blocks: dict[int, int] = {}
        doubtful: dict[int, int] = {}
        whole: set[int] = set()
        # From the deepest node up: who holds this one whole holds all above it.
        for node, depth in reversed(self._steps):
            if len(whole) == len(node.seen):
                continue
            for worker, reading in node.seen.items():
                if worker in whole:
                    continue
                kept = keeping[worker]
                if reading <= kept.floor:
                    continue
                left = reading - kept.horizon
                if left >= depth:
                    whole.add(worker)
                    left = depth
                else:
                    perhaps = min(left + kept.blocks, depth)
                    if perhaps >= 1 and perhaps > doubtful.get(worker, 0):
                        doubtful[worker] = int(perhaps)
                if left >= 1 and left > blocks.get(worker, 0):
                    blocks[worker] = int(left)
        return Cached(blocks, doubtful)

    def readings(self, worker: int) -> list[tuple[int, float]]:
        """What `worker` was sent of this prompt, from the root down: up to which depth, at which of its readings."""
        return [(depth, node.seen[worker]) for node, depth in self._steps if worker in node.seen]


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


class PrefixTree:
    """Block hashes per worker; the least recently used leaves go first.

    Bounded twice: by `max_blocks` in all, and by `max_entries`, one for each node and one for each worker that a
    node knows, since many short prompts make far more nodes of as many blocks.
    Workers are small integers. `find` and `insert` are linear in the number of *nodes* on the path.
    """

    def __init__(self, max_blocks: int, max_entries: int = MAX_TREE_ENTRIES) -> None:
        self._max_blocks = max_blocks
        self._max_entries = max_entries
        self._root = _Node(array("Q"), None, 0)
        self._tick = 0
        """Moves with every change."""
        self.blocks = 0
        self.nodes = 0
        self.entries = 0
        self.evicted = 0
        """Blocks evicted since the start."""
        self.held: Counter[int] = Counter()
        """Blocks per worker, for each worker that holds any."""

    def find(self, hashes: "array[int]") -> Path:
        steps: _Steps = []
        node, depth = self._root, 0
        while depth < len(hashes):
            child = node.children.get(hashes[depth])
            if child is None:
                break
            matched = _common_prefix(child.hashes, hashes, depth)
            depth += matched
            steps.append((child, depth))
            if matched < len(child.hashes):
                break
            node = child
        return Path(hashes, steps, self._tick)

    def insert(self, path: Path, worker: int, reading: float = 0.0) -> None:
        """Note that `worker` was sent this prompt at this `reading` of its clock, and evict what is then too much.

        Where the tree has changed since `path` was found, it is found again.
        """
        steps = self._complete(path if path._tick == self._tick else self.find(path.hashes))
        self._tick += 1
        newer = self._root
        for node, _ in steps:
            if worker not in node.seen:
                self.held[worker] += len(node.hashes)
                self.entries += 1
            node.seen[worker] = reading
            node.used = self._tick
            node.move(newer)
            newer = node
        self._tidy(steps)

    def forget(self, worker: int) -> None:
        """Take back all that `worker` was sent, in time linear in the nodes it held and their direct children."""
        self._tick += 1
        nodes = [self._root]
        for node in nodes:  # grows as it goes: those above first
            nodes += [child for child in node.children.values() if worker in child.seen]
        for node in reversed(nodes[1:]):
            del node.seen[worker]
            self.entries -= 1
            if node.seen:
                self._merge(node)
            else:  # and so had those below it, which are gone
                self._detach(node)
        del self.held[worker]

    def records(self) -> Iterator[Record]:
        """Every node, most recently used first and so each after its parent.

        The tree may change between two steps; a few of the nodes that do may then be missing or come twice.
        """
        nodes: list[_Node] = []
        node = self._root.older
        while node is not self._root:
            nodes.append(node)
            node = node.older
        done = {self._root}
        for node in nodes:
            branch: list[_Node] = []
            while node.parent is not None and node not in done:  # a split has put new ones above it
                branch.append(node)
                node = node.parent
            for each in reversed(branch):
                if each.parent is not None:
                    done.add(each)
                    parent = each.parent.hashes[-1] if each.parent.hashes else 0
                    yield Record(parent, each.hashes[:], each.seen.copy(), each.used)

    def restore(self, records: Iterable[Record]) -> None:
        """Graft the records of another tree, or of an earlier one, into this one; see `Restoration`."""
        restoration = Restoration(self)
        for record in records:
            restoration.add(record)

    def _graft(
        self, hashes: "array[int]", start: int, seen: Mapping[int, float], used: int, newer: "_Node | None"
    ) -> "_Node":
        """Note that these workers were sent the blocks from `start` on at these readings, unless they were later.

        Returns a place in the ring: the `newer` of the next call, if its `used` is not greater.
        """
        path = self.find(hashes)
        self._split(path._steps, start)
        steps = self._complete(path)
        self._tick += 1
        newer = newer or self._root
        while newer.parent is None and newer is not self._root:  # it has left the tree
            newer = newer.newer
        while newer.older.used >= used and newer.older is not self._root:
            newer = newer.older
        for node, depth in steps:
            for worker, reading in seen.items():
                if worker not in node.seen:
                    self.held[worker] += len(node.hashes)
                    self.entries += 1
                    node.seen[worker] = reading
                elif depth > start:
                    node.seen[worker] = max(node.seen[worker], reading)
            if node.used < used or node.newer is node:
                node.used = used
                node.move(newer)
                newer = node
        self._tidy(steps)
        return newer

    def _complete(self, path: Path) -> _Steps:
        """Add what the tree lacks of a prompt, so far without a worker and outside the ring."""
        steps, hashes = path._steps, path.hashes
        depth = steps[-1][1] if steps else 0
        self._split(steps, depth)
        if depth < len(hashes):
            parent = steps[-1][0] if steps else self._root
            leaf = _Node(hashes[depth:], parent, self._tick)
            parent.children[hashes[depth]] = leaf
            self.blocks += len(leaf.hashes)
            self.nodes += 1
            self.entries += 1
            steps.append((leaf, len(hashes)))
        return steps

    def _split(self, steps: _Steps, depth: int) -> None:
        """Have a node end at `depth`: cut in two the one that goes on beyond it."""
        start = 0
        for index, (lower, end) in enumerate(steps):
            if start < depth < start + len(lower.hashes):
                assert lower.parent is not None
                upper = _Node(lower.hashes[: depth - start], lower.parent, lower.used)
                upper.seen = lower.seen.copy()
                upper.link(lower.newer)
                lower.parent.children[lower.hashes[0]] = upper
                lower.hashes = lower.hashes[depth - start :]
                lower.parent = upper
                upper.children[lower.hashes[0]] = lower
                self.nodes += 1
                self.entries += 1 + len(upper.seen)
                steps[index : index + 1] = [(upper, depth), (lower, end)] if end > depth else [(upper, depth)]
                return
            start = end

    def _tidy(self, steps: _Steps) -> None:
        for node, _ in reversed(steps):
            self._merge(node)
        while self.blocks > self._max_blocks or self.entries > self._max_entries:
            self._evict()

    def _merge(self, upper: _Node) -> None:
        """Make one node of this one and its only child, if both say the same."""
        if len(upper.children) != 1 or upper.parent is None:
            return
        (lower,) = upper.children.values()
        if lower.seen != upper.seen:
            return
        upper.parent.children[upper.hashes[0]] = lower
        lower.parent, upper.parent = upper.parent, None
        upper.hashes.extend(lower.hashes)
        lower.hashes = upper.hashes
        lower.used = upper.used
        lower.move(upper)
        upper.unlink()
        self.nodes -= 1
        self.entries -= 1 + len(upper.seen)

    def _evict(self) -> None:
        """Cut what is too much off the end of the leaf that was used longest ago."""
        leaf = self._root.newer
        cut = len(leaf.hashes)
        if self.entries <= self._max_entries:
            cut = min(cut, self.blocks - self._max_blocks)
        self.evicted += cut
        for worker in leaf.seen:
            self.held[worker] -= cut
            if not self.held[worker]:
                del self.held[worker]
        if cut < len(leaf.hashes):
            del leaf.hashes[-cut:]
            self.blocks -= cut
            return
        parent = leaf.parent
        assert parent is not None, "the ring has another node than the root as long as the tree has"
        self._detach(leaf)
        self._merge(parent)

    def _detach(self, leaf: _Node) -> None:
        assert leaf.parent is not None, "the root stays"
        del leaf.parent.children[leaf.hashes[0]]
        leaf.parent = None
        leaf.unlink()
        self.blocks -= len(leaf.hashes)
        self.nodes -= 1
        self.entries -= 1 + len(leaf.seen)


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
        self._used = tree._tick
        self._newer: _Node | None = None

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
            if len(parts) > _MAX_DEPTH:
                return
        prefix = array("Q")
        for part in reversed(parts):
            prefix.extend(part)
        # The first to come under its name stays, so nothing can become its own parent.
        self._known.setdefault(hashes[-1], (parent, hashes))
        self._newer = self._tree._graft(prefix, len(prefix) - len(hashes), seen, self._used, self._newer)


def _common_prefix(edge: "array[int]", hashes: "array[int]", start: int) -> int:
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
