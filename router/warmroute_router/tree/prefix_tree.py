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
from collections.abc import Iterator, Mapping, Sequence

from .node import Node, Record, common_prefix
from .path import Path, Steps

MAX_TREE_BLOCKS = 1_000_000
"""256 MB of prompts, about 64 million tokens."""
MAX_TREE_ENTRIES = MAX_TREE_BLOCKS // 4
"""90 MB at worst: a node with one worker is two entries and about 700 bytes."""

_BLOCK_BYTES, _NODE_BYTES, _READING_BYTES = 8, 520, 42
"""What each takes, as measured with tracemalloc: see `tests/router/test_tree.py`."""


class PrefixTree:
    """Block hashes per worker; the least recently used leaves go first.

    Bounded twice: by `max_blocks` in all, and by `max_entries`, one for each node and one for each worker that a
    node knows, since many short prompts make far more nodes of as many blocks.
    Workers are small integers. `find` and `insert` are linear in the number of *nodes* on the path.
    """

    def __init__(self, max_blocks: int, max_entries: int = MAX_TREE_ENTRIES) -> None:
        self._max_blocks = max_blocks
        self._max_entries = max_entries
        self._root = Node(array("Q"), None, 0)
        self.tick = 0
        """Moves with every change."""
        self.blocks = 0
        self.nodes = 0
        self.entries = 0
        self.evicted = 0
        """Blocks evicted since the start."""
        self.held: Counter[int] = Counter()
        """Blocks per worker, for each worker that holds any."""

    @property
    def size(self) -> int:
        """Bytes, to some percent."""
        readings = self.entries - self.nodes
        return _BLOCK_BYTES * self.blocks + _NODE_BYTES * self.nodes + _READING_BYTES * readings

    def find(self, hashes: "array[int]") -> Path:
        steps: Steps = []
        node, depth = self._root, 0
        while depth < len(hashes):
            child = node.children.get(hashes[depth])
            if child is None:
                break
            matched = common_prefix(child.hashes, hashes, depth)
            depth += matched
            steps.append((child, depth))
            if matched < len(child.hashes):
                break
            node = child
        return Path(hashes, steps, self.tick)

    def insert(self, path: Path, worker: int, reading: float = 0.0) -> None:
        """Note that `worker` was sent this prompt at this `reading` of its clock, and evict what is then too much.

        Where the tree has changed since `path` was found, it is found again.
        """
        steps = self._complete(path if path.tick == self.tick else self.find(path.hashes))
        self.tick += 1
        newer = self._root
        for node, _ in steps:
            if worker not in node.seen:
                self.held[worker] += len(node.hashes)
                self.entries += 1
            node.seen[worker] = reading
            node.used = self.tick
            node.move(newer)
            newer = node
        self._tidy(steps)

    def retract(self, hashes: "array[int]", worker: int, reading: float, before: Sequence[tuple[int, float]]) -> None:
        """Take back what `insert` noted at this `reading`, where nobody has used it since.

        `before`: `Path.readings` of `worker` when the prompt was inserted.
        """
        self.tick += 1
        steps = self.find(hashes).steps
        for end, _ in before:  # what was sent at different times may have become one
            self._split(steps, end)
        for node, depth in reversed(steps):
            if node.seen.get(worker) != reading:
                continue
            older = next((old for end, old in before if end >= depth), None)
            if older is not None:
                node.seen[worker] = older
            if older is not None or any(worker in child.seen for child in node.children.values()):
                continue
            del node.seen[worker]
            self.entries -= 1
            self._holds_less(worker, len(node.hashes))
            if not node.seen:
                self._detach(node)
        for node, _ in reversed(steps):
            if node.parent is not None:
                self._merge(node)

    def forget(self, worker: int) -> None:
        """Take back all that `worker` was sent, in time linear in the nodes it held and their direct children."""
        self.tick += 1
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
        nodes: list[Node] = []
        node = self._root.older
        while node is not self._root:
            nodes.append(node)
            node = node.older
        done = {self._root}
        for node in nodes:
            branch: list[Node] = []
            while node.parent is not None and node not in done:  # a split has put new ones above it
                branch.append(node)
                node = node.parent
            for each in reversed(branch):
                if each.parent is not None:
                    done.add(each)
                    parent = each.parent.hashes[-1] if each.parent.hashes else 0
                    yield Record(parent, each.hashes[:], each.seen.copy(), each.used)

    def graft(
        self, hashes: "array[int]", start: int, seen: Mapping[int, float], used: int, newer: "Node | None"
    ) -> "Node":
        """Note that these workers were sent the blocks from `start` on at these readings, unless they were later.

        Returns a place in the ring: the `newer` of the next call, if its `used` is not greater.
        """
        path = self.find(hashes)
        self._split(path.steps, start)
        steps = self._complete(path)
        self.tick += 1
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

    def _complete(self, path: Path) -> Steps:
        """Add what the tree lacks of a prompt, so far without a worker and outside the ring."""
        steps, hashes = path.steps, path.hashes
        depth = steps[-1][1] if steps else 0
        self._split(steps, depth)
        if depth < len(hashes):
            parent = steps[-1][0] if steps else self._root
            leaf = Node(hashes[depth:], parent, self.tick)
            parent.children[hashes[depth]] = leaf
            self.blocks += len(leaf.hashes)
            self.nodes += 1
            self.entries += 1
            steps.append((leaf, len(hashes)))
        return steps

    def _split(self, steps: Steps, depth: int) -> None:
        """Have a node end at `depth`: cut in two the one that goes on beyond it."""
        start = 0
        for index, (lower, end) in enumerate(steps):
            if start < depth < start + len(lower.hashes):
                assert lower.parent is not None
                upper = Node(lower.hashes[: depth - start], lower.parent, lower.used)
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

    def _tidy(self, steps: Steps) -> None:
        for node, _ in reversed(steps):
            self._merge(node)
        while self.blocks > self._max_blocks or self.entries > self._max_entries:
            self._evict()

    def _merge(self, upper: Node) -> None:
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
            self._holds_less(worker, cut)
        if cut < len(leaf.hashes):
            del leaf.hashes[-cut:]
            self.blocks -= cut
            return
        parent = leaf.parent
        assert parent is not None, "the ring has another node than the root as long as the tree has"
        self._detach(leaf)
        self._merge(parent)

    def _holds_less(self, worker: int, blocks: int) -> None:
        self.held[worker] -= blocks
        if not self.held[worker]:
            del self.held[worker]

    def _detach(self, leaf: Node) -> None:
        assert leaf.parent is not None, "the root stays"
        del leaf.parent.children[leaf.hashes[0]]
        leaf.parent = None
        leaf.unlink()
        self.blocks -= len(leaf.hashes)
        self.nodes -= 1
        self.entries -= 1 + len(leaf.seen)
