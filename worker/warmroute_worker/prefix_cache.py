"""The prefix cache: a radix tree from token ids to the pool slots that hold their K and V.

The tree owns its slots. A request that uses a prefix locks the node at its end, which protects the whole path; what
nobody locks may be evicted, least recently used leaves first. All lengths are multiples of the page size. With page
size 1 every single token can be shared.
"""

import heapq
from array import array
from typing import NamedTuple

import torch
from torch import Tensor

from .kv_pool import KVPool

_NO_SLOTS = torch.empty(0, dtype=torch.int64)


class Node:
    __slots__ = ("children", "key", "locks", "parent", "queued", "salt", "slots", "used")

    def __init__(self, key: "array[int]", slots: Tensor, parent: "Node | None", salt: bytes, used: int) -> None:
        self.key = key
        self.slots = slots
        self.parent = parent
        self.salt = salt
        """Only of the root's children: two salts never share."""
        self.children: dict[bytes, Node] = {}
        self.locks = 0
        self.used = used
        self.queued = False
        """Whether the eviction queue has an entry for this node."""


class Match(NamedTuple):
    slots: Tensor
    """int64 [matched tokens]"""
    node: Node


class PrefixCache:
    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._page_size = pool.page_size
        self._root = Node(array("q"), _NO_SLOTS, None, b"", 0)
        self._tick = 0
        self._queue: list[tuple[int, int, Node]] = []
        self._queued = 0
        self.evictable = 0
        """Tokens that nobody has locked."""
        self.protected = 0
        """Tokens that somebody has locked."""

    def match_length(self, tokens: "array[int]", salt: str = "") -> int:
        """How many leading tokens are cached, without touching anything."""
        return sum(length for _, length in self._walk(tokens, salt))

    def match(self, tokens: "array[int]", salt: str = "") -> Match:
        """The longest cached prefix. A node that it ends in is split there, so that just the prefix can be locked."""
        self._tick += 1
        node, slots = self._root, [_NO_SLOTS]
        for node, length in self._walk(tokens, salt):
            if length < len(node.key):
                node = self._split(node, length)
            node.used = self._tick
            slots.append(node.slots)
        return Match(torch.cat(slots), node)

    def insert(self, tokens: "array[int]", slots: Tensor, salt: str = "") -> tuple[int, Match]:
        """Give `slots` of `tokens` to the tree, but for those of the prefix that it already has.

        Returns the length of that prefix, whose slots remain the caller's, and the tree's own slots for all of it.
        """
        assert len(tokens) == len(slots), "one slot for each token"
        assert len(tokens) % self._page_size == 0, "whole pages only"
        found, node = self.match(tokens, salt)
        present = len(found)
        if present < len(tokens):
            namespace = b"" if node.parent else salt.encode()
            leaf = Node(tokens[present:], slots[present:].clone(), node, namespace, self._tick)
            node.children[self._child_key(leaf.key, namespace)] = leaf
            self.evictable += len(leaf.key)
            self._enqueue_leaf(leaf)
            node = leaf
            found = torch.cat((found, leaf.slots))
        return present, Match(found, node)

    def lock(self, node: Node) -> None:
        """Protect a node and all above it from eviction, until as many `unlock`s as `lock`s came."""
        while node.parent is not None:
            if not node.locks:
                self.evictable -= len(node.key)
                self.protected += len(node.key)
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        while node.parent is not None:
            assert node.locks > 0, "unlocked more often than locked"
            node.locks -= 1
            if not node.locks:
                self.evictable += len(node.key)
                self.protected -= len(node.key)
                self._enqueue_leaf(node)
            node = node.parent

    def evict(self, tokens: int) -> None:
        """Free `tokens` slots, or all that nobody locks where that is less. Cuts no more than it must."""
        shortfall = -(-tokens // self._page_size) * self._page_size
        while shortfall > 0 and self._queue:
            used, _, leaf = heapq.heappop(self._queue)
            leaf.queued = False
            if leaf.parent is None or leaf.children or leaf.locks:
                continue  # put back in the queue when it becomes an unlocked leaf again
            if leaf.used > used:  # touched since it was queued
                self._enqueue_leaf(leaf)
                continue
            shortfall -= self._cut(leaf, min(shortfall, len(leaf.key)))

    def flush(self) -> None:
        """Forget all that is not locked."""
        self.evict(self.evictable)

    def _walk(self, tokens: "array[int]", salt: str) -> list[tuple[Node, int]]:
        """The nodes along `tokens`, each with how much of it matches; only the last may match in part."""
        path: list[tuple[Node, int]] = []
        node, depth, namespace = self._root, 0, salt.encode()
        while len(tokens) - depth >= self._page_size:
            child = node.children.get(self._child_key(tokens[depth : depth + self._page_size], namespace))
            if child is None:
                break
            length = common_prefix(child.key, tokens, depth) // self._page_size * self._page_size
            path.append((child, length))
            if length < len(child.key):
                break
            node, depth, namespace = child, depth + length, b""
        return path

    def _child_key(self, key: "array[int]", namespace: bytes) -> bytes:
        """The first page, behind the salt where there is one: of fixed length, so that no two can be confused."""
        return namespace + key[: self._page_size].tobytes()

    def _split(self, node: Node, length: int) -> Node:
        """Cut a node in two after `length` tokens; returns the upper one."""
        parent = node.parent
        assert parent is not None, "the root is never split"
        upper = Node(node.key[:length], node.slots[:length], parent, node.salt, node.used)
        upper.locks = node.locks
        parent.children[self._child_key(upper.key, node.salt)] = upper
        node.key, node.slots, node.parent, node.salt = node.key[length:], node.slots[length:], upper, b""
        upper.children[self._child_key(node.key, b"")] = node
        return upper

    def _enqueue_leaf(self, node: Node) -> None:
        if not node.queued and not node.children and not node.locks:
            node.queued = True
            self._queued += 1
            heapq.heappush(self._queue, (node.used, self._queued, node))

    def _cut(self, leaf: Node, length: int) -> int:
        """Free the last `length` tokens of a leaf."""
        kept = len(leaf.key) - length
        self._pool.free(leaf.slots[kept:])
        self.evictable -= length
        if kept:
            leaf.key, leaf.slots = leaf.key[:kept], leaf.slots[:kept].clone()
            self._enqueue_leaf(leaf)
            return length
        parent = leaf.parent
        assert parent is not None, "the root is no leaf"
        del parent.children[self._child_key(leaf.key, leaf.salt)]
        leaf.parent = None
        if parent.parent is not None:
            self._enqueue_leaf(parent)
        return length


def common_prefix(edge: "array[int]", tokens: "array[int]", start: int = 0) -> int:
    """How many leading tokens of `edge` equal those of `tokens[start:]`: compared by halves, in C."""
    low, high = 0, min(len(edge), len(tokens) - start)
    if edge[:high] == tokens[start : start + high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if edge[low:middle] == tokens[start + low : start + middle]:
            low = middle
        else:
            high = middle
    return low
