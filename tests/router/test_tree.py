"""The prefix tree against a model that keeps every prefix of every prompt in plain sets."""

from array import array
from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st
from warmroute_router.tree import PrefixTree, _Node

WORKERS = range(3)
# Few symbols and short prompts, so that prefixes meet, split edges and end inside them.
prompts = st.lists(st.integers(0, 2), max_size=8)
steps = st.lists(
    st.tuples(st.sampled_from(["insert", "insert", "insert", "forget"]), prompts, st.sampled_from(WORKERS))
)


def chained(prompt: list[int]) -> "array[int]":
    """Hashes that name their whole prefix, as those of real blocks do."""
    return array("Q", [hash(tuple(prompt[: end + 1])) & (2**64 - 1) for end in range(len(prompt))])


class Naive:
    def __init__(self) -> None:
        self.held: dict[int, set[tuple[int, ...]]] = defaultdict(set)

    def insert(self, prompt: list[int], worker: int) -> None:
        self.held[worker] |= {tuple(prompt[: end + 1]) for end in range(len(prompt))}

    def match(self, prompt: list[int]) -> dict[int, int]:
        depths = {
            worker: max((end + 1 for end in range(len(prompt)) if tuple(prompt[: end + 1]) in prefixes), default=0)
            for worker, prefixes in self.held.items()
        }
        return {worker: depth for worker, depth in depths.items() if depth}

    def blocks(self) -> int:
        return len(set().union(*self.held.values()))


def nodes_below(node: _Node) -> list[_Node]:
    return [each for child in node.children.values() for each in (child, *nodes_below(child))]


def assert_consistent(tree: PrefixTree, cap: int) -> None:
    nodes = nodes_below(tree._root)
    assert tree.blocks == sum(len(node.hashes) for node in nodes) <= cap
    held = {worker: sum(len(node.hashes) for node in nodes if worker in node.seen) for worker in WORKERS}
    assert {worker: count for worker, count in held.items() if count} == dict(tree.held)
    queued = [entry[2] for entry in tree._queue]
    assert len(queued) == len(set(map(id, queued))), "one entry for a node at most"
    for node in nodes:
        assert node.hashes
        assert node.seen
        assert node.used == max(node.seen.values()) or node.used > max(node.seen.values())
        for child in node.children.values():
            assert child.parent is node
            assert child.seen.keys() <= node.seen.keys(), "who holds a node holds those above it"
        if not node.children:
            assert node.queued, "every leaf can be evicted"
            assert any(node is each for each in queued)


@settings(max_examples=400)
@given(steps, prompts)
def test_unbounded_it_equals_the_naive_model(history: list[tuple[str, list[int], int]], probe: list[int]) -> None:
    tree, naive = PrefixTree(10_000), Naive()
    for step, prompt, worker in history:
        if step == "insert":
            tree.insert(chained(prompt), worker)
            naive.insert(prompt, worker)
        else:
            tree.forget(worker)
            naive.held.pop(worker, None)
        assert tree.match(chained(probe)) == naive.match(probe)
        assert tree.match(chained(prompt)) == naive.match(prompt)
        assert tree.blocks == naive.blocks()
        assert_consistent(tree, 10_000)
    for worker in WORKERS:
        tree.forget(worker)
    assert (tree.blocks, dict(tree.held), tree._root.children) == (0, {}, {})


@settings(max_examples=400)
@given(steps, st.integers(1, 12))
def test_bounded_it_never_holds_more_and_never_claims_what_was_not_sent(
    history: list[tuple[str, list[int], int]], cap: int
) -> None:
    tree, naive = PrefixTree(cap), Naive()
    for step, prompt, worker in history:
        if step == "insert":
            tree.insert(chained(prompt), worker)
            naive.insert(prompt, worker)
            kept = tree.match(chained(prompt)).get(worker, 0)
            assert kept == min(len(prompt), cap), "the newest prompt goes last"
        else:
            tree.forget(worker)
            naive.held.pop(worker, None)
        truth = naive.match(prompt)
        assert all(depth <= truth[known] for known, depth in tree.match(chained(prompt)).items())
        assert_consistent(tree, cap)


def test_the_least_recently_used_leaf_goes_first_and_only_as_much_of_it_as_is_needed() -> None:
    tree = PrefixTree(max_blocks=6)
    old, young, new = chained([0, 0]), chained([1, 1, 1, 1]), chained([2])
    tree.insert(old, 0)
    tree.insert(young, 1)
    tree.insert(old, 0)  # touched again: now `young` is the older one
    tree.insert(new, 2)
    assert tree.match(old) == {0: 2}
    assert tree.match(young) == {1: 3}
    assert tree.match(new) == {2: 1}
    assert tree.evicted == 1


def test_a_shared_prefix_outlives_its_branches() -> None:
    tree = PrefixTree(max_blocks=5)
    tree.insert(chained([0, 0, 0, 1]), 0)
    tree.insert(chained([0, 0, 0, 2]), 0)
    tree.insert(chained([0, 0, 0, 3]), 1)
    assert tree.blocks == 5
    assert tree.match(chained([0, 0, 0, 1])) == {0: 3, 1: 3}
    assert tree.match(chained([0, 0, 0, 2])) == {0: 4, 1: 3}
