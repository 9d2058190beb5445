"""What is left to compute, against a worker that computes prompts in their order at a fixed speed."""

import random

import pytest
from support.fleet import fleet_of
from warmroute_router.backlog import Backlog, Prefill
from warmroute_router.blocks import PromptBlocks, hash_blocks
from warmroute_router.calibration import PrefillSpeed
from warmroute_router.fleet import State
from warmroute_router.placement import Placement
from warmroute_router.policies import POLICIES
from warmroute_router.routing import Routing
from warmroute_router.tree import PrefixTree
from warmroute_router.usage import Usage


def of_speed(tokens_per_s: float) -> Backlog:
    backlog = Backlog()
    backlog.speed.tokens_per_s = tokens_per_s
    return backlog


def remaining(backlog: Backlog, now: float) -> float:
    return backlog.remaining_at(now)


def test_without_a_known_speed_a_prompt_is_left_until_its_first_byte() -> None:
    backlog = Backlog()
    prefill = backlog.add(1000, 0.0, streamed=True)
    assert remaining(backlog, 100.0) == 1000
    backlog.done(prefill, 100.0)
    backlog.done(prefill, 101.0)
    assert (backlog.tokens, remaining(backlog, 101.0)) == (0, 0)


def test_the_oldest_prompt_is_computed_first_and_never_more_than_that_is_believed() -> None:
    backlog = of_speed(100)
    first = backlog.add(1000, 0.0, streamed=True)
    second = backlog.add(500, 2.0, streamed=True)
    assert remaining(backlog, 4.0) == 1500 - 400
    assert remaining(backlog, 20.0) == 500, "it is late; the second one has not begun for all we know"
    backlog.done(first, 20.0)
    assert remaining(backlog, 20.0) == 500
    assert remaining(backlog, 21.0) == 400
    backlog.done(second, 22.0)
    assert remaining(backlog, 22.0) == 0


def test_a_later_prompt_that_is_done_earlier_does_not_confuse_it() -> None:
    backlog = of_speed(100)
    backlog.add(1000, 0.0, streamed=True)
    second = backlog.add(500, 0.0, streamed=True)
    backlog.done(second, 3.0)
    assert remaining(backlog, 4.0) == 1000 - 100


def test_an_answer_that_comes_whole_is_taken_for_computed_once_it_must_be() -> None:
    backlog = of_speed(100)
    whole = backlog.add(1000, 0.0, streamed=False)
    backlog.add(500, 0.0, streamed=False)
    streamed = backlog.add(300, 0.0, streamed=True)
    assert remaining(backlog, 5.0) == 1800 - 500
    assert remaining(backlog, 12.0) == 800 - 200
    assert remaining(backlog, 100.0) == 0
    assert backlog.tokens == 300, "of the streamed one the first byte is waited for"
    backlog.done(whole, 101.0)
    backlog.done(streamed, 102.0)
    assert backlog.tokens == 0


def test_what_peers_wait_for_counts_too_and_the_oldest_of_all_is_what_is_computed() -> None:
    backlog = of_speed(100)
    backlog.of_peer("p", 700, Prefill(300, 0.0), 0.0)
    assert remaining(backlog, 1.0) == 700 - 100
    own = backlog.add(1000, 1.0, streamed=True)
    backlog.of_peer("q", 50, Prefill(50, 0.5), 1.0)
    assert remaining(backlog, 2.0) == 1750 - 200
    assert remaining(backlog, 9.0) == 1750 - 300, "p's first prompt is late, and the others come after it"
    backlog.of_peer("p", -300, Prefill(400, 2.0), 9.0)
    assert remaining(backlog, 9.3) == pytest.approx(1450 - 30)
    backlog.of_peer("q", -50, None, 9.5)
    assert remaining(backlog, 10.5) == 1400 - 100
    backlog.done(own, 20.0)
    assert remaining(backlog, 21.0) == 400 - 100
    backlog.of_peer("p", -400, None, 24.0)
    assert (backlog.tokens, remaining(backlog, 25.0)) == (0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_it_is_right_for_a_worker_that_works_as_it_thinks(seed: int) -> None:
    draw = random.Random(seed)
    backlog, speed, now, free_at = of_speed(100), 100, 0.0, 0.0
    running: list[tuple[float, Prefill]] = []
    for _ in range(300):
        now += draw.expovariate(0.5)
        while running and running[0][0] <= now:
            at, prefill = running.pop(0)
            backlog.done(prefill, at)
        assert remaining(backlog, now) == pytest.approx(max(free_at - now, 0.0) * speed, abs=1e-6)
        tokens = draw.randint(0, 400)
        free_at = max(free_at, now) + tokens / speed
        running.append((free_at, backlog.add(tokens, now, streamed=True)))


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_the_speed_is_found_whatever_each_request_costs_beside(noise: float) -> None:
    draw = random.Random(1)
    speed = PrefillSpeed()
    for _ in range(200):
        tokens = draw.randint(10, 4000)
        speed.learn(tokens, 0.05 + tokens / 8000 * draw.uniform(1 - noise, 1 + noise))
    assert speed.tokens_per_s == pytest.approx(8000, rel=0.001 + noise / 2)
    for _ in range(300):
        tokens = draw.randint(10, 4000)
        speed.learn(tokens, 0.05 + tokens / 2000)
    assert speed.tokens_per_s == pytest.approx(2000, rel=0.01), "it follows"


def test_prompts_of_one_length_or_without_a_trend_tell_no_speed() -> None:
    speed = PrefillSpeed()
    for number in range(100):
        speed.learn(1000, 0.1 + number % 7)
    assert speed.tokens_per_s is None
    speed = PrefillSpeed()
    for tokens in (10, 1000) * 10:
        speed.learn(tokens, 2.0 - tokens / 1000)
    assert speed.tokens_per_s is None


def test_short_prompts_and_jitter_tell_no_speed() -> None:
    draw = random.Random(1)
    speed = PrefillSpeed()
    believed = 0
    for _ in range(1000):
        tokens = draw.randint(20, 200)
        speed.learn(tokens, 0.02 + tokens / 20_000 + draw.expovariate(100))
        believed += speed.tokens_per_s is not None
    assert believed < 100
    for _ in range(100):
        tokens = draw.randint(20, 20_000)
        speed.learn(tokens, 0.02 + tokens / 20_000 + draw.expovariate(100))
    assert speed.tokens_per_s == pytest.approx(20_000, rel=0.1)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_it_is_learned_from_streams_that_met_an_idle_worker() -> None:
    clock = Clock()
    fleet = fleet_of("http://a")
    fleet.workers[0].state = State.READY
    routing = Routing(fleet, PrefixTree(10**6), "cache_aware", POLICIES["cache_aware"](), clock)
    backlog = fleet.workers[0].backlog

    def place(tokens: int, *, streamed: bool = True) -> Placement:
        prompt = hash_blocks(b"%9d" % (clock.now * 1000) + b"x" * (4 * tokens - 9), streamed=streamed)
        placement = routing.place(prompt)
        assert placement is not None
        assert isinstance(prompt, PromptBlocks)
        return placement

    def answer(placement: Placement, seconds: float) -> None:
        clock.now += seconds
        placement.first_byte()
        clock.now += 5  # of decoding
        placement.report(Usage(placement.prompt.tokens, 0))
        placement.release()

    for tokens in (100, 900) * 10:
        answer(place(tokens, streamed=False), 60.0 - tokens / 100)
    assert backlog.speed.tokens_per_s is None
    for tokens in (100, 900) * 10:
        answer(place(tokens), 0.1 + tokens / 1000)
    assert backlog.speed.tokens_per_s == pytest.approx(1000)
    for tokens in (100, 900) * 10:
        waited_for = place(5000)
        late = place(tokens)
        answer(waited_for, 5.1)
        answer(late, 0.1)
    assert backlog.speed.tokens_per_s == pytest.approx(1000), "of those that waited it learns nothing"


def test_speeds_count_where_they_differ_by_more_than_measuring_does() -> None:
    fleet = fleet_of("http://a", "http://b", "http://c", "http://new")
    fleet.compare_speeds()
    assert [worker.slowness for worker in fleet.workers] == [1, 1, 1, 1]
    for worker, speed in zip(fleet.workers, (2000.0, 4000.0, 12000.0), strict=False):
        worker.backlog.speed.tokens_per_s = speed
    fleet.compare_speeds()
    assert [worker.slowness for worker in fleet.workers] == [2, 1, 1 / 3, 1]
    fleet.workers[2].backlog.speed.tokens_per_s = 10.0**6
    fleet.compare_speeds()
    assert [worker.slowness for worker in fleet.workers] == [2, 1, 0.25, 1], "one that is measured wrong is one"
    for worker, speed in zip(fleet.workers, (5500.0, 6000.0, 6500.0), strict=False):
        worker.backlog.speed.tokens_per_s = speed
    fleet.compare_speeds()
    assert [worker.slowness for worker in fleet.workers] == [1, 1, 1, 1]
