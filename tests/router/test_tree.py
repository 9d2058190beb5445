"""The prefix tree against a model that keeps every prefix of every prompt in plain dictionaries."""

import tracemalloc
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from math import inf, nan
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.tree import FOREVER, Keeping, sent_blocks
from warmroute_router.tree import PrefixTree, Record, Restoration
from warmroute_router.tree.node import Node

WORKERS = range(3)
BIG = 10_000
# Few symbols and short prompts, so that prefixes meet, split edges and end inside them.
prompts = st.lists(st.integers(0, 2), max_size=8)
workers = st.sampled_from(WORKERS)
inserts = st.lists(st.tuples(prompts, workers))
quarters = st.integers(-12, 20).map(lambda number: number / 4)  # exact in any order of adding
Step = tuple[str, list[int], int]
steps = st.lists(st.tuples(st.sampled_from(["insert", "insert", "insert", "forget"]), prompts, workers))


def chained(prompt: Sequence[int]) -> "array[int]":
    """Hashes that name their whole prefix, as those of real blocks do."""
    return array("Q", [hash(tuple(prompt[: end + 1])) & (2**64 - 1) for end in range(len(prompt))])


def insert(tree: PrefixTree, prompt: Sequence[int], worker: int, reading: float = 0.0) -> None:
    tree.insert(tree.find(chained(prompt)), worker, reading)


def restore(tree: PrefixTree, records: Iterable[Record]) -> None:
    restoration = Restoration(tree)
    for record in records:
        restoration.add(record)


def cached(tree: PrefixTree, prompt: Sequence[int]) -> dict[int, int]:
    return sent_blocks(tree, chained(prompt))


class Naive:
    """For each prefix that was ever sent: when to each worker, and when to any."""

    def __init__(self) -> None:
        self.seen: dict[int, dict[int, float]] = {}
        self.used: dict[int, int] = {}
        self.parent: dict[int, int] = {}
        self._tick = 0

    def insert(self, prompt: list[int], worker: int, reading: float = 0.0) -> None:
        self._tick += 1
        above = 0
        for block in chained(prompt):
            self.seen.setdefault(block, {})[worker] = reading
            self.used[block] = self._tick
            self.parent[block] = above
            above = block

    def forget(self, worker: int) -> None:
        for block in list(self.seen):
            self.seen[block].pop(worker, None)
            if not self.seen[block]:
                del self.seen[block]

    def cached(self, prompt: list[int], keeping: dict[int, Keeping]) -> tuple[dict[int, int], dict[int, int]]:
        """Block by block: the predicted ones, and those with the doubtful ones."""
        both: tuple[dict[int, int], dict[int, int]] = ({}, {})
        for depth, block in enumerate(chained(prompt), 1):
            for worker, reading in self.seen.get(block, {}).items():
                horizon, floor, retention = keeping[worker]
                for depths, limit in zip(both, (horizon, horizon - retention), strict=True):
                    left = int(min(reading - limit, depth))
                    if left > depths.get(worker, 0) and reading > floor:
                        depths[worker] = left
        return both

    def evict(self, cap: int) -> None:
        """Block by block: of those with nothing below them, the one used longest ago."""
        while len(self.seen) > cap:
            inner = {self.parent[block] for block in self.seen}
            del self.seen[
                min((block for block in self.seen if block not in inner), key=lambda block: self.used[block])
            ]


def nodes_below(node: Node) -> Iterator[Node]:
    for child in node.children.values():
        yield child
        yield from nodes_below(child)


def blocks_of(tree: PrefixTree) -> dict[int, dict[int, float]]:
    """What the tree knows of each block, in the terms of the naive model."""
    return {block: node.seen for node in nodes_below(tree._root) for block in node.hashes}


def assert_consistent(tree: PrefixTree, max_blocks: int = BIG, max_entries: int = BIG) -> None:
    nodes = list(nodes_below(tree._root))
    assert tree.blocks == sum(len(node.hashes) for node in nodes) <= max_blocks
    assert tree.nodes == len(nodes)
    assert tree.entries == sum(1 + len(node.seen) for node in nodes) <= max_entries
    held = {worker: sum(len(node.hashes) for node in nodes if worker in node.seen) for worker in tree.held}
    assert all(held.values())
    assert held == dict(tree.held)
    assert {worker for node in nodes for worker in node.seen} == held.keys()
    for node in nodes:
        assert node.hashes
        assert node.seen
        for first, child in node.children.items():
            assert child.parent is node
            assert child.hashes[0] == first
            assert child.seen.keys() <= node.seen.keys(), "who holds a node holds those above it"
        if len(node.children) == 1:
            assert child.seen != node.seen, "two nodes that say the same are one"
    assert_ring(tree, nodes)


def assert_ring(tree: PrefixTree, nodes: list[Node]) -> None:
    ring: list[Node] = []
    node = tree._root.older
    while node is not tree._root:
        assert node.older.newer is node
        ring.append(node)
        node = node.older
    assert set(ring) == set(nodes)
    assert len(ring) == len(nodes)
    assert [node.used for node in ring] == sorted((node.used for node in ring), reverse=True)
    assert all(node.used <= tree.tick for node in ring)
    place = {node: index for index, node in enumerate([tree._root, *ring])}
    assert all(node.parent is not None and place[node.parent] < place[node] for node in ring)


def put_back(number: int) -> float:
    """A clock that is corrected now and then, so that what is deeper may have the later reading."""
    return number * 7 % 5


def filled(history: list[Step], clock: Callable[[int], float] = float) -> tuple[PrefixTree, Naive]:
    tree, naive = PrefixTree(BIG), Naive()
    for number, (step, prompt, worker) in enumerate(history):
        reading = clock(number)
        if step == "insert":
            insert(tree, prompt, worker, reading)
            naive.insert(prompt, worker, reading)
        else:
            tree.forget(worker)
            naive.forget(worker)
    return tree, naive


@settings(max_examples=400)
@given(
    st.lists(
        st.tuples(st.sampled_from(["insert", "insert", "insert", "forget"]), prompts, workers, st.integers(0, 5))
    ),
    prompts,
    st.tuples(*(st.builds(Keeping, quarters, quarters, quarters.map(abs)) for _ in WORKERS)),
)
def test_unbounded_it_equals_the_naive_model(
    history: list[tuple[str, list[int], int, int]],
    probe: list[int],
    limits: tuple[Keeping, ...],
) -> None:
    tree, naive, keeping = PrefixTree(BIG), Naive(), dict(enumerate(limits))
    for step, prompt, worker, reading in history:
        if step == "insert":
            insert(tree, prompt, worker, reading)
            naive.insert(prompt, worker, reading)
        else:
            tree.forget(worker)
            naive.forget(worker)
        for each in (prompt, probe):
            path = tree.find(chained(each))
            blocks, doubtful = path.cached(keeping)
            assert (blocks, blocks | doubtful) == naive.cached(each, keeping)
            readings = [reading for depth, reading in path.readings(worker)]
            depths = [0, *(depth for depth, reading in path.readings(worker))]
            runs = [upper - lower for lower, upper in pairwise(depths)]
            spread = [reading for run, reading in zip(runs, readings, strict=True) for _ in range(run)]
            known = [naive.seen[block] for block in chained(each) if block in naive.seen]
            assert spread == [seen[worker] for seen in known if worker in seen]
        assert blocks_of(tree) == naive.seen
        assert_consistent(tree)
    for worker in WORKERS:
        tree.forget(worker)
    assert (tree.blocks, tree.nodes, tree.entries, dict(tree.held), tree._root.children) == (0, 0, 0, {}, {})
    assert tree._root.older is tree._root


@settings(max_examples=400)
@given(st.lists(st.tuples(st.sampled_from(["insert", "insert", "forget"]), prompts, workers)), prompts, workers)
@example([("insert", [0, 0], 0), ("insert", [0], 0)], [0, 0], 0)  # two nodes of different times become one
def test_what_is_retracted_at_once_has_never_been(history: list[Step], prompt: list[int], worker: int) -> None:
    tree, naive = filled(history)
    path = tree.find(chained(prompt))
    before = path.readings(worker)
    tree.insert(path, worker, 1000.0)
    tree.retract(chained(prompt), worker, 1000.0, before)
    assert blocks_of(tree) == naive.seen
    assert_consistent(tree)


@settings(max_examples=400)
@given(st.lists(st.tuples(prompts, workers), min_size=1), st.data())
def test_what_is_retracted_late_takes_nothing_of_others_with_it(
    history: list[tuple[list[int], int]], data: st.DataObject
) -> None:
    tree = PrefixTree(BIG)
    notes: list[tuple[list[int], int, float, list[tuple[int, float]]]] = []
    for number, (prompt, worker) in enumerate(history):
        path = tree.find(chained(prompt))
        notes.append((prompt, worker, float(number), path.readings(worker)))
        tree.insert(path, worker, float(number))
    taken = data.draw(st.integers(0, len(notes) - 1))
    prompt, worker, reading, before = notes[taken]
    tree.retract(chained(prompt), worker, reading, before)
    assert_consistent(tree)
    for index, (other, holder, _, _) in enumerate(notes):
        if index != taken:
            assert cached(tree, other).get(holder, 0) == len(other)


@settings(max_examples=400)
@given(inserts, st.integers(1, 12))
def test_what_was_used_longest_ago_is_evicted_from_its_end(history: list[tuple[list[int], int]], cap: int) -> None:
    tree, naive, evicted = PrefixTree(cap), Naive(), 0
    for reading, (prompt, worker) in enumerate(history):
        insert(tree, prompt, worker, reading)
        naive.insert(prompt, worker, reading)
        evicted += max(len(naive.seen) - cap, 0)
        naive.evict(cap)
        assert blocks_of(tree) == naive.seen
        assert tree.evicted == evicted
        assert_consistent(tree, cap)


@settings(max_examples=400)
@given(steps, st.integers(1, 12), st.integers(2, 12))
def test_bounded_it_never_holds_more_and_never_claims_what_was_not_sent(
    history: list[Step], max_blocks: int, max_entries: int
) -> None:
    tree, naive = PrefixTree(max_blocks, max_entries), Naive()
    for step, prompt, worker in history:
        if step == "insert":
            insert(tree, prompt, worker)
            naive.insert(prompt, worker)
            kept = cached(tree, prompt).get(worker, 0)
            assert kept == min(len(prompt), max_blocks) or tree.blocks == kept, "the newest prompt goes last"
        else:
            tree.forget(worker)
            naive.forget(worker)
        truth = naive.cached(prompt, dict.fromkeys(WORKERS, FOREVER))[0]
        assert all(depth <= truth[known] for known, depth in cached(tree, prompt).items())
        assert_consistent(tree, max_blocks, max_entries)


@given(steps, prompts, prompts, workers)
def test_a_path_from_before_a_change_is_found_again(
    history: list[Step], prompt: list[int], other: list[int], worker: int
) -> None:
    tree, naive = filled(history)
    path = tree.find(chained(prompt))
    insert(tree, other, 0, 1000)
    naive.insert(other, 0, 1000)
    tree.forget(1)
    naive.forget(1)
    for reading in (1001, 1002):
        tree.insert(path, worker, reading)
        naive.insert(prompt, worker, reading)
        assert blocks_of(tree) == naive.seen
        assert_consistent(tree)


def test_the_least_recently_used_leaf_goes_first_and_only_as_much_of_it_as_is_needed() -> None:
    tree = PrefixTree(max_blocks=6)
    old, young, new = [0, 0], [1, 1, 1, 1], [2]
    insert(tree, old, 0)
    insert(tree, young, 1)
    insert(tree, old, 0)  # touched again: now `young` is the older one
    insert(tree, new, 2)
    assert cached(tree, old) == {0: 2}
    assert cached(tree, young) == {1: 3}
    assert cached(tree, new) == {2: 1}
    assert tree.evicted == 1


def test_a_shared_prefix_outlives_its_branches() -> None:
    tree = PrefixTree(max_blocks=5)
    insert(tree, [0, 0, 0, 1], 0)
    insert(tree, [0, 0, 0, 2], 0)
    insert(tree, [0, 0, 0, 3], 1)
    assert tree.blocks == 5
    assert cached(tree, [0, 0, 0, 1]) == {0: 3, 1: 3}
    assert cached(tree, [0, 0, 0, 2]) == {0: 4, 1: 3}


def test_a_chat_that_grows_is_one_node() -> None:
    tree = PrefixTree(BIG)
    for turn in range(1, 20):
        insert(tree, [0] * turn, 0, turn)
        assert tree.nodes == 1
    insert(tree, [0] * 10 + [1], 0, 20)
    assert tree.nodes == 3


def test_short_prompts_are_bounded_by_the_nodes_they_make() -> None:
    tree = PrefixTree(max_blocks=BIG, max_entries=10)
    for number in range(20):
        insert(tree, [number], 0)
    assert (tree.blocks, tree.nodes, tree.entries, tree.evicted) == (5, 5, 10, 15)
    assert cached(tree, [15]) == {0: 1}
    for worker in range(9):
        insert(tree, [19], worker)
    assert cached(tree, [19]).keys() == set(range(9))
    assert (tree.nodes, tree.entries) == (1, 10)
    insert(tree, [19], 9)  # alone over the bound
    assert (tree.nodes, tree.entries) == (0, 0)


@given(steps)
def test_records_make_the_same_tree(history: list[Step]) -> None:
    tree, naive = filled(history, put_back)
    copy = PrefixTree(BIG)
    restore(copy, tree.records())
    assert blocks_of(copy) == naive.seen
    assert (copy.nodes, copy.entries) == (tree.nodes, tree.entries)
    assert_consistent(copy)


@given(inserts)
def test_records_keep_the_order_and_the_distances_of_use(history: list[tuple[list[int], int]]) -> None:
    tree, _ = filled([("insert", prompt, worker) for prompt, worker in history])
    copy = PrefixTree(BIG)
    for _ in range(20):
        insert(copy, [], 0)
    restore(copy, tree.records())
    records, copied = list(tree.records()), list(copy.records())
    assert [record[:3] for record in copied] == [record[:3] for record in records]
    assert [record.used for record in copied] == [record.used - records[0].used + 20 for record in records]


@given(steps, steps)
def test_restoring_into_a_tree_keeps_the_later_of_both(history: list[Step], own: list[Step]) -> None:
    other, naive_other = filled(history, put_back)
    tree, naive = filled(own, put_back)
    restore(tree, other.records())
    for block, seen in naive_other.seen.items():
        mine = naive.seen.setdefault(block, {})
        for worker, reading in seen.items():
            mine[worker] = max(mine.get(worker, -inf), reading)
    assert blocks_of(tree) == naive.seen
    assert_consistent(tree)


@given(steps, steps, st.integers(1, 12), st.integers(2, 12))
def test_restoring_keeps_the_bounds(history: list[Step], own: list[Step], max_blocks: int, max_entries: int) -> None:
    other, _ = filled(history)
    tree = PrefixTree(max_blocks, max_entries)
    for _, prompt, worker in own:
        insert(tree, prompt, worker)
    restore(tree, other.records())
    assert_consistent(tree, max_blocks, max_entries)


def test_the_newest_record_is_as_recent_as_now_and_the_oldest_make_room() -> None:
    other, tree = PrefixTree(BIG), PrefixTree(5)
    for number in range(10):
        insert(other, [5, number], 0)
    for number in range(4):
        insert(tree, [number], 1)
    restore(tree, other.records())
    # Its prompts and the tree's own, one by one from the newest.
    assert [cached(tree, [5, number]) for number in (9, 8, 7)] == [{0: 2}, {0: 2}, {0: 1}]
    assert [cached(tree, [number]) for number in (3, 2, 1)] == [{1: 1}, {1: 1}, {}]
    assert tree.blocks == 5


@given(steps, steps, st.integers(0, 6), st.integers(1, 12))
def test_both_ends_may_change_while_records_are_on_their_way(
    history: list[Step], meanwhile: list[Step], batch: int, cap: int
) -> None:
    other, _ = filled(history)
    sent = {0, *(block for _, prompt, _ in history + meanwhile for block in chained(prompt))}
    tree, small = PrefixTree(BIG), PrefixTree(cap)
    restorations = [Restoration(tree), Restoration(small)]
    records = other.records()
    for number, (step, prompt, worker) in enumerate(meanwhile):
        for record in islice(records, batch):
            assert {record.parent, *record.hashes} <= sent
            for restoration in restorations:
                restoration.add(record)
        for each in (other, tree, small):
            if step == "insert":
                insert(each, prompt, worker, len(history) + number)
            else:
                each.forget(worker)
        assert_consistent(tree)
        assert_consistent(small, cap)
    if not any(step == "forget" for step, _, _ in meanwhile):
        for record in records:
            restorations[0].add(record)
        assert blocks_of(tree).keys() == blocks_of(other).keys()
        assert_consistent(tree)


names = st.integers(0, 6)
garbage = st.builds(
    Record,
    names,
    st.lists(names, max_size=4).map(lambda hashes: array("Q", hashes)),
    st.dictionaries(st.integers(-1, 3), st.sampled_from([0.0, 1.0, -1.0, inf, -inf, nan]), max_size=3),
    st.integers(-(2**70), 2**70) | st.integers(-3, 3),
)


@settings(max_examples=400)
@given(st.lists(garbage), st.lists(st.lists(names, max_size=5)), st.integers(1, 12), st.integers(2, 12))
def test_no_record_can_harm_the_tree(
    records: list[Record], own: list[list[int]], max_blocks: int, max_entries: int
) -> None:
    tree = PrefixTree(max_blocks, max_entries)
    for number, hashes in enumerate(own):
        tree.insert(tree.find(array("Q", hashes)), 0, number)
    restoration = Restoration(tree)
    for record in records:
        restoration.add(record)
        assert_consistent(tree, max_blocks, max_entries)
    for worker in list(tree.held):
        tree.forget(worker)
    assert (tree.blocks, tree.nodes, tree.entries, dict(tree.held)) == (0, 0, 0, {})


@pytest.mark.parametrize(
    "record",
    [
        Record(7, chained([1]), {0: 1.0}, 1),  # its parent has not come
        Record(chained([1])[0], chained([1]), {0: 1.0}, 1),  # its own parent
        Record(0, chained([]), {0: 1.0}, 1),
        Record(0, chained([1]), {}, 1),
        Record(0, chained([1]), {0: nan, 1: inf}, 1),
    ],
)
def test_a_record_that_cannot_be_placed_is_skipped(record: Record) -> None:
    tree = PrefixTree(BIG)
    restore(tree, [record])
    assert tree.blocks == 0


@pytest.mark.parametrize(
    ("prompts", "shared", "own", "workers"),
    [(4000, 4, 4, 1), (4000, 4, 4, 3), (1000, 20, 100, 1), (200, 20, 1000, 1), (4000, 1, 1, 1), (2000, 4, 4, 8)],
)
def test_its_size_is_about_what_it_takes(prompts: int, shared: int, own: int, workers: int) -> None:
    """By tracemalloc. Short prompts and long ones, few readings of each and many."""
    rng = Random(1)

    def blocks(count: int) -> "array[int]":
        return array("Q", [rng.getrandbits(64) for _ in range(count)])

    heads = [blocks(shared) for _ in range(prompts // 8)]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tree = PrefixTree(10_000_000, 10_000_000)
    for number in range(prompts):
        hashes = rng.choice(heads) + blocks(own)
        for _ in range(workers):
            tree.insert(tree.find(hashes), rng.randrange(64), float(number))
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert 0.85 < tree.size / taken < 1.15
