"""Which rows of a batch share which pages: from their page lists to groups, once per change of the batch.

Rows that begin alike make a trie. A group is a node of it with some of the rows below it, and saves reading the
node's pages `members - 1` times. Each row is in one group at most, so groups compete: the longer prefix of a few rows
against the shorter one of many. `groups_of` finds the groups that save most together.

If a set of nodes is opened, a row is best off in the deepest of them on its path. So a set is worth the depths of
all rows' nodes less the depths of the opened nodes. The best set comes bottom up: what a subtree is worth at most,
for each ancestor that might be the nearest open one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class SharedPrefix(NamedTuple):
    """These rows' page tables begin with these whole pages, all of them filled."""

    rows: tuple[int, ...]
    pages: tuple[int, ...]


@dataclass(slots=True)
class _Node:
    """Where rows part. Below it are its children and the rows that share no more than it with any other."""

    depth: int
    """Pages."""
    parent: int | None
    """Its place in the list of nodes, where a parent always comes before its children."""
    level: int
    """Nodes above it."""
    rows: list[int] = field(default_factory=list)
    worth: list[int] = field(default_factory=list)
    """Pages saved below it at most, if the nearest open node above it is none, the root, the next ..."""
    opened: list[bool] = field(default_factory=list)
    """Whether it is open then."""


def groups_of(page_rows: Sequence[Sequence[int]]) -> list[SharedPrefix]:
    """The groups, each of two rows or more, which save the most page reads: the sum of (members - 1) * shared pages.

    page_rows: for each row of the batch the pages that it may share, the first first; none for a row that is to stay
    alone. A page that is not yet full must not be among them, nor the one with the token that is decoded. As decoding
    appends to own pages only, the groups hold until a row comes or goes.

    Compares shared pages and the one after them, nothing further; fastest where rows are `array`s, of one type.
    """
    nodes = _trie(page_rows)
    _value(nodes)
    members = _assign(nodes)
    return [
        SharedPrefix(tuple(sorted(rows)), tuple(page_rows[rows[0]][: nodes[place].depth]))
        for place, rows in members.items()
    ]


def _trie(page_rows: Sequence[Sequence[int]]) -> list[_Node]:
    """The nodes that at least two rows go through, and either end in or part at."""
    nodes: list[_Node] = []
    waiting: list[tuple[list[int], int, int | None]] = [(list(range(len(page_rows))), 0, None)]
    while waiting:
        rows, depth, parent = waiting.pop()
        branches: dict[int, list[int]] = {}
        for row in rows:
            if depth < len(page_rows[row]):
                branches.setdefault(page_rows[row][depth], []).append(row)
            elif parent is not None:
                nodes[parent].rows.append(row)
        for branch in branches.values():
            if len(branch) > 1:
                level = 0 if parent is None else nodes[parent].level + 1
                nodes.append(_Node(_common(page_rows, branch, depth), parent, level))
                waiting.append((branch, nodes[-1].depth, len(nodes) - 1))
            elif parent is not None:
                nodes[parent].rows.append(branch[0])
    return nodes


def _common(page_rows: Sequence[Sequence[int]], rows: list[int], start: int) -> int:
    """How many pages all of these rows have in common, `start` of which are known to be."""
    first = page_rows[rows[0]]
    common = len(first)
    for row in rows[1:]:
        common = _agreement(first, page_rows[row], start, min(common, len(page_rows[row])))
    return common


def _agreement(one: Sequence[int], other: Sequence[int], start: int, stop: int) -> int:
    """The first place in start..stop where they differ. Slices are compared, in strides that double, then halve."""
    stride = 1
    while start < stop and one[start : start + stride] == other[start : start + stride]:
        start += stride
        stride *= 2
    if start >= stop:
        return stop
    stop = min(stop, start + stride)
    while start < stop:
        middle = (start + stop) // 2
        if one[start : middle + 1] == other[start : middle + 1]:
            start = middle + 1
        else:
            stop = middle
    return start


def _value(nodes: list[_Node]) -> None:
    """Fills in `worth` and `opened`, children before their parents."""
    sums = [[0] * (node.level + 2) for node in nodes]
    for place in range(len(nodes) - 1, -1, -1):
        node, total = nodes[place], sums[place]
        above: int | None = place
        for k in range(node.level + 1, 0, -1):
            assert above is not None
            total[k] += len(node.rows) * nodes[above].depth
            above = nodes[above].parent
        if_open = total.pop() - node.depth
        node.opened = [if_open > otherwise for otherwise in total]
        node.worth = [max(if_open, otherwise) for otherwise in total]
        if node.parent is not None:
            for k, worth in enumerate(node.worth):
                sums[node.parent][k] += worth


def _assign(nodes: list[_Node]) -> dict[int, list[int]]:
    """The rows of each node that the best choice opens."""
    members: dict[int, list[int]] = {}
    nearest: list[int | None] = []
    for place, node in enumerate(nodes):
        above = None if node.parent is None else nearest[node.parent]
        opens = node.opened[0 if above is None else nodes[above].level + 1]
        nearest.append(place if opens else above)
        open_node = nearest[place]
        if open_node is not None and node.rows:
            members.setdefault(open_node, []).extend(node.rows)
    return members
