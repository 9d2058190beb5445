"""Calibration against an LRU cache whose capacity it is not told."""

import random
from array import array
from collections import OrderedDict
from math import inf

import pytest
from support.fleet import fleet_of
from warmroute_router.blocks import PromptBlocks
from warmroute_router.calibration import Retention, TokenRatio
from warmroute_router.fleet import State
from warmroute_router.policies import POLICIES
from warmroute_router.routing import Routing
from warmroute_router.tree import PrefixTree
from warmroute_router.usage import Usage

BLOCK = 64


class LruCache:
    """A worker's block cache."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def serve(self, hashes: "array[int]") -> int:
        """How many leading blocks were cached; afterwards all are, the end evicted first."""
        cached = next((depth for depth, block in enumerate(hashes) if block not in self._blocks), len(hashes))
        for block in reversed(hashes):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self.capacity:
            self._blocks.popitem(last=False)
        return cached


class Loop:
    """A router and one worker, with requests one after the other."""

    def __init__(self, capacity: int) -> None:
        self.cache = LruCache(capacity)
        self.fleet = fleet_of("http://w")
        self.fleet.workers[0].state = State.READY
        self.routing = Routing(self.fleet, PrefixTree(10**6), "cache_aware", POLICIES["cache_aware"]())
        self._random = random.Random(1)
        self._chats: list[list[int]] = []

    @property
    def retention(self) -> Retention:
        return self.fleet.workers[0].retention

    def step(self) -> tuple[int, int, int]:
        """One turn of a new or an old chat; returns blocks predicted, delivered, and in the prompt."""
        if len(self._chats) < 60 or self._random.random() < 0.1:
            self._chats.append([])
        chat = self._random.choice(self._chats[-60:])
        chat.extend(self._random.getrandbits(64) for _ in range(self._random.randint(2, 12)))
        hashes = array("Q", chat)
        prompt = PromptBlocks(hashes, 0, len(hashes) * BLOCK, BLOCK)
        placement = self.routing.place(prompt)
        assert placement is not None
        placement.first_byte()
        delivered = self.cache.serve(hashes)
        placement.report(Usage(prompt.tokens, delivered * BLOCK))
        placement.release()
        return placement.captured // BLOCK, delivered, len(hashes)

    def error(self, steps: int) -> float:
        """Share of prompt blocks that were predicted wrongly."""
        outcomes = [self.step() for _ in range(steps)]
        wrong = sum(abs(predicted - delivered) for predicted, delivered, _ in outcomes)
        return wrong / sum(length for _, _, length in outcomes)


@pytest.mark.parametrize("capacity", [150, 400, 1000])
def test_it_finds_a_capacity_that_it_was_not_told(capacity: int) -> None:
    loop = Loop(capacity)
    uncalibrated = Loop(capacity)
    uncalibrated.retention._move_to = lambda age: None  # type: ignore[method-assign]
    loop.error(1500)
    uncalibrated.error(1500)
    assert loop.error(3000) < 0.025
    assert uncalibrated.error(3000) > 0.05
    assert loop.retention.blocks == pytest.approx(capacity, rel=0.05)


def test_it_follows_a_capacity_that_changes() -> None:
    loop = Loop(800)
    loop.error(1500)
    loop.cache.capacity = 200
    loop.error(1500)
    assert loop.error(2000) < 0.025
    loop.cache.capacity = 800
    loop.error(3000)
    assert loop.error(2000) < 0.03
    assert loop.retention.blocks > 600


def test_what_the_engine_tells_is_where_it_starts() -> None:
    retention = Retention()
    assert retention.blocks == inf
    retention.start_at(500)
    assert retention.blocks == 500
    retention.learn([(8, -100.0)], dispatched=0.0, predicted=8, delivered=4, waiting=0)
    learned = retention.blocks
    assert learned < 500
    retention.start_at(500)
    assert retention.blocks == learned, "what was learned since is worth more"
    retention.start_at(900)
    assert retention.blocks == 900, "another size is another engine"


def test_a_prefix_that_was_still_being_computed_teaches_nothing() -> None:
    retention = Retention()
    # Sent 5 blocks ago, with 10 blocks still waiting to be computed: missing, of course.
    retention.learn([(8, 95.0)], dispatched=100.0, predicted=8, delivered=2, waiting=10)
    assert retention.blocks == inf
    retention.learn([(8, 40.0)], dispatched=100.0, predicted=8, delivered=2, waiting=10)
    assert retention.blocks == 62, "what is missing was sent 60 blocks ago, and begins 2 blocks deep"


def test_a_cache_that_was_flushed_is_noticed_and_its_size_is_not_forgotten() -> None:
    loop = Loop(1000)
    loop.retention.start_at(1000)
    loop.error(1500)
    before = loop.retention.blocks
    loop.cache.serve(array("Q", range(2000)))  # pushes everything out
    outcomes = [loop.step() for _ in range(200)]
    missed = [number for number, (predicted, delivered, _) in enumerate(outcomes) if predicted > 0 and not delivered]
    assert 3 <= len(missed) <= 10, "it would be one miss for each of some sixty chats"
    assert loop.retention.blocks == pytest.approx(before, rel=0.3)


def test_single_misses_between_hits_are_no_flush() -> None:
    retention = Retention()
    retention.start_at(1000)
    for reading in range(10, 100, 10):
        retention.sent([], predicted=0, new=10, now=0)
        retention.learn([(8, reading - 5.0)], dispatched=float(reading), predicted=8, delivered=0, waiting=0)
        retention.learn([(8, reading - 5.0)], dispatched=float(reading), predicted=8, delivered=8, waiting=0)
    assert retention.floor == 0


def test_a_worker_that_restarts_is_empty_and_keeps_its_pace() -> None:
    retention = Retention()
    retention.start_at(1000)
    assert retention.sent([], predicted=0, new=400, now=0) == 400
    assert retention.filled == 400
    retention.emptied()
    assert retention.floor == 400
    assert (retention.filled, retention.blocks) == (0, 1000)


def test_where_nothing_is_told_a_prefix_lives_for_a_time() -> None:
    retention = Retention()
    readings = [retention.sent([], predicted=0, new=10, now=60.0 * minute) for minute in range(10)]
    now = 60.0 * 9
    retention.expire(now)
    assert retention.horizon == -inf
    cached = [reading for reading in readings if reading > retention.floor]
    assert cached == readings[5:], "those of the last five minutes, and not the one that is just as old"
    retention.learn([], dispatched=100.0, predicted=0, delivered=0, waiting=0)
    assert retention.floor <= 0, "it says what is cached: from now on by what it says"


def test_an_engine_that_never_has_anything_cached_is_understood() -> None:
    """As one whose cache is off, and that says so: a flush, and another one, and then it is the retention."""
    loop = Loop(0)
    loop.error(300)
    assert loop.error(200) < 0.01


def test_moments_are_bounded_and_kept_only_while_time_counts() -> None:
    retention = Retention()
    for minute in range(10_000):
        retention.sent([], predicted=0, new=1, now=60.0 * minute)
    assert len(retention._marks) < 10
    retention.learn([], dispatched=0.0, predicted=0, delivered=0, waiting=0)
    before = len(retention._marks)
    for minute in range(10_000, 10_100):
        retention.sent([], predicted=0, new=1, now=60.0 * minute)
    assert len(retention._marks) == before


def test_names_that_cannot_be_models_are_not_kept() -> None:
    ratio = TokenRatio()
    ratio.learn("m" * 257, 1000, 300)
    ratio.adopt("m" * 257, 0.3)
    for wrong in (0.0, -1.0, 1e16, 1e-9):
        ratio.adopt("m", wrong)
    assert ratio.known == {}
    ratio.adopt("m", 0.3)
    assert ratio.of("m") == 0.3


def test_one_block_short_is_no_contradiction() -> None:
    retention = Retention()
    retention.learn([(8, -50.0)], dispatched=0.0, predicted=8, delivered=7.2, waiting=0)
    assert retention.blocks == inf


def test_tokens_per_byte_are_learned_for_each_model_and_bounded() -> None:
    ratio = TokenRatio()
    assert ratio.of("m") == 0.25
    ratio.learn("m", 1000, 500)
    assert ratio.of("m") == 0.5
    ratio.learn("m", 1000, 400)
    assert 0.4 < ratio.of("m") < 0.5
    assert ratio.of("other") == 0.25
    ratio.learn("m", 0, 5)
    for number in range(1000):
        ratio.learn(f"model {number}", 100, 50)
    assert len(ratio._ratios) == 64


def test_the_clock_counts_new_blocks_and_what_old_ones_pass_on_their_way_to_the_front() -> None:
    retention = Retention()
    assert retention.sent([], predicted=0, new=10, now=0) == 10
    assert retention.sent([(10, 10.0)], predicted=10, new=5, now=0) == 15, "nothing was touched after those ten"
    retention.start_at(100)
    retention.correct(20)
    # 4 blocks touched at 10 and 4 at 30, with the clock at 35: they pass a quarter and a twentieth of the cache.
    assert (
        retention.sent([(4, 10.0), (8, 30.0), (12, 0.0)], predicted=8, new=1, now=0) == 35 + 1 + 4 * 0.25 + 4 * 0.05
    )
