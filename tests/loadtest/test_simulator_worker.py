"""The model of one engine, against one that is coded another way, and against times worked out by hand."""

from array import array
from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from warmroute_loadtest.simulator import FleetSpec
from warmroute_loadtest.simulator.cache import BlockCache
from warmroute_loadtest.simulator.decode import BATCH_SLOWDOWN, DecodeBatch
from warmroute_loadtest.simulator.fleet import Answer, SimulatedFleet
from warmroute_loadtest.simulator.policies import SIM_POLICIES
from warmroute_loadtest.simulator.worker import Job, WorkerModel
from warmroute_loadtest.traces import Trace, TraceRequest

BLOCK_TOKENS = 10
RATE = 997.0  # odd, so that no two things fall on one moment by accident of round numbers
TPOT = 0.0317
Prefix = tuple[int, ...]


@dataclass
class Ask:
    """A prompt as the plain symbols of its blocks."""

    symbols: Prefix
    rest: int
    output: int
    gap: float

    @property
    def prefixes(self) -> list[Prefix]:
        return [self.symbols[: end + 1] for end in range(len(self.symbols))]

    @property
    def tokens(self) -> int:
        return len(self.symbols) * BLOCK_TOKENS + self.rest

    @property
    def need(self) -> int:
        return (self.tokens + self.output + BLOCK_TOKENS - 1) // BLOCK_TOKENS


asks = st.builds(
    Ask,
    symbols=st.lists(st.integers(0, 2), max_size=6).map(tuple),
    rest=st.integers(0, BLOCK_TOKENS - 1),
    output=st.integers(0, 25),
    gap=st.sampled_from([0.0, 0.0123, 0.0771, 0.531, 3.19]),
)


@dataclass
class NaiveCache:
    """Sets and stamps, everything searched afresh each time."""

    capacity: int
    stamps: dict[Prefix, tuple[int, int]] = field(default_factory=dict)
    running: list[Ask] = field(default_factory=list)
    clock: int = 0

    def private(self, ask: Ask) -> int:
        return ask.need - len(ask.symbols)

    def pinned(self) -> set[Prefix]:
        return {prefix for ask in self.running for prefix in ask.prefixes}

    def used(self) -> int:
        return len(self.stamps) + sum(self.private(ask) for ask in self.running)

    def admit(self, ask: Ask) -> int | None:
        cached = 0
        while cached < len(ask.symbols) and ask.symbols[: cached + 1] in self.stamps:
            cached += 1
        kept = self.pinned() | set(ask.prefixes[:cached])
        missing = ask.need - cached
        if len(kept) + sum(self.private(other) for other in self.running) + missing > self.capacity:
            return None
        while self.used() + missing > self.capacity:
            del self.stamps[min(self.stamps.keys() - kept, key=lambda prefix: self.stamps[prefix])]
        self.running.append(ask)
        self.touch(ask)
        return cached

    def release(self, ask: Ask) -> None:
        self.running = [other for other in self.running if other is not ask]
        self.touch(ask)

    def touch(self, ask: Ask) -> None:
        """Of blocks that were touched together, the deepest is the oldest."""
        self.clock += 1
        self.stamps.update({prefix: (self.clock, -len(prefix)) for prefix in ask.prefixes})


@dataclass(eq=False)
class Decoding:
    ask: Ask
    number: int
    done: float = 0.0


@dataclass
class NaiveWorker:
    """Every request in the batch has its own count of tokens, and all of them are moved at every moment."""

    asks: list[Ask]
    cache: NaiveCache
    times: dict[int, tuple[int, float, float]] = field(default_factory=dict)
    """Cached blocks, first byte and end, by number."""
    now: float = 0.0
    queue: list[int] = field(default_factory=list)
    prefill: tuple[int, float] | None = None
    batch: list[Decoding] = field(default_factory=list)

    def run(self) -> dict[int, tuple[int, float, float]]:
        arrivals = [sum(ask.gap for ask in self.asks[: n + 1]) for n in range(len(self.asks))]
        while arrivals or self.queue or self.prefill or self.batch:
            upcoming = arrivals[0] if arrivals else inf
            prefilled = self.prefill[1] if self.prefill else inf
            moment = min([upcoming, prefilled, *(self.now + self.left(one) * self.step() for one in self.batch)])
            self.move(moment)
            if self.prefill and prefilled <= moment:
                self.batch.append(Decoding(self.asks[self.prefill[0]], self.prefill[0]))
                self.prefill = None
            elif upcoming == moment:
                arrivals.pop(0)
                self.queue.append(len(self.asks) - len(arrivals) - 1)
            self.admit()
        return self.times

    def step(self) -> float:
        return TPOT * (1 + (len(self.batch) - 1) / 64)

    def left(self, one: Decoding) -> float:
        return 1 - one.done if one.done < 1 else max(one.ask.output, 1) - one.done

    def move(self, moment: float) -> None:
        for one in self.batch:
            before, one.done = one.done, one.done + (moment - self.now) / self.step()
            for goal in (1, max(one.ask.output, 1)):
                if before < goal and abs(one.done - goal) < 1e-9:
                    one.done = goal
            if before < 1 <= one.done:
                cached, _, _ = self.times[one.number]
                self.times[one.number] = (cached, moment, moment)
        for one in [one for one in self.batch if one.done >= max(one.ask.output, 1)]:
            self.batch.remove(one)
            self.cache.release(one.ask)
            self.times[one.number] = (*self.times[one.number][:2], moment)
        self.now = moment

    def admit(self) -> None:
        if self.prefill is None and self.queue:
            ask = self.asks[self.queue[0]]
            cached = self.cache.admit(ask)
            if cached is not None:
                number = self.queue.pop(0)
                self.times[number] = (cached, -1.0, -1.0)
                self.prefill = (number, self.now + (ask.tokens - cached * BLOCK_TOKENS) / RATE)


def trace_of(asks: list[Ask]) -> Trace:
    names: dict[Prefix, int] = {}
    requests, now = [], 0.0
    for ask in asks:
        now += ask.gap
        ids = array("Q", [names.setdefault(prefix, 100 + len(names)) for prefix in ask.prefixes])
        requests.append(TraceRequest(now, ids, ask.tokens, ask.output, None))
    return Trace("hand", BLOCK_TOKENS, requests, 0)


def run_one(trace: Trace, blocks: int, rate: float, tpot: float) -> tuple[list[Answer], WorkerModel]:
    spec = FleetSpec(workers=1, blocks=blocks, prefill_rate=rate, tpot=tpot)
    fleet = SimulatedFleet(trace, lambda: SIM_POLICIES["round_robin"](10**6), spec)
    return fleet.run(), fleet.workers[0]


@given(st.lists(asks, min_size=1, max_size=25), st.integers(0, 12))
def test_the_worker_is_the_naive_one(asks: list[Ask], spare: int) -> None:
    capacity = max(1, *(ask.need for ask in asks)) + spare
    expected = NaiveWorker(asks, NaiveCache(capacity)).run()
    answers, worker = run_one(trace_of(asks), capacity, RATE, TPOT)
    for number, answer in enumerate(answers):
        cached, first_byte, end = expected[number]
        assert answer.cached_blocks == cached
        assert (answer.first_byte, answer.end) == pytest.approx((first_byte, end))
    cached_tokens = sum(answer.cached_blocks for answer in answers) * BLOCK_TOKENS
    assert worker.computed_tokens + cached_tokens == sum(ask.tokens for ask in asks)


@given(st.lists(asks, min_size=1, max_size=40), st.data())
def test_the_cache_is_the_naive_one(asks: list[Ask], data: st.DataObject) -> None:
    """Requests come and go in any order. What runs keeps its blocks, and memory is never above the capacity."""
    capacity = data.draw(st.integers(1, 20))
    naive, cache = NaiveCache(capacity), BlockCache(capacity)
    names: dict[Prefix, int] = {}
    for ask in asks:
        ids = [names.setdefault(prefix, len(names)) for prefix in ask.prefixes]
        assert cache.admit(ids, naive.private(ask)) == naive.admit(ask)
        if naive.running and data.draw(st.sampled_from((True, False))):
            leaving = data.draw(st.sampled_from(naive.running))
            naive.release(leaving)
            cache.release([names[prefix] for prefix in leaving.prefixes], naive.private(leaving))
        assert cache.used == naive.used() <= capacity
        assert cache.pinned == len(naive.pinned())
        assert {prefix for prefix in names if cache.holds(names[prefix])} == naive.stamps.keys()
        assert naive.pinned() <= naive.stamps.keys()


def test_an_idle_worker_answers_after_prefill_and_one_step() -> None:
    (answer,), worker = run_one(trace_of([Ask((1, 2, 3, 4), 5, 3, 2.0)]), 100, 90.0, 0.25)
    assert answer.arrival == 2.0
    assert answer.ttft == 45 / 90 + 0.25
    assert answer.end == 2.0 + 45 / 90 + 3 * 0.25
    assert worker.computed_tokens == 45


def test_the_second_waits_for_the_first_and_reuses_its_blocks() -> None:
    """A: prefill until 0.5. B: until 0.6, as four of its five blocks are there; then both decode together."""
    trace = trace_of([Ask((1, 2, 3, 4, 5), 0, 1, 0.0), Ask((1, 2, 3, 4, 6), 0, 2, 0.1)])
    (a, b), _ = run_one(trace, 100, 100.0, 0.5)
    together = 0.5 * (1 + BATCH_SLOWDOWN)
    assert b.cached_blocks == 4
    assert a.ttft == pytest.approx(0.6 + 0.8 * together)  # 0.2 tokens alone, the rest together
    assert b.ttft == pytest.approx(a.ttft + 0.2 * 0.5 - 0.1)
    assert b.end == pytest.approx(b.first_byte + 0.5)


def test_who_does_not_fit_waits_until_the_memory_is_free() -> None:
    """Six blocks: the first request takes them all, with its answer, and has them until its end."""
    trace = trace_of([Ask((1, 2, 3, 4, 5), 0, 10, 0.0), Ask((6,), 0, 1, 0.0), Ask((1, 2), 0, 1, 9.0)])
    (first, second, third), _ = run_one(trace, 6, 100.0, 0.1)
    assert first.end == pytest.approx(0.5 + 1.0)
    assert second.first_byte == pytest.approx(1.5 + 0.1 + 0.1)
    assert third.cached_blocks == 2  # the head of the first prompt is still there


def test_a_prompt_that_is_all_cached_needs_one_step() -> None:
    trace = trace_of([Ask((1, 2), 0, 1, 0.0), Ask((1, 2), 0, 1, 5.0)])
    (_, again), worker = run_one(trace, 10, 100.0, 0.1)
    assert again.ttft == pytest.approx(0.1)
    assert worker.computed_tokens == 20


def test_the_oldest_tail_goes_first() -> None:
    cache = BlockCache(5)
    for ids in ([1, 2], [1, 3], [4]):
        assert cache.admit(ids, 0) is not None
        cache.release(ids, 0)
    cache.admit([5, 6], 0)  # one free block, and 2: older than 3, and behind 1
    assert [block for block in range(1, 7) if cache.holds(block)] == [1, 3, 4, 5, 6]


def test_an_answer_without_tokens_still_has_a_first_byte() -> None:
    (answer,), _ = run_one(trace_of([Ask((), 0, 0, 0.0)]), 1, 100.0, 0.1)
    assert answer.first_byte == answer.end == pytest.approx(0.1)


def test_the_pace_of_a_full_batch() -> None:
    batch: DecodeBatch[int] = DecodeBatch(0.01)
    for job in range(65):
        batch.join(job, 1, now=0.0)
    assert batch.next_at == pytest.approx(0.02)
    reached = batch.reached(batch.next_at)
    assert [(one.job, one.is_end) for one in reached] == [(job, end) for job in range(65) for end in (False, True)]
    assert batch.next_at == inf


def test_a_job_that_can_never_fit_is_a_programmers_error() -> None:
    worker = WorkerModel(2, BLOCK_TOKENS, RATE, TPOT)
    with pytest.raises(AssertionError, match="never fit"):
        worker.submit(Job(0, [1, 2], 20, 1), 0.0)
