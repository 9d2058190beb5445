from collections import Counter
from dataclasses import dataclass

import pytest
from support.fleet import fleet_of
from warmroute_router.blocks import BLOCK_BYTES, BLOCK_TOKENS, PromptBlocks, hash_blocks
from warmroute_router.fleet import State
from warmroute_router.policies import POLICIES, Choice, FleetView
from warmroute_router.policies.cache_aware import EVICTION, CacheAware
from warmroute_router.routing import Routing
from warmroute_router.tree import PrefixTree


@dataclass
class W:
    index: int
    remaining_tokens: int = 0
    in_flight: int = 0
    recent_new_tokens: float = 0.0
    cache_fill: float = 1.0
    slowness: float = 1.0

    @property
    def url(self) -> str:
        return f"http://worker-{self.index}"


def prompt(blocks: int, text: bytes = b"x") -> PromptBlocks:
    return hash_blocks(text * (blocks * BLOCK_BYTES // len(text)))


def choose(workers: list[W], cached: dict[int, int], blocks: int = 10, mean: float = 640.0) -> Choice[W]:
    return CacheAware().choose(prompt(blocks), FleetView(workers, cached, mean))


def test_the_worker_with_the_longest_prefix_wins_where_all_are_idle() -> None:
    choice = choose([W(0), W(1), W(2)], {0: 3, 2: 7})
    assert (choice.worker.index, choice.reason) == (2, "affinity")


def test_with_room_in_the_caches_a_token_is_worth_a_token() -> None:
    saved = 7 * BLOCK_TOKENS
    for waiting, expected, reason in ((saved - 1, 1, "affinity"), (saved + 1, 0, "load")):
        choice = choose([W(0, cache_fill=0), W(1, remaining_tokens=waiting, cache_fill=0)], {1: 7})
        assert (choice.worker.index, choice.reason) == (expected, reason)


def test_with_full_caches_it_costs_the_one_that_it_evicts_too() -> None:
    saved = int((1 + EVICTION) * 7 * BLOCK_TOKENS)
    for waiting, expected in ((saved - 1, 1), (saved + 1, 0)):
        workers = [W(0, recent_new_tokens=5), W(1, remaining_tokens=waiting, recent_new_tokens=5)]
        assert choose(workers, {1: 7}).worker.index == expected


def test_a_worker_that_got_most_of_the_new_tokens_of_late_is_dearer() -> None:
    """Of two workers, 1 got all of them: its λ is 1 + 2 · 2 = 5, that of the other 1 + 2."""
    workers = [W(0), W(1, recent_new_tokens=9)]
    assert choose(workers, {1: 3}).worker.index == 0, "10 · 3 against 7 · 5"
    assert choose(workers, {1: 5}).worker.index == 1, "10 · 3 against 5 · 5"


def test_what_is_predicted_gone_but_not_for_long_counts_in_part() -> None:
    workers = [W(0, cache_fill=0), W(1, cache_fill=0)]
    view = FleetView(workers, {0: 2}, 640.0, {0: 2, 1: 8})
    assert CacheAware().choose(prompt(10), view).worker.index == 1, "8 · 0.3 = 2.4 blocks against 2"
    view = FleetView(workers, {0: 3}, 640.0, {0: 3, 1: 8})
    assert CacheAware().choose(prompt(10), view).worker.index == 0, "against 3"


def test_a_lone_chat_stays_where_it_is_warm_in_a_fleet_of_any_size() -> None:
    """The fleet's tokens of late were its own. 10 · 2.5 against 4 · (1 + 3 · 1.5), though there are 50 workers."""
    workers = [W(index) for index in range(50)]
    workers[17].recent_new_tokens = 9
    assert choose(workers, {17: 6}).worker.index == 17


def test_once_nobody_is_idle_the_prefix_weighs_more() -> None:
    """Half of the mean request waits everywhere: λ is 1 + 2 · 0.5."""
    waiting = 320
    for difference, expected in ((2 * 7 * BLOCK_TOKENS - 1, 1), (2 * 7 * BLOCK_TOKENS + 1, 0)):
        workers = [
            W(0, remaining_tokens=waiting, cache_fill=0),
            W(1, remaining_tokens=waiting + difference, cache_fill=0),
        ]
        assert choose(workers, {1: 7}, mean=640.0).worker.index == expected


def test_a_prefix_that_all_hold_does_not_count() -> None:
    choice = choose([W(0, remaining_tokens=1), W(1)], {0: 10, 1: 10})
    assert choice.worker.index == 1


def test_running_requests_count_a_little() -> None:
    assert choose([W(0, in_flight=1), W(1)], {}).worker.index == 1
    assert choose([W(0, in_flight=1), W(1)], {0: 3}).worker.index == 0


def test_cold_prompts_spread_and_alike_ones_meet() -> None:
    workers = [W(index) for index in range(4)]
    view = FleetView(workers, dict[int, int](), 0.0)
    places = Counter()  # type: Counter[int]
    for number in range(400):
        text = b"%4d" % number
        choices = {CacheAware().choose(prompt(blocks, text), view).worker.index for blocks in (1, 2, 8)}
        assert len(choices) == 1, "prompts that begin alike go to one worker"
        places[choices.pop()] += 1
    assert min(places.values()) > 60, "100 each are expected"
    assert CacheAware().choose(prompt(3), view).reason == "cold"


def test_prompts_shorter_than_a_block_spread_too() -> None:
    view = FleetView([W(index) for index in range(4)], dict[int, int](), 0.0)
    places = {CacheAware().choose(hash_blocks(b"hello %d" % number), view).worker.index for number in range(40)}
    assert places == {0, 1, 2, 3}


def test_behind_a_prefix_that_all_hold_the_next_block_decides() -> None:
    workers = [W(index) for index in range(4)]
    places = set()
    for number in range(40):
        blocks = hash_blocks(b"s" * BLOCK_BYTES + b"%4d" % number * (BLOCK_BYTES // 4))
        view = FleetView(workers, {worker.index: 1 for worker in workers}, 0.0)
        places.add(CacheAware().choose(blocks, view).worker.index)
    assert places == {0, 1, 2, 3}


def test_round_robin_takes_turns_and_skips_who_is_away() -> None:
    policy = POLICIES["round_robin"]()
    all_three = [W(0), W(1), W(2)]

    def turn(workers: list[W]) -> int:
        return policy.choose(prompt(1), FleetView(workers, dict[int, int](), 0.0)).worker.index

    assert [turn(all_three) for _ in range(4)] == [0, 1, 2, 0]
    assert [turn([all_three[0], all_three[2]]) for _ in range(3)] == [2, 0, 2]
    assert turn(all_three) == 0


def test_least_load_counts_requests_then_tokens() -> None:
    policy = POLICIES["least_load"]()
    workers = [W(0, in_flight=2), W(1, in_flight=1, remaining_tokens=9), W(2, in_flight=1, remaining_tokens=3)]
    assert policy.choose(prompt(1), FleetView(workers, {0: 1}, 0.0)).worker.index == 2


@pytest.mark.parametrize("name", ["random", "least_load"])
def test_ties_are_spread(name: str) -> None:
    view = FleetView([W(0), W(1), W(2)], dict[int, int](), 0.0)
    assert {POLICIES[name]().choose(prompt(1), view).worker.index for _ in range(200)} == {0, 1, 2}


def test_two_routers_that_share_nothing_agree_on_cold_prompts() -> None:
    one, other = [W(0), W(1), W(2)], [W(2), W(0), W(1)]  # not even in the same order
    for number in range(50):
        blocks = prompt(2, b"%4d" % number)
        chosen = {
            CacheAware().choose(blocks, FleetView(workers, dict[int, int](), 0.0)).worker.index
            for workers in (one, other)
        }
        assert len(chosen) == 1


def test_power_of_two_never_takes_the_most_loaded_of_three() -> None:
    policy = POLICIES["power_of_two"]()
    view = FleetView([W(0, in_flight=1), W(1, in_flight=2), W(2, in_flight=3)], dict[int, int](), 0.0)
    chosen = Counter(policy.choose(prompt(1), view).worker.index for _ in range(300))
    assert set(chosen) == {0, 1}
    assert chosen[0] > chosen[1], "0 wins two of the three pairs"


def test_power_of_two_with_one_worker() -> None:
    assert POLICIES["power_of_two"]().choose(prompt(1), FleetView([W(0)], dict[int, int](), 0.0)).worker.index == 0


def test_prefix_hash_sends_alike_prompts_to_one_worker_until_it_is_over_the_bound() -> None:
    policy = POLICIES["prefix_hash"]()
    workers = [W(index) for index in range(4)]
    view = FleetView(workers, dict[int, int](), 0.0)
    favourite = policy.choose(prompt(2), view).worker
    assert policy.choose(prompt(8), view) == Choice(favourite, "affinity")
    # 8 in flight with this one, 2 each on average: the bound is ceil(1.25 * 8 / 4) = 3.
    favourite.in_flight = 2
    for worker in workers:
        if worker is not favourite:
            worker.in_flight = 2
    workers[favourite.index - 1].in_flight = 1
    assert policy.choose(prompt(2), view).worker is favourite
    favourite.in_flight = 3
    spilled = policy.choose(prompt(2), view)
    assert spilled.worker is not favourite
    assert spilled.reason == "load"


def test_prefix_hash_looks_behind_what_all_workers_hold() -> None:
    policy = POLICIES["prefix_hash"]()
    workers = [W(index) for index in range(4)]
    held = {worker.index: 1 for worker in workers}
    places = {
        policy.choose(
            hash_blocks(b"s" * BLOCK_BYTES + b"%4d" % number * (BLOCK_BYTES // 4)), FleetView(workers, held, 0.0)
        ).worker.index
        for number in range(40)
    }
    assert places == {0, 1, 2, 3}


def test_a_worker_that_is_slower_costs_more_for_the_same_work() -> None:
    """Half as fast: 3 cached blocks of 10 leave 7 · 2 there, against 10 elsewhere."""
    workers = [W(0, slowness=2.0, cache_fill=0), W(1, cache_fill=0)]
    assert choose(workers, {0: 4}).worker.index == 1, "6 · 2 against 10"
    assert choose(workers, {0: 6}).worker.index == 0, "4 · 2 against 10"
    waiting = [W(0, slowness=2.0, remaining_tokens=400), W(1, remaining_tokens=700)]
    assert choose(waiting, {0: 10, 1: 10}).worker.index == 1, "400 tokens take it as long as others 800"


@pytest.mark.parametrize("blocks", [0, 8])
def test_forty_prompts_one_after_the_other_fill_an_idle_fleet_evenly(blocks: int) -> None:
    fleet = fleet_of(*(f"http://worker-{index}" for index in range(4)))
    for worker in fleet.workers:
        worker.state = State.READY
    for capacity in (None, 5000):
        routing = Routing(fleet, PrefixTree(10**6), "cache_aware", CacheAware())
        counts = Counter[int]()
        for number in range(40):
            if capacity is not None:
                fleet.workers[number % 4].retention.start_at(capacity)
            text = b"%8d" % (number + (capacity or 0)) * (1 + blocks * BLOCK_BYTES // 8)
            placement = routing.place(hash_blocks(text))
            assert placement is not None
            assert len(placement.prompt.hashes) == blocks
            placement.first_byte()
            placement.release()
            counts[placement.worker.index] += 1
        assert sorted(counts.values()) == pytest.approx([10] * 4, abs=1)


def test_a_prompt_that_all_hold_is_not_pinned_to_one() -> None:
    """A system prompt of 20 blocks everywhere, and questions that each add two blocks of their own."""
    routing = Routing(
        fleet_of(*(f"http://worker-{index}" for index in range(4))), PrefixTree(10**6), "", CacheAware()
    )
    for worker in routing.fleet.workers:
        worker.state = State.READY
        routing.follow(worker, prompt(20, b"system..").hashes, 20 * BLOCK_TOKENS)
    counts = Counter[int]()
    for number in range(40):
        blocks = hash_blocks(b"system.." * (20 * BLOCK_BYTES // 8) + b"%8d" % number * (2 * BLOCK_BYTES // 8))
        placement = routing.place(blocks)
        assert placement is not None
        assert placement.captured == 20 * BLOCK_TOKENS
        placement.release()
        counts[placement.worker.index] += 1
    assert sorted(counts.values()) == pytest.approx([10] * 4, abs=1)


def test_routers_with_one_view_do_not_all_choose_the_same_worker_in_one_instant() -> None:
    """Worker 0 has a request less than the others, and none of twelve routers knows of the others' choices."""
    workers = [W(0, in_flight=1), *(W(index, in_flight=2) for index in range(1, 4))]
    views = [FleetView(workers, dict[int, int](), 640.0, has_peers=has_peers) for has_peers in (False, True)]
    prompts = [prompt(10, b"%8d" % number) for number in range(12)]
    alone, together = (Counter(CacheAware().choose(each, view).worker.index for each in prompts) for view in views)
    assert alone == {0: 12}, "one router would have seen its own choices"
    assert max(together.values()) <= 6
    assert len(together) == 4


def test_routers_with_one_view_send_one_prompt_to_one_worker() -> None:
    workers = [W(index, in_flight=index % 2) for index in range(4)]
    view = FleetView(workers, dict[int, int](), 640.0, has_peers=True)
    assert len({CacheAware().choose(prompt(10), view).worker.index for _ in range(3)}) == 1


def test_what_peers_may_have_done_does_not_outweigh_a_warm_cache() -> None:
    view = FleetView([W(index) for index in range(4)], {2: 10}, 640.0, has_peers=True)
    for number in range(20):
        assert CacheAware().choose(prompt(20, b"%8d" % number), view).worker.index == 2


def test_a_session_stays_on_its_worker_whatever_the_load() -> None:
    policy = POLICIES["session"]()
    workers = [W(index) for index in range(3)]
    view = FleetView(workers, dict[int, int](), 0.0)
    first = policy.choose(prompt(2)._replace(session=7), view).worker
    first.remaining_tokens = 10**6
    again = policy.choose(prompt(5, b"other")._replace(session=7), view)
    assert (again.worker, again.reason) == (first, "session")
    elsewhere = policy.choose(prompt(5, b"other")._replace(session=8), view)
    assert elsewhere.worker is not first
    assert policy.choose(prompt(5, b"other"), view).worker is not first, "no session: by cache and load"


def test_a_session_whose_worker_is_away_is_pinned_anew() -> None:
    policy = POLICIES["session"]()
    workers = [W(index) for index in range(3)]
    keyed = prompt(2)._replace(session=7)
    first = policy.choose(keyed, FleetView(workers, dict[int, int](), 0.0)).worker
    rest = [worker for worker in workers if worker is not first]
    moved = policy.choose(keyed, FleetView(rest, dict[int, int](), 0.0)).worker
    assert moved is not first
    assert policy.choose(keyed, FleetView(workers, dict[int, int](), 0.0)).worker is moved
