"""Each peer's rule on fleets small enough to work out by hand.

Prompts are of 64-token blocks: `prompt("abc")` has three, and shares two with `prompt("abx")`.
"""

from array import array
from collections import Counter
from dataclasses import dataclass
from typing import NoReturn

import pytest
from warmroute_loadtest.simulator.baselines import BASELINES, Baseline
from warmroute_loadtest.simulator.baselines.aibrix import AibrixPrefixCache
from warmroute_loadtest.simulator.baselines.dynamo import DynamoKv
from warmroute_loadtest.simulator.baselines.in_flight import PendingPrefill, RunningBlocks
from warmroute_loadtest.simulator.baselines.kubeai import KubeaiPrefixHash
from warmroute_loadtest.simulator.baselines.llm_d import LlmD
from warmroute_loadtest.simulator.baselines.lmetric import LMetric
from warmroute_loadtest.simulator.baselines.production_stack import LoadAware, PrefixAware
from warmroute_loadtest.simulator.baselines.ray import RayPrefixAffinity
from warmroute_loadtest.simulator.baselines.sent_blocks import SentBlocks
from warmroute_loadtest.simulator.baselines.sglang import SglangCacheAware
from warmroute_loadtest.simulator.baselines.smg import SmgCacheAware
from warmroute_loadtest.simulator.baselines.vllm_router import VllmRouterCacheAware
from warmroute_router.blocks import PromptBlocks
from warmroute_router.policies import FleetView
from xxhash import xxh3_64_intdigest, xxh64_intdigest

BLOCK = 64
BLOCK_CHARS = 4 * BLOCK


class ForbiddenMapping(dict[int, int]):
    """What our own tree knows: no peer may ask it."""

    def __getitem__(self, key: int) -> NoReturn:
        raise AssertionError("a baseline looked at cached_blocks")

    def get(self, key: int, default: object = None) -> NoReturn:
        raise AssertionError("a baseline looked at cached_blocks")


@dataclass
class W:
    index: int
    in_flight: int = 0

    @property
    def url(self) -> str:
        return f"http://worker-{self.index}"

    @property
    def remaining_tokens(self) -> int:
        raise AssertionError("a baseline looked at remaining_tokens")

    @property
    def slowness(self) -> float:
        raise AssertionError("a baseline looked at slowness")

    @property
    def recent_new_tokens(self) -> float:
        raise AssertionError("a baseline looked at recent_new_tokens")

    @property
    def cache_fill(self) -> float:
        raise AssertionError("a baseline looked at cache_fill")


def fleet(*in_flight: int) -> list[W]:
    return [W(index, load) for index, load in enumerate(in_flight)]


def prompt(blocks: str, tail: int = 0) -> PromptBlocks:
    """One block for each letter, and `tail` tokens that fill no block."""
    hashes = array("Q", (xxh3_64_intdigest(blocks[: end + 1].encode()) for end in range(len(blocks))))
    digest = xxh3_64_intdigest(f"{blocks} {tail}".encode())
    return PromptBlocks(hashes, digest, len(blocks) * BLOCK + tail, BLOCK)


def send(baseline: Baseline, blocks: str, worker: int, now: float = 0.0, tail: int = 0) -> None:
    """A whole request: sent, computed and answered at once."""
    start(baseline, blocks, worker, now, tail)
    finish(baseline, blocks, worker, now, tail)


def start(baseline: Baseline, blocks: str, worker: int, now: float = 0.0, tail: int = 0) -> None:
    baseline.dispatched(prompt(blocks, tail), W(worker), now)


def finish(baseline: Baseline, blocks: str, worker: int, now: float = 0.0, tail: int = 0) -> None:
    baseline.first_byte(prompt(blocks, tail), W(worker), now)
    baseline.ended(prompt(blocks, tail), W(worker), now)


def choose(baseline: Baseline, blocks: str, workers: list[W], tail: int = 0) -> tuple[int, str]:
    choice = baseline.choose(prompt(blocks, tail), FleetView(workers, ForbiddenMapping(), 0.0))
    return choice.worker.index, choice.reason


def chosen(baseline: Baseline, blocks: str, workers: list[W], times: int = 200) -> set[int]:
    """All that a rule with random ties may answer."""
    return {choose(baseline, blocks, workers)[0] for _ in range(times)}


class TestSentBlocks:
    def test_the_match_is_the_longest_common_head(self) -> None:
        sent = SentBlocks()
        sent.add(prompt("abcde").hashes, 0, 0.0)
        sent.add(prompt("abx").hashes, 0, 0.0)
        for blocks, matched in [("abcde", 5), ("abcdefgh", 5), ("abcx", 3), ("abxyz", 3), ("b", 0), ("", 0)]:
            assert sent.match(prompt(blocks).hashes, 0) == matched
        assert sent.match(prompt("abc").hashes, 1) == 0
        assert (sent.held(0), sent.held(1), sent.blocks) == (6, 0, 6)

    def test_the_longest_match_of_a_fleet_names_all_who_have_it(self) -> None:
        sent = SentBlocks()
        sent.add(prompt("ab").hashes, 0, 0.0)
        sent.add(prompt("abc").hashes, 1, 0.0)
        sent.add(prompt("abd").hashes, 2, 0.0)
        workers = fleet(0, 0, 0)
        assert sent.longest(prompt("abx").hashes, workers) == (2, workers)
        assert sent.longest(prompt("abcx").hashes, workers) == (3, [workers[1]])
        assert sent.longest(prompt("z").hashes, workers) == (0, workers)

    def test_the_oldest_goes_first_and_of_a_prompt_its_end(self) -> None:
        sent = SentBlocks()
        sent.add(prompt("abcd").hashes, 0, 0.0)
        sent.add(prompt("xyz").hashes, 0, 1.0)
        assert [block for _, block in sent.trim(0, 5)] == [prompt("abcd").hashes[3], prompt("abcd").hashes[2]]
        sent.add(prompt("ab").hashes, 0, 2.0)
        sent.trim(0, 3)
        assert sent.match(prompt("abcd").hashes, 0) == 2
        assert sent.match(prompt("xyz").hashes, 0) == 1

    def test_a_common_bound_takes_from_whoever_has_the_oldest(self) -> None:
        sent = SentBlocks()
        sent.add(prompt("abc").hashes, 0, 0.0)
        sent.add(prompt("abc").hashes, 1, 0.0)
        sent.add(prompt("xy").hashes, 0, 0.0)
        sent.trim_all(4)
        assert (sent.held(0), sent.held(1), sent.blocks) == (2, 2, 4)
        assert sent.match(prompt("abc").hashes, 0) == 0
        assert sent.match(prompt("abc").hashes, 1) == 2

    def test_blocks_expire_by_their_last_use(self) -> None:
        sent = SentBlocks()
        sent.add(prompt("abc").hashes, 0, 0.0)
        sent.add(prompt("a").hashes, 0, 5.0)
        sent.expire(0.0)
        assert sent.match(prompt("abc").hashes, 0) == 3
        sent.expire(5.0)
        assert sent.match(prompt("abc").hashes, 0) == 1
        assert sent.blocks == 1

    def test_a_forgotten_worker_holds_nothing(self) -> None:
        sent = SentBlocks()
        sent.add(prompt("ab").hashes, 0, 0.0)
        sent.add(prompt("a").hashes, 1, 0.0)
        assert len(sent.forget(0)) == 2
        assert (sent.held(0), sent.blocks, sent.holders(prompt("a").hashes[0])) == (0, 1, [1])


class TestInFlight:
    def test_shared_blocks_count_once_and_each_request_has_one_of_its_own(self) -> None:
        running = RunningBlocks()
        running.begin(prompt("abc"), W(0))
        running.begin(prompt("abd"), W(0))
        assert running.blocks(0) == 4 + 2
        assert running.blocks_with(prompt("abde").hashes, 0) == 6 + 1 + 1
        running.finish(prompt("abc"), W(0))
        assert running.blocks(0) == 3 + 1
        running.finish(prompt("abd"), W(0))
        assert running.blocks(0) == 0

    def test_equal_prompts_keep_the_sum_right(self) -> None:
        pending = PendingPrefill()
        pending.begin(prompt("ab"), W(0), 128)
        pending.begin(prompt("ab"), W(0), 0)
        assert (pending.requests[0], pending.tokens[0]) == (2, 128)
        pending.finish(prompt("ab"), W(0))
        pending.finish(prompt("ab"), W(0))
        assert (pending.requests[0], pending.tokens[0]) == (0, 0)


@pytest.mark.parametrize("make", [SglangCacheAware, VllmRouterCacheAware])
class TestSglang:
    def test_cold_prompts_go_to_the_lowest_index_of_the_idlest(self, make: type[SglangCacheAware]) -> None:
        assert choose(make(), "ab", fleet(0, 0, 0)) == (0, "cold")
        assert choose(make(), "ab", fleet(2, 1, 1)) == (1, "cold")

    def test_the_match_must_exceed_three_tenths(self, make: type[SglangCacheAware]) -> None:
        router = make()
        send(router, "abc", 2)
        assert choose(router, "abcdefghij", fleet(0, 0, 0)) == (0, "load")
        assert choose(router, "abcdefghi", fleet(0, 0, 0)) == (2, "affinity")

    def test_the_tail_of_the_prompt_counts_in_its_length(self, make: type[SglangCacheAware]) -> None:
        router = make()
        send(router, "abc", 2)
        assert choose(router, "abcdefghi", fleet(0, 0, 0), tail=63) == (2, "affinity")  # 192 / 639
        assert choose(router, "ab", fleet(0, 0, 0), tail=300) == (0, "load")  # 128 / 428

    def test_only_the_first_who_was_sent_a_block_is_remembered(self, make: type[SglangCacheAware]) -> None:
        router = make()
        send(router, "ab", 1)
        send(router, "abc", 2)
        assert choose(router, "ab", fleet(0, 60, 0)) == (1, "affinity")
        assert choose(router, "abc", fleet(0, 60, 0)) == (2, "affinity")
        assert choose(router, "abx", fleet(0, 60, 0)) == (1, "affinity")

    def test_affinity_holds_up_to_64_more_than_the_idlest(self, make: type[SglangCacheAware]) -> None:
        router = make()
        send(router, "ab", 1)
        assert choose(router, "ab", fleet(0, 64)) == (1, "affinity")
        assert choose(router, "ab", fleet(0, 65)) == (0, "load")

    def test_and_beyond_while_it_is_at_most_half_as_much_again(self, make: type[SglangCacheAware]) -> None:
        router = make()
        send(router, "ab", 1)
        assert choose(router, "ab", fleet(200, 300)) == (1, "affinity")
        assert choose(router, "ab", fleet(200, 301)) == (0, "load")

    def test_any_busy_worker_turns_affinity_off_for_all(self, make: type[SglangCacheAware]) -> None:
        router = make()
        send(router, "ab", 1)
        assert choose(router, "ab", fleet(0, 0, 65)) == (0, "load")

    def test_a_tenant_that_is_gone_loses_all_and_the_first_worker_takes_over(
        self, make: type[SglangCacheAware]
    ) -> None:
        router = make()
        send(router, "ab", 1)
        send(router, "abc", 2)
        assert choose(router, "ab", [W(0, 5), W(2)]) == (0, "load")
        # Worker 2 was sent the block too, and is what the tree has left.
        assert choose(router, "ab", fleet(0, 0, 0)) == (2, "affinity")

    def test_the_bound_is_one_for_each_worker(self, make: type[SglangCacheAware]) -> None:
        router = make(max_tree_chars=3 * BLOCK_CHARS)
        send(router, "abc", 1)
        send(router, "xyz", 2)
        assert choose(router, "abc", fleet(0, 0, 0)) == (1, "affinity")
        send(router, "n", 1)
        assert choose(router, "c", fleet(0, 0, 0)) == (0, "cold")
        assert choose(router, "abc", fleet(0, 0, 0)) == (1, "affinity")  # two of three are left
        send(router, "mno", 1)
        assert choose(router, "abc", fleet(0, 0, 0)) == (0, "cold")
        assert choose(router, "xyz", fleet(0, 0, 0)) == (2, "affinity")

    def test_the_heir_of_an_evicted_tenant_is_another_holder(self, make: type[SglangCacheAware]) -> None:
        router = make(max_tree_chars=2 * BLOCK_CHARS)
        for worker in (2, 3, 1):
            send(router, "ab", worker)
        send(router, "xy", 2)
        assert choose(router, "ab", fleet(0, 0, 0, 0)) == (1, "affinity")


class TestVllmRouterSessions:
    def of_session(self, blocks: str, session: int = 7) -> PromptBlocks:
        return prompt(blocks)._replace(session=session)

    def choose(self, router: Baseline, asked: PromptBlocks, workers: list[W]) -> int:
        return router.choose(asked, FleetView(workers, ForbiddenMapping(), 0.0)).worker.index

    def test_a_session_stays_where_it_was_whatever_the_tree_says(self) -> None:
        router = VllmRouterCacheAware()
        send(router, "abc", 0)
        router.dispatched(self.of_session("xyz"), W(2), 0.0)
        assert self.choose(router, self.of_session("abc"), fleet(0, 0, 64)) == 2
        assert self.choose(router, self.of_session("abc", session=8), fleet(0, 0, 64)) == 0
        assert self.choose(router, prompt("xyz"), fleet(0, 0, 64)) == 2

    def test_imbalance_comes_first_and_the_session_moves(self) -> None:
        router = VllmRouterCacheAware()
        router.dispatched(self.of_session("xyz"), W(2), 0.0)
        assert self.choose(router, self.of_session("xyz"), fleet(1, 0, 65)) == 1
        router.dispatched(self.of_session("xyz"), W(1), 1.0)
        assert self.choose(router, self.of_session("n"), fleet(0, 0, 0)) == 1

    def test_a_session_ends_after_an_hour_or_with_its_worker(self) -> None:
        router = VllmRouterCacheAware()
        router.dispatched(self.of_session("xyz"), W(2), 0.0)
        assert self.choose(router, self.of_session("n"), [W(0), W(1)]) == 0
        send(router, "a", 0, now=3600.0)
        assert self.choose(router, self.of_session("n"), fleet(0, 0, 0)) == 2
        send(router, "a", 0, now=3600.1)
        assert self.choose(router, self.of_session("n"), fleet(0, 0, 0)) == 0


class TestSmg:
    def test_the_least_loaded_of_all_holders_of_the_longest_match(self) -> None:
        router = SmgCacheAware()
        for worker in (1, 2, 3):
            send(router, "ab", worker)
        send(router, "a", 0)
        assert choose(router, "abc", fleet(0, 3, 2, 4)) == (2, "affinity")
        assert chosen(router, "abc", fleet(0, 2, 2, 4)) == {1, 2}

    def test_gates_are_sglangs_but_ties_are_random(self) -> None:
        router = SmgCacheAware()
        send(router, "abc", 2)
        assert choose(router, "abc", fleet(0, 1, 64)) == (2, "affinity")
        assert choose(router, "abc", fleet(0, 1, 65)) == (0, "load")
        assert chosen(router, "abc", fleet(0, 0, 65)) == {0, 1}
        assert chosen(router, "abcdefghij", fleet(0, 0, 0)) == {0, 1, 2}  # exactly 0.3
        assert choose(router, "abcdefghij", fleet(1, 0, 1)) == (1, "load")
        assert choose(router, "xyz", fleet(1, 0, 1)) == (1, "cold")

    def test_the_bound_is_one_for_all_workers(self) -> None:
        router = SmgCacheAware(max_tree_chars=4 * BLOCK_CHARS)
        send(router, "abc", 1)
        send(router, "xyz", 2)
        assert choose(router, "xyz", fleet(0, 0, 0)) == (2, "affinity")
        assert choose(router, "a", fleet(0, 0, 0)) == (1, "affinity")
        assert choose(router, "abcdefg", fleet(0, 1, 1)) == (0, "load")  # one block of seven is left


class TestLlmD:
    def test_an_idle_fleet_goes_by_prefix_and_ties_at_random(self) -> None:
        router = LlmD()
        assert chosen(router, "ab", fleet(0, 0, 0)) == {0, 1, 2}
        send(router, "ab", 1)
        assert choose(router, "abc", fleet(0, 0, 0)) == (1, "affinity")

    def test_a_queue_weighs_as_much_as_two_thirds_of_the_prompt(self) -> None:
        router = LlmD()
        send(router, "abcdefgh", 1)
        start(router, "z", 1)  # the only one waiting: its queue score is 0, everyone else's 1
        kv = 2 * (2 / 31_250)
        assert 3 * 6 / 8 - kv > 2 > 3 * 5 / 8
        assert choose(router, "abcdefxy", fleet(0, 0)) == (1, "affinity")
        assert choose(router, "abcdexyz", fleet(0, 0)) == (0, "load")

    def test_a_queue_ends_with_the_first_byte(self) -> None:
        router = LlmD()
        send(router, "abcde", 1)
        start(router, "z", 1)
        assert choose(router, "abcxyzuvw", fleet(0, 0)) == (0, "load")
        router.first_byte(prompt("z"), W(1), 1.0)
        assert choose(router, "abcxyzuvw", fleet(0, 0)) == (1, "affinity")

    def test_queues_are_scaled_between_the_shortest_and_the_longest(self) -> None:
        router = LlmD()
        send(router, "abcd", 1)
        for _ in range(3):
            start(router, "z", 1)
        for _ in range(4):
            start(router, "z", 2)
        # Queues 0, 3, 4: worker 1 scores 2 · 1/4 of 2, so that a full match is worth it and half a match is not.
        assert choose(router, "abcd", fleet(0, 0, 0)) == (1, "affinity")
        assert choose(router, "abuv", fleet(0, 0, 0)) == (0, "load")
        # Of workers 1 and 2 alone, the first has the shortest queue: 2 · 1 on top of its match, and not 2 · 1/4.
        send(router, "mnop", 2)
        assert choose(router, "mnuv", [W(1), W(2)]) == (1, "load")

    def test_kv_use_is_the_distinct_blocks_in_flight_over_the_engines(self) -> None:
        router = LlmD(engine_tokens=10 * BLOCK)
        send(router, "a", 1)
        start(router, "a", 1)
        router.first_byte(prompt("a"), W(1), 0.0)
        start(router, "a", 1)
        router.first_byte(prompt("a"), W(1), 0.0)
        # One block shared and one for each of the two: 3 of 10, which costs 0.6.
        assert choose(router, "abcd", fleet(0, 0)) == (1, "affinity")  # 3 / 4
        assert choose(router, "abcdef", fleet(0, 0)) == (0, "load")  # 3 / 6
        router.ended(prompt("a"), W(1), 1.0)
        assert choose(router, "abcdef", fleet(0, 0)) == (1, "affinity")  # 0.5 against 0.4

    def test_the_lru_is_the_engines_size_for_each_worker(self) -> None:
        router = LlmD(engine_tokens=3 * BLOCK)
        send(router, "abc", 0)
        send(router, "xyz", 1)
        send(router, "n", 0)
        assert choose(router, "abc", fleet(0, 0)) == (0, "affinity")
        send(router, "uvw", 0)
        assert chosen(router, "abc", fleet(0, 0)) == {0, 1}
        assert choose(router, "xyz", fleet(0, 0)) == (1, "affinity")

    def test_prompts_are_matched_up_to_a_length(self) -> None:
        router = LlmD(max_prefix_tokens=2 * BLOCK)
        send(router, "abc", 0)
        send(router, "abx", 1)
        assert chosen(router, "abc", fleet(0, 0)) == {0, 1}

    def test_a_prompt_without_a_full_block_goes_anywhere(self) -> None:
        assert chosen(LlmD(), "", fleet(0, 0)) == {0, 1}


class TestPrefixAware:
    def test_any_holder_of_the_longest_match_whatever_its_load(self) -> None:
        router = PrefixAware()
        send(router, "abc", 1)
        send(router, "abd", 2)
        assert chosen(router, "abx", fleet(0, 500, 900)) == {1, 2}
        assert choose(router, "abcx", fleet(0, 500, 0)) == (1, "affinity")
        assert chosen(router, "x", fleet(0, 500, 900)) == {0, 1, 2}

    def test_the_draw_is_uniform(self) -> None:
        router = PrefixAware()
        counts = Counter(choose(router, "x", fleet(0, 0, 0, 0))[0] for _ in range(4000))
        assert all(850 < count < 1150 for count in counts.values())

    def test_a_short_match_goes_to_the_fewest_requests_of_the_last_minute(self) -> None:
        router = PrefixAware(prefix_min_match_length=2 * BLOCK_CHARS)
        send(router, "ab", 0, now=0.0)
        send(router, "z", 1, now=30.0)
        assert choose(router, "ax", fleet(9, 9, 9)) == (2, "load")
        assert choose(router, "abx", fleet(9, 9, 9)) == (0, "affinity")
        send(router, "y", 0, now=59.9)
        send(router, "y", 2, now=59.9)
        assert choose(router, "ax", fleet(9, 9, 9)) == (1, "load")  # two, one, one
        send(router, "y", 1, now=60.0)  # the request of second 0 is now a minute old
        assert choose(router, "ax", fleet(9, 9, 9)) == (0, "load")  # one, two, one


class TestLoadAware:
    def test_without_a_holder_the_fewest_requests_of_the_last_minute(self) -> None:
        router = LoadAware()
        send(router, "x", 0)
        assert choose(router, "ab", fleet(0, 9)) == (1, "cold")

    def test_a_full_hit_is_worth_half_the_mean_on_either_side(self) -> None:
        router = LoadAware()
        send(router, "abcd", 1)
        assert choose(router, "abcd", fleet(6, 13)) == (1, "affinity")  # mean 9.5: 1 − 3.5/9.5 > 3.5/9.5
        assert choose(router, "abcd", fleet(5, 15)) == (0, "load")  # mean 10: 0.5 = 0.5, and the first wins
        assert choose(router, "abcd", fleet(5, 16)) == (0, "load")

    def test_the_benefit_is_the_matched_share(self) -> None:
        router = LoadAware()
        send(router, "ab", 1)
        assert choose(router, "abcd", fleet(8, 11)) == (1, "affinity")  # mean 9.5: 3/9.5 of load for 0.5
        assert choose(router, "abcd", fleet(7, 12)) == (0, "load")  # 5/9.5

    def test_an_idle_fleet_has_a_mean_of_one(self) -> None:
        router = LoadAware()
        send(router, "abc", 1)
        assert choose(router, "abcd", fleet(0, 1)) == (0, "load")  # 0.75 for a whole request
        assert choose(router, "abc", fleet(0, 1)) == (0, "load")  # 1 for 1, and the first wins
        send(router, "xyz", 0)
        assert choose(router, "xyz", fleet(1, 0)) == (0, "affinity")  # the same

    def test_what_it_holds_is_bounded_by_the_engine(self) -> None:
        router = LoadAware(engine_tokens=2 * BLOCK)
        send(router, "ab", 1)
        send(router, "xy", 1)
        assert choose(router, "ab", fleet(0, 0)) == (0, "cold")


class TestRay:
    def test_a_tenth_of_the_prompt_is_enough(self) -> None:
        router = RayPrefixAffinity()
        send(router, "abc", 0)
        assert choose(router, "a" + "x" * 9, fleet(500, 0)) == (0, "affinity")
        assert choose(router, "a" + "x" * 10, fleet(500, 0)) == (1, "load")

    def test_of_the_holders_the_shorter_queue(self) -> None:
        router = RayPrefixAffinity()
        send(router, "ab", 1)
        send(router, "ab", 2)
        assert choose(router, "abc", fleet(0, 4, 3)) == (2, "affinity")
        assert choose(router, "abc", fleet(0, 3, 3)) == (1, "affinity")

    def test_a_miss_goes_to_the_least_text_whatever_its_queue(self) -> None:
        router = RayPrefixAffinity()
        send(router, "abc", 0)
        send(router, "xyz", 1)
        send(router, "uv", 2)
        assert choose(router, "n", fleet(0, 0, 900)) == (2, "cold")
        send(router, "w", 2)
        assert choose(router, "n", fleet(2, 1, 900)) == (1, "cold")

    def test_beyond_the_threshold_two_at_random_and_the_shorter_queue(self) -> None:
        router = RayPrefixAffinity(imbalanced_threshold=10)
        send(router, "ab", 2)
        assert choose(router, "ab", fleet(0, 5, 10)) == (2, "affinity")
        assert choose(router, "ab", fleet(0, 5, 11))[1] == "load"
        assert chosen(router, "ab", fleet(0, 5, 11)) == {0, 1}

    def test_there_is_always_one_to_choose(self) -> None:
        assert choose(RayPrefixAffinity(), "ab", fleet(3)) == (0, "cold")


class TestAibrix:
    def test_the_best_match_within_one_deviation_of_the_mean(self) -> None:
        router = AibrixPrefixCache()
        send(router, "abc", 2)
        send(router, "ab", 1)
        # Loads 0 4 6: mean 10/3, deviation of the sample √(56/3 / 2) = 3.06, so 6 is within 6.39.
        assert choose(router, "abc", fleet(0, 4, 6)) == (2, "affinity")
        # Loads 0 2 6: mean 8/3, deviation √(56/3 / 2) = 3.06, so 6 is beyond 5.72 and the shorter match has it.
        assert choose(router, "abc", fleet(0, 2, 6)) == (1, "affinity")

    def test_with_every_match_too_busy_the_fewest_requests(self) -> None:
        router = AibrixPrefixCache()
        send(router, "abc", 3)
        assert chosen(router, "abc", fleet(0, 0, 0, 4)) == {0, 1, 2}
        assert choose(router, "abc", fleet(1, 0, 1, 8)) == (1, "load")

    def test_equal_matches_go_by_load_and_then_at_random(self) -> None:
        router = AibrixPrefixCache()
        for worker in (0, 1, 2):
            send(router, "ab", worker)
        assert choose(router, "abc", fleet(2, 1, 3)) == (1, "affinity")
        assert chosen(router, "abc", fleet(2, 1, 1)) == {1, 2}

    def test_matches_are_compared_in_whole_percents(self) -> None:
        router = AibrixPrefixCache()
        long = "".join(chr(0x100 + at) for at in range(300))
        send(router, long[:150], 0)
        send(router, long[:152], 1)
        assert choose(router, long, fleet(0, 1)) == (0, "affinity")  # 50 and 50
        send(router, long[:153], 1)
        assert choose(router, long, fleet(0, 0)) == (1, "affinity")  # 50 and 51

    def test_a_gap_of_more_than_eight_restricts_it_to_the_idlest(self) -> None:
        router = AibrixPrefixCache()
        send(router, "abc", 1)
        send(router, "a", 0)
        assert choose(router, "abc", fleet(0, 1, 8)) == (1, "affinity")
        assert choose(router, "abc", fleet(0, 1, 9)) == (0, "affinity")
        assert choose(router, "xyz", fleet(1, 0, 9)) == (1, "load")

    def test_the_other_gate_also_asks_for_twice_the_mean_and_one(self) -> None:
        router = BASELINES["aibrix_mean_gate"](10**6)
        send(router, "abc", 1)
        send(router, "a", 0)
        assert choose(router, "abc", fleet(0, 1, 7)) == (1, "affinity")  # the gap is below 8
        assert choose(router, "abc", fleet(0, 1, 8)) == (1, "affinity")  # 8 = 2 · (3 + 1)
        assert choose(router, "abc", fleet(0, 1, 11)) == (0, "affinity")  # 11 > 2 · (4 + 1)

    def test_blocks_go_by_number_and_by_age(self) -> None:
        router = AibrixPrefixCache(max_blocks=3)
        send(router, "abc", 1)
        send(router, "xyz", 2)
        assert choose(router, "abc", fleet(0, 1, 1)) == (0, "cold")
        router = AibrixPrefixCache()
        send(router, "abc", 1, now=0.0)
        send(router, "x", 2, now=1200.0)
        assert choose(router, "abc", fleet(0, 0, 0)) == (1, "affinity")
        send(router, "x", 2, now=1200.1)
        assert choose(router, "abc", fleet(0, 1, 1)) == (0, "cold")

    def test_a_fleet_of_one(self) -> None:
        router = AibrixPrefixCache()
        send(router, "ab", 0)
        assert choose(router, "ab", fleet(7)) == (0, "affinity")


class TestKubeai:
    def owner(self, blocks: str, workers: list[W], skip: tuple[int, ...] = ()) -> int:
        """The ring, worked out another way: of all points the least far clockwise from the key."""
        place = xxh64_intdigest(prompt(blocks).hashes[0].to_bytes(8, "little"))
        points = [
            ((xxh64_intdigest(f"{worker.url}{point}".encode()) - place) % 2**64, worker.index)
            for worker in workers
            for point in range(256)
            if worker.index not in skip
        ]
        return min(points)[1]

    def test_prompts_with_one_first_block_share_the_worker_at_their_place(self) -> None:
        router, workers = KubeaiPrefixHash(), fleet(0, 0, 0, 0)
        for first in "abcdefghijklmnop":
            owner = self.owner(first, workers)
            assert choose(router, first + "x", workers) == (owner, "affinity")
            assert choose(router, first + "yz", workers) == (owner, "affinity")

    def test_keys_spread(self) -> None:
        router, workers = KubeaiPrefixHash(), fleet(0, 0, 0, 0)
        counts = Counter(choose(router, chr(0x100 + at), workers)[0] for at in range(2000))
        assert all(350 < counts[index] < 650 for index in range(4))

    def test_a_worker_above_its_bound_is_passed_over(self) -> None:
        router, workers = KubeaiPrefixHash(), fleet(0, 0, 0, 0)
        first = self.owner("a", workers)
        for worker in workers:
            worker.in_flight = 15
        # 1.25 · (60 + 1) / 4 = 19.06, the request itself counted in: 18 others are the most.
        workers[first].in_flight = 18
        workers[first - 1].in_flight = 12
        assert choose(router, "a", workers) == (first, "affinity")
        workers[first].in_flight = 19
        workers[first - 1].in_flight = 11
        assert choose(router, "a", workers) == (self.owner("a", workers, skip=(first,)), "load")

    def test_where_nobody_has_room_the_first_takes_it(self) -> None:
        for workers in (fleet(0, 0, 0, 0), fleet(1, 1, 1, 1)):  # 1.25 · 1 / 4 < 1 and 1.25 · 5 / 4 < 2
            assert choose(KubeaiPrefixHash(), "a", workers) == (self.owner("a", workers), "affinity")

    def test_a_worker_that_may_not_be_chosen_has_no_points(self) -> None:
        router, workers = KubeaiPrefixHash(), fleet(0, 0, 0, 0)
        first = self.owner("a", workers)
        left = [worker for worker in workers if worker.index != first]
        assert choose(router, "a", workers)[0] == first
        assert choose(router, "a", left)[0] == self.owner("a", left)
        assert choose(router, "a", workers)[0] == first

    def test_the_key_may_be_a_later_block(self) -> None:
        router, workers = KubeaiPrefixHash(key_block=1), fleet(0, 0, 0, 0)
        owners = {choose(router, "a" + second, workers)[0] for second in "bcdefghijklmnopqrst"}
        assert owners == {0, 1, 2, 3}
        assert choose(router, "a", workers)[0] == self.owner("a", workers)

    def test_the_key_may_be_the_session(self) -> None:
        router, workers = KubeaiPrefixHash(by_session=True), fleet(0, 0, 0, 0)

        def owners(blocks: str, *sessions: int) -> set[int]:
            view = FleetView(workers, ForbiddenMapping(), 0.0)
            asked = [prompt(blocks)._replace(session=session) for session in sessions]
            return {router.choose(each, view).worker.index for each in asked}

        assert owners("ab", *range(1, 60)) == {0, 1, 2, 3}
        assert owners("ab", 7) == owners("xyz", 7)
        assert owners("ab", 0) == {self.owner("a", workers)}

    def test_a_prompt_without_a_full_block_is_its_own_key(self) -> None:
        router, workers = KubeaiPrefixHash(), fleet(0, 0, 0, 0)
        owners = {choose(router, "", workers, tail=tail)[0] for tail in range(60)}
        assert owners == {0, 1, 2, 3}


class TestDynamo:
    def test_what_is_held_is_credited(self) -> None:
        router = DynamoKv()
        send(router, "ab", 1)
        assert choose(router, "abc", fleet(0, 0, 0)) == (1, "affinity")
        assert chosen(router, "xyz", fleet(0, 0, 0)) == {0, 1, 2}

    def test_prefill_pending_weighs_against_it_until_the_first_byte(self) -> None:
        router = DynamoKv()
        send(router, "abcd", 1)
        start(router, "xy", 1)
        # Worker 1: 2 + 4 − 4 to compute, 3 + 5 in flight: 10. Worker 0: 4 + 5 = 9.
        assert choose(router, "abcd", fleet(0, 0)) == (0, "load")
        router.first_byte(prompt("xy"), W(1), 1.0)
        assert choose(router, "abcd", fleet(0, 0)) == (1, "affinity")  # 0 + 8 against 9

    def test_blocks_in_flight_weigh_until_the_end(self) -> None:
        router = DynamoKv()
        send(router, "ab", 1)
        start(router, "xyz", 1)
        router.first_byte(prompt("xyz"), W(1), 1.0)
        assert choose(router, "ab", fleet(0, 0)) == (0, "load")  # 0 + 4 + 3 against 2 + 3
        router.ended(prompt("xyz"), W(1), 2.0)
        assert choose(router, "ab", fleet(0, 0)) == (1, "affinity")

    def test_blocks_that_are_in_flight_already_are_not_new(self) -> None:
        router = DynamoKv()
        start(router, "abcd", 1)
        router.first_byte(prompt("abcd"), W(1), 1.0)
        # Worker 1: 0 to compute, 5 in flight + 1: 6. Worker 0: 4 + 5 = 9.
        assert choose(router, "abcd", fleet(0, 0)) == (1, "affinity")

    def test_a_request_only_pends_with_what_was_not_held(self) -> None:
        router = DynamoKv()
        send(router, "abcd", 1)
        start(router, "abcd", 1)
        # Worker 1: 0 pending + 4 − 4, 5 in flight + 1: 6. Had all four been pending, 10 against worker 0's 9.
        assert choose(router, "abcd", fleet(0, 0)) == (1, "affinity")

    def test_the_overlap_weight_weighs_prefill(self) -> None:
        light, heavy = DynamoKv(overlap_weight=0.5), DynamoKv(overlap_weight=2.0)
        for router in (light, heavy):
            send(router, "abcd", 1)
            start(router, "uvwxy", 1)
            router.first_byte(prompt("uvwxy"), W(1), 1.0)
        # Worker 1: 0 + 6 + 5 = 11. Worker 0: 4 · weight + 5 = 7 or 13.
        assert choose(light, "abcd", fleet(0, 0)) == (0, "load")
        assert choose(heavy, "abcd", fleet(0, 0)) == (1, "affinity")

    def test_predictions_last_120_seconds(self) -> None:
        router = DynamoKv()
        send(router, "ab", 1, now=0.0)
        send(router, "x", 0, now=120.0)
        assert choose(router, "ab", fleet(0, 0)) == (1, "affinity")
        send(router, "x", 0, now=120.1)
        assert chosen(router, "ab", fleet(0, 0)) == {0, 1}

    def test_beyond_its_bound_the_tree_is_pruned_to_four_fifths(self) -> None:
        for weight, expected in [(0.3, (0, "load")), (0.4, (1, "affinity"))]:
            router = DynamoKv(weight, max_tree_blocks=10)
            send(router, "abcdef", 1)
            send(router, "uvwx", 0)
            send(router, "n", 0)  # eleven are too many, eight are left: three of the six
            start(router, "abc", 1)
            # With k held, worker 1 costs weight · (6 − k) + 4 + 3 + 1 and worker 0 weight · 6 + 7: k · weight to 1.
            assert choose(router, "abcdef", fleet(0, 0)) == expected

    def test_up_to_its_bound_it_is_not(self) -> None:
        router = DynamoKv(0.17, max_tree_blocks=10)
        send(router, "abcdef", 1)
        send(router, "uvwx", 0)
        start(router, "abc", 1)
        assert choose(router, "abcdef", fleet(0, 0)) == (1, "affinity")  # 6 · 0.17 to 1


class TestLMetric:
    def test_new_tokens_times_the_batch_and_one(self) -> None:
        router = LMetric()
        send(router, "abc", 1)
        assert choose(router, "abcdef", fleet(1, 2)) == (1, "affinity")  # 6 · 2 against 3 · 3
        assert choose(router, "abcdef", fleet(0, 2)) == (0, "load")  # 6 · 1 against 3 · 3

    def test_ties_are_random(self) -> None:
        router = LMetric()
        send(router, "abc", 1)
        assert chosen(router, "abcdef", fleet(0, 1)) == {0, 1}  # 6 · 1 and 3 · 2
        assert chosen(router, "xyz", fleet(0, 0)) == {0, 1}

    def test_what_is_pending_is_computed_first(self) -> None:
        both = LMetric(), LMetric(queued=False)
        for router in both:
            send(router, "abc", 1)
            start(router, "uvwx", 1)
        assert choose(both[0], "abcdef", fleet(0, 0)) == (0, "load")  # 6 against 3 + 4
        assert choose(both[1], "abcdef", fleet(0, 0)) == (1, "affinity")  # 6 against 3
        both[0].first_byte(prompt("uvwx"), W(1), 1.0)
        assert choose(both[0], "abcdef", fleet(0, 0)) == (1, "affinity")

    def test_of_two_that_hold_it_all_the_smaller_batch(self) -> None:
        router = LMetric()
        send(router, "abc", 0)
        send(router, "abc", 1)
        assert chosen(router, "abc", fleet(3, 2)) == {1}

    def test_what_it_holds_is_bounded_by_the_engine(self) -> None:
        router = LMetric(engine_tokens=2 * BLOCK)
        send(router, "ab", 1)
        send(router, "xy", 1)
        assert chosen(router, "ab", fleet(0, 0)) == {0, 1}


class TestBaselines:
    @pytest.mark.parametrize("name", BASELINES)
    def test_each_serves_a_stream_of_requests_and_starts_anew_each_time(self, name: str) -> None:
        for router in (BASELINES[name](10**6), BASELINES[name](10**6)):
            workers, running = fleet(0, 0, 0), list[tuple[str, int]]()
            for at, blocks in enumerate(["", "a", "ab", "abc", "abd", "x", "xyz", "abcdef"] * 5):
                index, reason = choose(router, blocks, workers, tail=at)
                assert reason in {"affinity", "cold", "load"}
                start(router, blocks, index, now=float(at), tail=at)
                workers[index].in_flight += 1
                running.append((blocks, index))
                if at >= 4:
                    done, worker = running[at - 4]
                    finish(router, done, worker, now=float(at), tail=at - 4)
                    workers[worker].in_flight -= 1

    @pytest.mark.parametrize("name", ["sglang_tuned", "vllm_router_tuned", "smg_tuned"])
    def test_tuned_ones_leave_affinity_at_a_gap_of_five(self, name: str) -> None:
        router = BASELINES[name](10**6)
        send(router, "ab", 1)
        assert choose(router, "ab", fleet(0, 4)) == (1, "affinity")
        assert choose(router, "ab", fleet(0, 5)) == (0, "load")
        assert choose(router, "ab", fleet(50, 55)) == (1, "affinity")  # 55 is 1.1 · 50
        assert choose(router, "ab", fleet(49, 55)) == (0, "load")

    def test_tuned_ray_and_prefixaware(self) -> None:
        ray, prefixaware = BASELINES["ray_tuned"](10**6), BASELINES["prefixaware_tuned"](10**6)
        send(ray, "ab", 1)
        assert choose(ray, "ab", fleet(0, 10)) == (1, "affinity")
        assert choose(ray, "ab", fleet(0, 11)) == (0, "load")
        long = "".join(chr(0x100 + at) for at in range(32))
        send(prefixaware, long, 0)
        assert choose(prefixaware, long, fleet(0, 0)) == (0, "affinity")
        assert choose(prefixaware, long[:31] + "x", fleet(0, 0)) == (1, "load")
