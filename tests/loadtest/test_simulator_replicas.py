"""Several routers, and restarts: what each knows and when, and that nothing is lost or left over."""

import random
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tree import sent_blocks
from warmroute_loadtest import traces
from warmroute_loadtest.simulator import SIM_POLICIES, FleetSpec, SimulationError, simulate
from warmroute_loadtest.simulator.agenda import Agenda
from warmroute_loadtest.simulator.baselines import BASELINES
from warmroute_loadtest.simulator.fleet import WORKER_RESTART_S, SimulatedFleet
from warmroute_loadtest.simulator.policies import ServedPolicy
from warmroute_loadtest.simulator.replicas import Replicas
from warmroute_loadtest.simulator.router import Router
from warmroute_loadtest.simulator.spec import without_zero
from warmroute_loadtest.traces import Trace, TraceRequest, load_trace
from warmroute_router.blocks import PromptBlocks
from warmroute_router.policies import Choice, FleetView, WorkerView
from warmroute_router.policies.base import W
from warmroute_router.policies.round_robin import RoundRobin
from warmroute_router.usage import Usage

SLICE = Path(traces.__file__).parent / "data" / "mooncake_slice.jsonl"
SPEC = FleetSpec(workers=3, blocks=30, prefill_rate=100.0, tpot=0.1)
THREE = replace(SPEC, routers=3)


def request(arrival: float, ids: list[int], tokens: int | None = None, output: int = 1) -> TraceRequest:
    return TraceRequest(arrival, array("Q", ids), len(ids) * 10 if tokens is None else tokens, output, None)


def trace(*requests: TraceRequest) -> Trace:
    return Trace("hand", 10, list(requests), 0)


def chats(seed: int, count: int) -> Trace:
    """Conversations that grow by two blocks a turn, with twelve heads in common. A request each 0.4 s."""
    draw = random.Random(seed)
    talks = [[1000 * (talk % 12 + 1), 20_000 + talk] for talk in range(30)]
    requests = []
    for number in range(count):
        talk = draw.choice(talks)
        talk += [100_000 + 2 * number, 100_001 + 2 * number]
        del talk[20:]
        requests.append(request(number * 0.4, list(talk), len(talk) * 10 + draw.randrange(10), draw.randrange(30)))
    return trace(*requests)


def run(requests: Trace, spec: FleetSpec, name: str = "cache_aware") -> SimulatedFleet:
    fleet = SimulatedFleet(requests, lambda: SIM_POLICIES[name](10**6), spec)
    fleet.run()
    return fleet


def known(router: Router, ids: list[int]) -> dict[int, int]:
    """Leading blocks of a prompt by worker that was sent them, as far as the router knows."""
    return sent_blocks(router.tree, array("Q", ids))


def load(router: Router, worker: int) -> tuple[int, int]:
    seen = router.fleet.workers[worker]
    return seen.in_flight, seen.waiting_tokens


def test_one_router_has_the_figures_that_it_had_before_there_could_be_several() -> None:
    """Of the version without replicas, for policies that draw: the draw of a router is none of theirs."""
    figures = {name: simulate(load_trace(SLICE), name, FleetSpec()).figures() for name in ("random", "llm_d")}
    assert figures["random"]["ttft_mean"] == pytest.approx(2.0096501955534247, rel=1e-12)
    assert figures["llm_d"]["ttft_mean"] == pytest.approx(1.0540877219551277, rel=1e-12)


def test_requests_are_drawn_to_all_routers_and_the_seed_says_how() -> None:
    counts = [
        [
            router.routing.decisions.total()
            for router in run(chats(1, 300), replace(THREE, seed=seed)).replicas.routers
        ]
        for seed in (1, 1, 2)
    ]
    assert counts[0] == counts[1] != counts[2]
    assert all(sum(each) == 300 and min(each) > 70 for each in counts)


times = st.sampled_from([None, 0.0, 3.3, 11.0, 1000.0])


@pytest.mark.parametrize("name", sorted(SIM_POLICIES))
@settings(max_examples=15)
@given(
    seed=st.integers(0, 10_000),
    routers=st.integers(1, 4),
    gossip=st.booleans(),
    gossip_delay=st.sampled_from([0.005, 0.7]),
    restart_router_at=times,
    warm_restart=st.booleans(),
    restart_worker_at=times,
)
def test_whatever_restarts_every_request_is_answered_once_and_nothing_is_left(
    name: str,
    seed: int,
    routers: int,
    gossip: bool,
    gossip_delay: float,
    restart_router_at: float | None,
    warm_restart: bool,
    restart_worker_at: float | None,
) -> None:
    spec = replace(
        SPEC,
        routers=routers,
        gossip=gossip,
        gossip_delay=gossip_delay,
        restart_router_at=restart_router_at,
        warm_restart=warm_restart,
        restart_worker_at=restart_worker_at,
    )
    requests = chats(seed, 40)
    ended = [0]

    def count() -> None:
        ended[0] += 1

    fleet = SimulatedFleet(requests, lambda: SIM_POLICIES[name](10**6), spec, count)
    answers = fleet.run()
    assert ended == [len(answers)] == [40]
    for asked, answer in zip(requests.requests, answers, strict=True):
        assert asked.arrival == answer.arrival < answer.first_byte <= answer.end
        assert 0 <= answer.cached_blocks <= len(asked.block_ids)
    computed = sum(worker.computed_tokens for worker in fleet.workers)
    cached = 10 * sum(answer.cached_blocks for answer in answers)
    total = sum(asked.input_tokens for asked in requests.requests)
    if restart_worker_at is None:
        assert computed + cached == total
    else:  # what it had computed for those that it lost was for nothing
        assert computed + cached >= total
    assert all(worker.cache.pinned == 0 and worker.cache.used <= 30 for worker in fleet.workers)
    for router in fleet.replicas.routers:
        assert all(load(router, index) == (0, 0) for index in range(3))
        assert not any(worker.peer_loads for worker in router.fleet.workers)


@pytest.mark.parametrize("name", ["cache_aware", "round_robin"])
@pytest.mark.parametrize("routers", [2, 5])
def test_routers_that_talk_agree_on_what_was_sent_where(name: str, routers: int) -> None:
    requests = chats(3, 150)
    spec = replace(SPEC, routers=routers)
    talking, silent = (run(requests, replace(spec, gossip=gossip), name) for gossip in (True, False))
    trees = [router.tree for router in talking.replicas.routers]
    first, *others = [[sent_blocks(tree, asked.block_ids) for asked in requests.requests] for tree in trees]
    assert all(other == first for other in others)
    for asked, answer in zip(requests.requests, talking.answers, strict=True):
        if asked.block_ids:
            assert sent_blocks(trees[0], asked.block_ids)[answer.worker] == len(asked.block_ids)
    held = [dict(router.tree.held) for router in silent.replicas.routers]
    assert all(held[0] != other for other in held[1:])


def test_a_decision_and_its_load_reach_a_peer_after_the_interval_and_the_way() -> None:
    agenda = Agenda()
    replicas = made(THREE, agenda)
    near, far, _ = replicas.routers
    placement = near.place(prompt([1, 2, 3]))
    agenda.run_until(0.0249)
    assert (known(far, [1, 2, 3]), load(far, 0)) == ({}, (0, 0))
    agenda.run_until(0.0251)
    assert (known(far, [1, 2, 3]), load(far, 0)) == ({0: 3}, (1, 30))
    near.first_byte(placement)
    agenda.run_until(0.051)
    assert load(far, 0) == (1, 0)
    near.ended(placement, Usage(30, 0))
    agenda.run_until(9.0)
    assert load(far, 0) == load(near, 0) == (0, 0)


def test_the_way_can_be_longer() -> None:
    agenda = Agenda()
    near, far, _ = made(replace(THREE, gossip_delay=0.5), agenda).routers
    near.place(prompt([1, 2, 3]))
    agenda.run_until(0.51)
    assert known(far, [1, 2, 3]) == {}
    agenda.run_until(0.53)
    assert known(far, [1, 2, 3]) == {0: 3}


@pytest.mark.parametrize("warm", [True, False])
def test_a_lone_router_restarts_with_its_own_snapshot_or_with_nothing(warm: bool) -> None:
    agenda = Agenda()
    replicas = made(replace(SPEC, restart_router_at=1.0, warm_restart=warm), agenda)
    (old,) = replicas.routers
    placement = old.place(prompt([1, 2, 3]))
    agenda.run_until(2.0)
    (new,) = replicas.routers
    assert replicas.heir(old) is new is not old
    assert known(new, [1, 2, 3]) == ({0: 3} if warm else {})
    old.ended(placement, Usage(30, 0))
    assert load(new, 0) == (0, 0)


def test_a_new_router_learns_from_its_peers_and_they_forget_the_old_ones_load() -> None:
    """Without talk it has only what the one before it knew."""
    for gossip in (True, False):
        agenda = Agenda()
        replicas = made(replace(THREE, gossip=gossip, restart_router_at=1.0), agenda)
        old, peer, _ = replicas.routers
        old.place(prompt([1, 2]))
        ours = peer.place(prompt([3, 4, 5]))
        peer.place(prompt([6]))
        agenda.run_until(1.001)
        new = replicas.routers[0]
        assert load(peer, 0) == ((2, 50) if gossip else (1, 30))
        assert [known(new, ids) for ids in ([1, 2], [3, 4, 5], [6])] == (
            [{0: 2}, {0: 3}, {1: 1}] if gossip else [{0: 2}, {}, {}]
        )
        agenda.run_until(1.006)
        assert load(peer, 0) == (1, 30)
        assert [load(new, index) for index in (0, 1)] == ([(1, 30), (1, 10)] if gossip else [(0, 0), (0, 0)])
        old.place(prompt([7, 8]))  # of a process that is gone, nobody hears
        peer.first_byte(ours)
        agenda.run_until(2.0)
        assert known(peer, [7, 8]) == {}
        assert load(new, 0) == ((1, 0) if gossip else (0, 0))


def test_a_new_router_knows_who_is_down() -> None:
    agenda = Agenda()
    replicas = made(replace(SPEC, restart_router_at=1.0), agenda)
    replicas.worker_gone(0)
    agenda.run_until(2.0)
    (new,) = replicas.routers
    assert [new.place(prompt([n])).worker.index for n in range(3)] == [1, 2, 1]
    replicas.worker_back(0)
    assert [new.place(prompt([n])).worker.index for n in range(3, 6)] == [2, 0, 1]


class Recorder:
    """In turns over whoever is ready; notes what it is told of worker and time."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, float]] = []

    def choose(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]:
        dispatched = sum(what == "dispatched" for what, *_ in self.told)
        return Choice(fleet.workers[dispatched % len(fleet.workers)], "turn")

    def dispatched(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        self.told.append(("dispatched", worker.index, now))

    def first_byte(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        self.told.append(("first byte", worker.index, now))

    def ended(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        self.told.append(("ended", worker.index, now))


def test_what_a_worker_had_is_sent_again() -> None:
    """Two workers, 100 tokens/s, 0.25 s a token; worker 0 dies at 1.

    It had the first request, whose first byte came at 0.5 + 0.25, and, since 0.75, the third in its prefill.
    The second is on the other worker, and has been answered.
    """
    policy = Recorder()
    first = request(0.0, list(range(1, 6)), output=9)
    third = request(0.75, list(range(11, 16)))
    requests = trace(first, request(0.5, [9]), third, request(20.0, [1]), request(41.0, [1, 2]))
    spec = FleetSpec(workers=2, blocks=30, prefill_rate=100.0, tpot=0.25, restart_worker_at=1.0)
    fleet = SimulatedFleet(requests, lambda: policy, spec)
    answers = fleet.run()
    assert [answer.worker for answer in answers] == [1, 1, 1, 1, 0]
    assert policy.told[:7] == [
        ("dispatched", 0, 0.0),
        ("dispatched", 1, 0.5),
        ("first byte", 0, 0.75),
        ("dispatched", 0, 0.75),
        ("first byte", 1, 0.85),
        ("ended", 1, 0.85),
        ("ended", 0, 1.0),
    ]
    assert policy.told[7:11] == [
        ("first byte", 0, 1.0),
        ("ended", 0, 1.0),
        ("dispatched", 1, 1.0),
        ("dispatched", 1, 1.0),
    ]
    assert answers[0].ttft == pytest.approx(1.0 + 0.5 + 0.25)
    assert answers[0].end > answers[0].first_byte
    assert answers[2].ttft == pytest.approx(0.25 + 1.0 + 0.25, abs=0.01)  # a little more: two decode together
    # The fourth finds the first one's block where that one went; the last comes to a worker that has lost it.
    assert [answer.cached_blocks for answer in answers] == [0, 0, 0, 1, 0]
    assert [worker.computed_tokens for worker in fleet.workers] == [50 + 50 + 20, 10 + 50 + 50]


def test_a_worker_is_away_for_a_while() -> None:
    requests = trace(*(request(float(second), []) for second in range(60)))
    answers = run(requests, replace(SPEC, workers=2, restart_worker_at=9.5), "round_robin").answers
    away = [answer.arrival for answer in answers if 9 < answer.arrival < 9.5 + WORKER_RESTART_S]
    assert all(answer.worker == 1 for answer in answers if answer.arrival in away)
    assert [answer.worker for answer in answers if answer.arrival not in away] == [0, 1] * 5 + [0, 1] * 10


def test_restarts_after_the_end_change_nothing() -> None:
    late = replace(THREE, restart_router_at=1e6, restart_worker_at=1e6)
    assert simulate(chats(5, 60), "cache_aware", late) == simulate(chats(5, 60), "cache_aware", THREE)


def test_a_lone_worker_does_not_restart() -> None:
    with pytest.raises(SimulationError, match="a lone worker cannot restart"):
        simulate(chats(1, 3), "random", replace(SPEC, workers=1, restart_worker_at=1.0))


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_other_routers_do_not_talk(name: str) -> None:
    talking, silent = (simulate(chats(6, 80), name, replace(THREE, gossip=gossip)) for gossip in (True, False))
    assert talking == silent


def test_the_root_has_its_name_for_itself() -> None:
    """A prompt that begins with block 0 survives a snapshot like any other."""
    requests = trace(
        request(0.0, [0, 1, 2]), request(1.0, [0, 1, 3]), request(9.0, [0, 1, 2]), request(10.0, [0, 1, 3])
    )
    answers = run(requests, replace(SPEC, workers=1, restart_router_at=5.0)).answers
    assert [answer.predicted_blocks for answer in answers] == [0, 2, 3, 3]
    assert [asked.block_ids.tolist()[1:] for asked in without_zero(requests).requests[:2]] == [[1, 2], [1, 3]]


def test_talk_and_a_snapshot_keep_the_hits() -> None:
    talks = load_trace("synthetic:multi_turn?rate=2&sessions=150")
    middle = talks.requests[len(talks.requests) // 2].arrival
    lone = FleetSpec(blocks=2400)
    three, restarted = replace(lone, routers=3), replace(lone, restart_router_at=middle)
    specs = (lone, three, restarted, replace(restarted, warm_restart=False), replace(three, gossip=False))
    alone, talking, warm, cold, silent = (simulate(talks, "cache_aware", spec).hit_rate for spec in specs)
    assert min(talking, warm) > 0.99 * alone > cold > silent


def made(spec: FleetSpec, agenda: Agenda) -> Replicas:
    """Each router in turns of its own, beginning with worker 0."""
    return Replicas(spec, 10, lambda: ServedPolicy(RoundRobin()), agenda)


def prompt(ids: list[int]) -> PromptBlocks:
    return PromptBlocks(array("Q", ids), 1, 10 * len(ids), 10)
