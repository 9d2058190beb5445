"""The fleet behind the router's own routing: accounts, order, figures."""

import random
from array import array
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from warmroute_loadtest import traces
from warmroute_loadtest.simulator import SIM_POLICIES, FleetSpec, Result, SimPolicy, SimulationError, simulate
from warmroute_loadtest.simulator.baselines import BASELINES
from warmroute_loadtest.simulator.fleet import Answer, SimulatedFleet
from warmroute_loadtest.simulator.result import summarise
from warmroute_loadtest.simulator.spec import coarsened
from warmroute_loadtest.traces import Trace, TraceRequest, load_trace
from warmroute_router.blocks import BLOCK_TOKENS, PromptBlocks
from warmroute_router.policies import POLICIES, Choice, FleetView, WorkerView
from warmroute_router.policies.base import W
from warmroute_router.tree import MAX_TREE_BLOCKS

SLICE = Path(traces.__file__).parent / "data" / "mooncake_slice.jsonl"
SPEC = FleetSpec(workers=3, blocks=30, prefill_rate=100.0, tpot=0.1)


def request(arrival: float, ids: list[int], tokens: int | None = None, output: int = 1) -> TraceRequest:
    return TraceRequest(arrival, array("Q", ids), len(ids) * 10 if tokens is None else tokens, output, None)


def trace(*requests: TraceRequest) -> Trace:
    return Trace("hand", 10, list(requests), 0)


def made(seed: int, count: int = 120) -> Trace:
    """Conversations that grow by two blocks a turn, with twelve heads in common."""
    draw = random.Random(seed)
    chats = [[1000 * (chat % 12), 10_000 + chat] for chat in range(30)]
    requests = []
    for number in range(count):
        chat = draw.choice(chats)
        chat += [100_000 + 2 * number, 100_001 + 2 * number]
        del chat[20:]
        requests.append(request(number * 0.4, list(chat), len(chat) * 10 + draw.randrange(10), draw.randrange(30)))
    return trace(*requests)


class Recorder:
    """Round robin that notes what it is told, and the load that it sees."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, int, float]] = []
        self.seen: list[list[tuple[float, int]]] = []

    def choose(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]:
        self.seen.append([(worker.remaining_tokens, worker.in_flight) for worker in fleet.workers])
        return Choice(fleet.workers[(len(self.seen) - 1) % len(fleet.workers)], "turn")

    def dispatched(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        self.told.append(("dispatched", prompt.digest, worker.index, now))

    def first_byte(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        self.told.append(("first byte", prompt.digest, worker.index, now))

    def ended(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        self.told.append(("ended", prompt.digest, worker.index, now))


def test_our_policies_and_the_peers_are_all_there() -> None:
    assert POLICIES.keys() | BASELINES.keys() == SIM_POLICIES.keys()
    assert not POLICIES.keys() & BASELINES.keys()


@pytest.mark.parametrize("name", sorted(SIM_POLICIES))
@settings(max_examples=10)
@given(seed=st.integers(0, 10_000))
def test_every_request_is_answered_once_and_nothing_is_left(name: str, seed: int) -> None:
    requests = made(seed, 60)
    ended = [0]

    def count() -> None:
        ended[0] += 1

    run = SimulatedFleet(requests, lambda: SIM_POLICIES[name](10**6), SPEC, count)
    answers = run.run()
    assert ended == [len(answers)] == [60]
    for asked, answer in zip(requests.requests, answers, strict=True):
        assert asked.arrival == answer.arrival < answer.first_byte <= answer.end
        assert 0 <= answer.cached_blocks <= len(asked.block_ids)
    computed = sum(worker.computed_tokens for worker in run.workers)
    cached = 10 * sum(answer.cached_blocks for answer in answers)
    assert computed + cached == sum(asked.input_tokens for asked in requests.requests)
    (router,) = run.replicas.routers
    assert sum(worker.accounts.of("").delivered_tokens for worker in router.fleet.workers) == cached
    assert all((worker.waiting_tokens, worker.in_flight) == (0, 0) for worker in router.fleet.workers)
    assert all(worker.cache.pinned == 0 and worker.cache.used <= 30 for worker in run.workers)


def test_a_policy_is_told_of_each_moment_once_and_in_order() -> None:
    policy = Recorder()
    requests = made(1)
    answers = SimulatedFleet(requests, lambda: policy, SPEC).run()
    assert Counter(what for what, *_ in policy.told) == {"dispatched": 120, "first byte": 120, "ended": 120}
    assert [now for *_, now in policy.told] == sorted(now for *_, now in policy.told)
    by_prompt: dict[int, list[tuple[str, int, float]]] = {}
    for what, digest, index, now in policy.told:
        by_prompt.setdefault(digest, []).append((what, index, now))
    for life, answer in zip(by_prompt.values(), answers, strict=True):
        worker = answer.worker
        moments = [answer.arrival, answer.first_byte, answer.end]
        assert life == list(zip(["dispatched", "first byte", "ended"], [worker] * 3, moments, strict=True))


def test_the_load_that_a_policy_sees() -> None:
    """Of worker 0: 40 tokens wait until its first byte at 0.75; the request is in flight until its end at 1.

    Who arrives at the very moment finds it done.
    """
    policy = Recorder()
    one = request(0.0, [1, 2, 3, 4], output=2)
    others = [request(at, []) for at in (0.5, 0.75, 1.0, 9.0)]
    spec = FleetSpec(workers=5, blocks=30, prefill_rate=80.0, tpot=0.25)
    SimulatedFleet(trace(one, *others), lambda: policy, spec).run()
    assert [seen[0] for seen in policy.seen] == [(0, 0), (40, 1), (0, 1), (0, 0), (0, 0)]


def test_a_prefix_counts_as_there_from_its_dispatch() -> None:
    """Both arrive at once: the second is told that the first is being computed, and really finds it there."""
    requests = trace(request(0.0, [1, 2, 3, 4, 5]), request(0.0, [1, 2, 3, 4, 6]))
    answers = SimulatedFleet(requests, lambda: SIM_POLICIES["cache_aware"](10**6), replace(SPEC, workers=1)).run()
    assert (answers[1].predicted_blocks, answers[1].cached_blocks) == (4, 4)


@pytest.mark.parametrize("name", sorted(SIM_POLICIES))
def test_the_same_seed_gives_the_same_figures(name: str) -> None:
    state = random.getstate()
    assert simulate(made(2), name, SPEC) == simulate(made(2), name, SPEC)
    assert random.getstate() == state


def test_another_seed_draws_otherwise() -> None:
    results = {seed: simulate(made(2), "random", FleetSpec(workers=3, blocks=30, seed=seed)) for seed in (1, 2)}
    assert results[1] != results[2]


def test_the_seed_holds_for_what_a_policy_draws_when_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[float] = []

    def make(engine_tokens: int) -> SimPolicy:
        drawn.append(random.random())
        return Recorder()

    monkeypatch.setitem(SIM_POLICIES, "drawing", make)
    for _ in range(2):
        simulate(made(3, 5), "drawing", SPEC)
    assert drawn[0] == drawn[1]


def test_speed_moves_the_arrivals_together() -> None:
    answers = SimulatedFleet(
        trace(request(0.0, []), request(3.0, [])), Recorder, FleetSpec(workers=1, blocks=3, speed=2.0)
    ).run()
    assert [answer.arrival for answer in answers] == [0.0, 1.5]


def test_a_tree_that_remembers_too_much_is_an_error_of_prediction() -> None:
    """Five blocks hold one request of four and its answer: at its return the first is gone, and the tree says 4."""
    spec = FleetSpec(workers=1, blocks=5, prefill_rate=100.0, tpot=0.1)
    requests = trace(
        request(0.0, [1, 2, 3, 4], output=10), request(9.0, [5, 6, 7, 8], output=10), request(18.0, [1, 2, 3, 4])
    )
    result = simulate(requests, "round_robin", spec)
    assert result.hit_rate == 0.0
    assert result.ceiling == pytest.approx(1 / 3)
    assert result.prediction_error == pytest.approx(1 / 3)


def test_skew_is_of_computed_tokens() -> None:
    """30 + 10 tokens in turns; then 30 that are all cached but one block."""
    spec = FleetSpec(workers=2, blocks=30)
    result = simulate(trace(request(0, [1, 2, 3]), request(9, [9]), request(18, [1, 2, 4])), "round_robin", spec)
    assert result.skew == pytest.approx(40 / 25)
    assert result.hit_rate == pytest.approx(20 / 70)


def answered(ttft: float, *, blocks: int = 2, predicted: int = 0, cached: int = 0) -> Answer:
    return Answer(10.0, blocks * 10, blocks, 0, predicted, cached, 10.0 + ttft, 10.0 + ttft)


def test_the_figures_of_a_run() -> None:
    answers = [answered(float(second)) for second in range(1, 11)]
    answers[0] = answered(1.0, predicted=2, cached=1)
    answers[1] = answered(2.0, blocks=0)
    result = summarise("p", answers, [100, 0], 0.5, block_tokens=10, slo=4.0)
    assert result == Result(
        policy="p",
        requests=10,
        hit_rate=10 / 180,
        ceiling=0.5,
        ttft_mean=5.5,
        ttft_p50=5.0,
        ttft_p90=9.0,
        ttft_p99=10.0,
        skew=2.0,
        prediction_error=0.5 / 9,
        goodput=4 / 10,
    )
    assert result.figures() == {name: value for name, value in asdict(result).items() if name != "goodput"}


def test_a_trace_without_requests_has_figures_too() -> None:
    result = simulate(trace(), "cache_aware", SPEC)
    assert (result.requests, result.hit_rate, result.ttft_p99, result.skew, result.goodput) == (0, 0.0, 0.0, 1.0, 0.0)


def test_a_policy_may_be_a_class() -> None:
    assert simulate(made(4, 10), Recorder, SPEC).policy == "Recorder"


def test_a_session_keeps_its_worker() -> None:
    requests = [TraceRequest(float(n), array("Q", [n]), 10, 1, f"chat {n % 3}") for n in range(30)]
    answers = SimulatedFleet(trace(*requests), lambda: SIM_POLICIES["session"](10**6), SPEC).run()
    assert all(len({answer.worker for answer in answers[chat::3]}) == 1 for chat in range(3))


def test_longer_blocks_are_named_by_their_last() -> None:
    coarse = coarsened(trace(request(0, [1, 2, 3, 4, 5], 57)), 20)
    assert (coarse.block_tokens, coarse.requests[0].block_ids.tolist()) == (20, [2, 4])
    assert coarsened(coarse, 20) is coarse


@pytest.mark.parametrize("block_tokens", [5, 15])
def test_a_block_is_not_cut(block_tokens: int) -> None:
    spec = FleetSpec(block_tokens=block_tokens)
    with pytest.raises(SimulationError, match="has blocks of 10 tokens"):
        simulate(trace(request(0, [1])), "random", spec)


def test_a_request_that_fits_no_worker_is_told_at_once() -> None:
    with pytest.raises(SimulationError, match=r"hand: a request needs 4 blocks of 10 tokens, and a worker has 3"):
        simulate(trace(request(0, [1, 2, 3], output=1)), "random", FleetSpec(blocks=3))


def test_the_tree_holds_as_many_tokens_as_the_servers() -> None:
    assert FleetSpec().tree_bound(512) == MAX_TREE_BLOCKS * BLOCK_TOKENS // 512
    assert FleetSpec(tree_blocks=7).tree_bound(512) == 7


def test_on_a_real_trace_warm_beats_blind() -> None:
    """The slice has 400 requests of Mooncake's conversations; its ceiling is low, as it is the beginning."""
    real = load_trace(SLICE)
    warm, blind = (simulate(real, name, FleetSpec()) for name in ("cache_aware", "round_robin"))
    assert blind.hit_rate < warm.hit_rate / 2 < warm.ceiling / 2
    assert warm.ttft_mean < blind.ttft_mean
    assert warm.ttft_p99 < blind.ttft_p99
