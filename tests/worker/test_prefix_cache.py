"""The radix cache and its pool against a model that keeps every prefix in a plain set."""

from array import array
from collections import Counter, defaultdict
from typing import cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from warmroute_worker.kv_pool import KVPool, PageAllocator
from warmroute_worker.prefix_cache import Match, Node, PrefixCache, common_prefix

Tokens = tuple[int, ...]

# Few symbols, so that prompts meet, split edges and end inside them.
token_lists = st.lists(st.integers(0, 2), max_size=14).map(tuple)
salts = st.sampled_from(["", "", "a", "b"])


def stretched(tokens: Tokens, page_size: int) -> Tokens:
    """Long enough for a few pages of 16, which three quarters of the lists would not fill."""
    return tuple(token for token in tokens for _ in range(6)) if page_size == 16 else tokens


def make(slots: int, page_size: int) -> PrefixCache:
    return PrefixCache(KVPool(1, 1, 1, num_pages=slots // page_size, page_size=page_size))


def put(cache: PrefixCache, tokens: Tokens, salt: str = "") -> Match | None:
    """What an engine does with a prompt: adopt what is there, compute the rest, share all full pages.

    None where there is no room.
    """
    pool = cache._pool
    full = len(tokens) // pool.page_size * pool.page_size
    key = array("q", tokens[:full])
    found = cache.match(key, salt)
    cache.lock(found.node)
    missing = full - len(found.slots)
    cache.evict(missing - pool.free_slots)
    if missing > pool.free_slots:
        cache.unlock(found.node)
        return None
    present, match = cache.insert(key, torch.cat((found.slots, pool.allocate(missing))), salt)
    assert present == len(found.slots)
    cache.unlock(found.node)
    return match


def nodes_below(node: Node) -> list[Node]:
    return [each for child in node.children.values() for each in (child, *nodes_below(child))]


def assert_consistent(cache: PrefixCache) -> None:
    pool = cache._pool
    nodes = nodes_below(cache._root)
    assert sum(len(node.key) for node in nodes if node.locks) == cache.protected
    assert sum(len(node.key) for node in nodes if not node.locks) == cache.evictable
    assert pool.free_slots + cache.evictable + cache.protected == pool.num_slots
    slots = [slot for node in nodes for slot in node.slots.tolist()]
    assert len(slots) == len(set(slots)), "no slot belongs to two nodes"
    for node in nodes:
        assert len(node.key) == len(node.slots) > 0
        assert len(node.key) % pool.page_size == 0
        assert node.locks >= max((child.locks for child in node.children.values()), default=0)
        if not node.children and not node.locks:
            assert node.queued, "every unlocked leaf can be evicted"


class Naive:
    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._prefixes: dict[str, set[Tokens]] = defaultdict(set)

    def put(self, tokens: Tokens, salt: str) -> None:
        self._prefixes[salt] |= {tokens[:end] for end in range(len(tokens) + 1) if end % self._page_size == 0}

    def match_length(self, tokens: Tokens, salt: str) -> int:
        return max((end for end in range(len(tokens) + 1) if tokens[:end] in self._prefixes[salt]), default=0)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@settings(max_examples=200)
@given(st.lists(st.tuples(token_lists, salts)), token_lists, salts)
def test_unbounded_it_matches_what_the_naive_model_matches(
    page_size: int, history: list[tuple[Tokens, str]], probe: Tokens, salt: str
) -> None:
    cache, naive = make(4096, page_size), Naive(page_size)
    probe = stretched(probe, page_size)
    for short, own_salt in history:
        tokens = stretched(short, page_size)
        put(cache, tokens, own_salt)
        naive.put(tokens, own_salt)
        assert_consistent(cache)
    wanted = naive.match_length(probe, salt)
    assert cache.match_length(array("q", probe), salt) == wanted
    assert len(cache.match(array("q", probe), salt).slots) == wanted
    assert_consistent(cache)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@settings(max_examples=200)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), token_lists, salts),
            st.tuples(st.just("lock"), token_lists, salts),
            st.tuples(st.just("unlock"), st.integers(0, 100), st.just("")),
            st.tuples(st.just("evict"), st.integers(0, 30), st.just("")),
        ),
        max_size=40,
    )
)
def test_under_pressure_nothing_leaks_and_what_is_locked_stays(
    page_size: int, steps: list[tuple[str, object, str]]
) -> None:
    cache = make(24 if page_size < 16 else 160, page_size)
    locked: list[tuple[Tokens, str, Match]] = []
    for step, argument, salt in steps:
        if step == "put":
            put(cache, stretched(cast(Tokens, argument), page_size), salt)
        elif step == "lock":
            tokens = stretched(cast(Tokens, argument), page_size)
            match = cache.match(array("q", tokens), salt)
            cache.lock(match.node)
            locked.append((tokens[: len(match.slots)], salt, match))
        elif step == "unlock" and locked:
            cache.unlock(locked.pop(argument % len(locked))[2].node)  # type: ignore[operator]
        elif step == "evict":
            before, evictable = cache._pool.free_slots, cache.evictable
            cache.evict(argument)  # type: ignore[arg-type]
            pages = -(-argument // page_size) * page_size  # type: ignore[operator]
            assert cache._pool.free_slots - before == min(pages, evictable), "the shortfall, and no more"
        for tokens, own_salt, match in locked:
            assert torch.equal(cache.match(array("q", tokens), own_salt).slots, match.slots)
        assert_consistent(cache)
    for _, _, match in locked:
        cache.unlock(match.node)
    assert cache.protected == 0
    cache.flush()
    assert cache._pool.free_slots == cache._pool.num_slots
    assert not cache._root.children


def test_matched_slots_are_those_that_were_put() -> None:
    cache = make(64, 1)
    first = cache._pool.allocate(4)
    cache.insert(array("q", [1, 2, 3, 4]), first)
    second = cache._pool.allocate(3)
    present, match = cache.insert(array("q", [1, 2, 9]), second)
    assert present == 2
    assert match.slots.tolist() == [*first[:2].tolist(), second[2].item()]
    assert cache.match(array("q", [1, 2, 3, 4, 5])).slots.tolist() == first.tolist()


def test_the_least_recently_used_leaf_goes_first() -> None:
    cache = make(12, 1)
    for tokens in ((1, 1, 1), (2, 2, 2), (3, 3, 3)):
        put(cache, tokens)
    cache.match(array("q", (1, 1, 1)))
    cache.evict(5)
    lengths = [cache.match_length(array("q", (number,) * 3)) for number in (1, 2, 3)]
    assert lengths == [3, 0, 1], "all of the oldest, and of the next one only what is still missing"


def test_a_shared_prefix_goes_after_its_branches() -> None:
    cache = make(16, 1)
    put(cache, (7, 7, 7, 1))
    put(cache, (7, 7, 7, 2))
    cache.evict(2)
    assert cache.match_length(array("q", (7, 7, 7, 1))) == 3
    cache.evict(3)
    assert cache._pool.free_slots == 16


def test_salts_share_nothing() -> None:
    cache = make(32, 1)
    put(cache, (1, 2, 3), "a")
    assert cache.match_length(array("q", (1, 2, 3)), "a") == 3
    assert cache.match_length(array("q", (1, 2, 3)), "b") == 0
    assert cache.match_length(array("q", (1, 2, 3))) == 0


@given(st.lists(st.integers(0, 1), max_size=20), st.lists(st.integers(0, 1), max_size=20), st.integers(0, 3))
def test_common_prefix_counts_what_a_loop_counts(edge: list[int], tokens: list[int], start: int) -> None:
    start = min(start, len(tokens))
    wanted = 0
    for left, right in zip(edge, tokens[start:], strict=False):
        if left != right:
            break
        wanted += 1
    assert common_prefix(array("q", edge), array("q", tokens), start) == wanted


@given(st.lists(st.integers(-5, 5), max_size=40))
def test_the_allocator_gives_every_page_once(steps: list[int]) -> None:
    """A positive step allocates so many pages, a negative one frees that many of the oldest."""
    allocator = PageAllocator(12)
    held: list[int] = []
    for step in steps:
        if step >= 0:
            held += allocator.allocate(min(step, allocator.free_pages)).tolist()
        else:
            allocator.free(torch.tensor(held[:-step], dtype=torch.int64))
            held = held[-step:]
        assert max(Counter(held).values(), default=1) == 1
        assert allocator.free_pages + len(held) == 12


def test_a_page_freed_twice_is_a_bug_that_is_seen() -> None:
    allocator = PageAllocator(4)
    pages = allocator.allocate(2)
    with pytest.raises(AssertionError, match="given twice"):
        allocator.free(torch.cat((pages[:1], pages[:1])))
    allocator = PageAllocator(4)
    pages = allocator.allocate(2)
    allocator.free(pages)
    with pytest.raises(AssertionError, match="freed twice"):
        allocator.free(pages)
