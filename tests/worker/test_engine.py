"""The engine step by step: sharing, chunking, preemption, abort, failure."""

from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
import torch
from support.toy import ToyEngine
from warmroute_worker.core import FinishReason, Request
from warmroute_worker.scheduler import MAX_PASSED_OVER

MakeEngine = Callable[..., ToyEngine]
Prompts = Callable[[int, int], "array[int]"]
Greedy = Callable[[Sequence[int], int], list[int]]


def test_of_two_identical_prompts_the_second_computes_one_token(engine: MakeEngine, prompts: Prompts) -> None:
    toy = engine(chunk=16)
    first, second = (toy.request(prompts(1, 50), 4) for _ in range(2))
    toy.step()
    assert (first.computed, second.row) == (16, None), "the second waits for what the first is computing"
    toy.run()
    assert (first.cached_tokens, second.cached_tokens) == (0, 49)
    assert toy.generated(first) == toy.generated(second)


def test_a_later_prompt_reuses_what_a_running_prefill_has_shared_with_it(
    engine: MakeEngine, prompts: Prompts
) -> None:
    toy = engine(chunk=16)
    head = prompts(1, 20)
    first = toy.request(head + prompts(2, 40), 4)
    toy.step()
    second = toy.request(head + prompts(3, 10), 4)
    toy.step()
    assert (first.computed, second.row) == (32, None), "four more tokens of the head were being computed"
    toy.run()
    assert second.cached_tokens == 20


def test_an_aborted_first_request_does_not_hold_back_the_second_for_good(
    engine: MakeEngine, prompts: Prompts
) -> None:
    toy = engine(chunk=16)
    first, second = (toy.request(prompts(1, 50), 4) for _ in range(2))
    toy.step()
    toy.engine._abort(first)
    toy.run()
    assert second.finished is FinishReason.LENGTH
    assert second.cached_tokens == 16


def test_other_salts_are_not_held_back_and_share_nothing(engine: MakeEngine, prompts: Prompts) -> None:
    toy = engine(chunk=128)
    requests = [toy.request(prompts(1, 50), 4, salt=salt) for salt in ("a", "b")]
    toy.step()
    assert all(request.row is not None for request in requests)
    toy.run()
    assert [request.cached_tokens for request in requests] == [0, 0]


def test_prefill_goes_on_beside_decoding(engine: MakeEngine, prompts: Prompts) -> None:
    toy = engine(chunk=8)
    short, long = toy.request(prompts(1, 4), 20), toy.request(prompts(2, 40), 4)
    toy.step()
    before = short.output_tokens
    for _ in range(3):
        toy.step()
    assert short.output_tokens == before + 3, "a token in every step"
    assert 0 < long.computed < 40
    toy.run()


def test_the_longest_cached_prefix_is_admitted_first_but_nobody_waits_for_ever(
    engine: MakeEngine, prompts: Prompts
) -> None:
    toy = engine(max_running=1, chunk=64)
    toy.generate(prompts(1, 30), 1)
    cold = toy.request(prompts(9, 30), 1)
    overtaking = [toy.request(prompts(1, 30) + prompts(10 + number, 3), 1) for number in range(MAX_PASSED_OVER + 3)]
    ended: list[Request] = []
    while len(ended) < len(overtaking) + 1:
        toy.step()
        ended += [each for each in (cold, *overtaking) if each.finished and each not in ended]
    assert ended.index(cold) == MAX_PASSED_OVER


def test_preemption_changes_neither_the_output_nor_the_reported_cache(
    engine: MakeEngine, prompts: Prompts, oracle_greedy: Greedy
) -> None:
    toy = engine(pool=96, chunk=32)
    requests = [toy.request(prompts(number, 20), 30) for number in range(4)]
    preempted: set[Request] = set()
    while toy.engine.scheduler.running or toy.engine.scheduler.waiting:
        toy.step()
        preempted |= {request for request in toy.engine.scheduler.waiting if request.output_tokens}
    assert preempted, "the pool is too small for all four"
    for request in requests:
        assert toy.generated(request) == oracle_greedy(request.prompt, 30)
        assert request.cached_tokens == 0
        assert request.usage.completion_tokens == 30


def test_a_prompt_that_is_cached_whole_still_computes_its_last_token(engine: MakeEngine, prompts: Prompts) -> None:
    toy = engine(page_size=4)
    prompt = prompts(1, 40)
    toy.generate(prompt, 4)
    again = toy.request(prompt, 4)
    toy.run()
    assert again.cached_tokens == 36, "39 would be the most, and 36 is that in full pages"


@pytest.mark.parametrize("state", ["waiting", "prefilling", "decoding", "ended"])
def test_abort_frees_everything_in_every_state(engine: MakeEngine, prompts: Prompts, state: str) -> None:
    toy = engine(chunk=16, max_running=1)
    request = toy.request(prompts(1, 40), 2)
    for _ in range({"waiting": 0, "prefilling": 1, "decoding": 3, "ended": 4}[state]):
        toy.step()
    assert (request.finished is not None) == (state == "ended")
    assert (request.row is not None) == (state in ("prefilling", "decoding"))
    assert bool(request.output_tokens) == (state in ("decoding", "ended"))
    delivered = len(toy.outputs[request])
    toy.engine._abort(request)
    toy.engine._abort(request)
    assert (toy.engine.num_running, toy.engine.num_waiting) == (0, 0)
    assert toy.engine.cache.protected == 0
    assert len(toy.outputs[request]) == delivered
    assert toy.engine.metrics.aborted_requests == (state != "ended")
    toy.assert_accounted()


def test_what_an_aborted_request_computed_stays_cached(engine: MakeEngine, prompts: Prompts) -> None:
    toy = engine(chunk=16)
    prompt = prompts(1, 40)
    request = toy.request(prompt, 2)
    toy.step()
    toy.engine._abort(request)
    assert toy.engine.cache.match_length(prompt) == 16


def test_an_end_token_ends_the_answer_unless_it_is_ignored(
    engine: MakeEngine, prompts: Prompts, oracle_greedy: Greedy
) -> None:
    toy = engine()
    prompt = prompts(1, 20)
    wanted = oracle_greedy(prompt, 8)
    toy.engine._eos_ids = frozenset({wanted[3]})
    ended = toy.request(prompt, 8, ignore_eos=False)
    ignoring = toy.request(prompt, 8, ignore_eos=True)
    toy.run()
    stop = wanted.index(wanted[3])
    assert toy.generated(ended) == wanted[: stop + 1]
    assert ended.finished is FinishReason.STOP
    assert toy.text(ended) == toy.decode(wanted[:stop])
    assert toy.generated(ignoring) == wanted
    assert ignoring.finished is FinishReason.LENGTH


def test_a_stop_string_ends_the_answer_before_it(engine: MakeEngine, prompts: Prompts, oracle_greedy: Greedy) -> None:
    toy = engine()
    prompt = prompts(3, 20)
    text = toy.decode(oracle_greedy(prompt, 16))
    stop = text[4:6]
    request = toy.request(prompt, 16, stop=(stop,))
    toy.run()
    assert toy.text(request) == text[: text.index(stop)]
    assert request.finished is FinishReason.STOP
    assert request.output_tokens < 16


def test_a_seed_gives_the_same_answer_alone_and_in_company(engine: MakeEngine, prompts: Prompts) -> None:
    toy = engine()
    prompt = prompts(1, 20)
    alone = toy.generate(prompt, 12, temperature=1.5, seed=42)
    together = [toy.request(prompt, 12, temperature=1.5, seed=seed) for seed in (41, 42, 43)]
    toy.run()
    assert toy.generated(together[1]) == alone
    assert len({tuple(toy.generated(request)) for request in together}) == 3


def test_no_generator_is_kept_for_an_ended_request(engine: MakeEngine, prompts: Prompts) -> None:
    toy = engine()
    toy.generate(prompts(1, 20), 4, temperature=1.0)
    assert toy.engine._sampler._generators == {}


def test_usage_never_counts_more_than_the_prompt(engine: MakeEngine, prompts: Prompts) -> None:
    toy = engine(pool=64, page_size=4, chunk=8)
    requests = [toy.request(prompts(number % 2, 24), 20) for number in range(6)]
    toy.run()
    for request in requests:
        assert 0 <= request.usage.cached_tokens <= len(request.prompt) - 1
        assert request.usage.completion_tokens == 20
    metrics = toy.engine.metrics
    assert metrics.prompt_tokens == 6 * 24
    assert metrics.cached_tokens == sum(request.usage.cached_tokens for request in requests)
    assert metrics.generation_tokens == 6 * 20


def test_a_failed_step_is_told_to_its_requests_and_the_next_one_works(
    engine: MakeEngine, prompts: Prompts, oracle_greedy: Greedy, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = engine()
    forward = toy.engine._model.forward
    failing = toy.request(prompts(1, 20), 4)

    def broken(*_: object) -> None:
        monkeypatch.setattr(toy.engine._model, "forward", forward)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(toy.engine._model, "forward", broken)
    toy.engine.start()
    _wait_for(lambda: failing.finished is not None)
    assert failing.finished is FinishReason.ERROR
    assert toy.outputs[failing][-1].finish_reason is FinishReason.ERROR
    after = toy.request(prompts(2, 20), 4)
    toy.engine.scheduler.waiting.remove(after)
    toy.engine.submit(after)
    _wait_for(lambda: after.finished is not None)
    assert toy.generated(after) == oracle_greedy(after.prompt, 4)
    toy.engine.stop()
    assert not toy.engine.alive


def test_a_failed_step_leaves_the_waiting_alone(
    engine: MakeEngine, prompts: Prompts, oracle_greedy: Greedy, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = engine(max_running=1)
    failing, waiting = toy.request(prompts(1, 20), 4), toy.request(prompts(2, 20), 4)
    with monkeypatch.context() as patched:
        patched.setattr(toy.engine._model, "forward", _broken)
        toy.step()
    assert (failing.finished, waiting.finished) == (FinishReason.ERROR, None)
    assert toy.engine.cache.match_length(failing.prompt) == 0, "what was not computed is not shared"
    toy.run()
    assert toy.generated(waiting) == oracle_greedy(waiting.prompt, 4)
    metrics = toy.engine.metrics
    assert (metrics.requests, metrics.prompt_tokens) == (1, 20), "the failed one reports no usage"


def test_a_lost_device_ends_the_engine_once_its_batch_has_been_told(
    engine: MakeEngine, prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an illegal access on a GPU: whatever is asked of it from then on fails."""
    toy = engine(max_running=1)
    toy.engine._check_device()  # of a CPU there is nothing to ask
    failing, waiting = toy.request(prompts(1, 20), 4), toy.request(prompts(2, 20), 4)
    monkeypatch.setattr(toy.engine._model, "forward", _broken)
    monkeypatch.setattr(toy.engine, "_check_device", _broken)
    toy.engine.start()
    _wait_for(lambda: not toy.engine.alive)
    assert toy.outputs[failing][-1].finish_reason is FinishReason.ERROR
    assert toy.outputs[waiting][-1].finish_reason is FinishReason.ABORT


def test_a_cuda_device_is_asked_after_a_failed_step(
    engine: MakeEngine, prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = engine()
    asked: list[object] = []
    monkeypatch.setattr("torch.cuda.synchronize", asked.append)
    failing = toy.request(prompts(1, 20), 4)
    with monkeypatch.context() as patched:
        patched.setattr(toy.engine.pool, "device", torch.device("cuda"))
        patched.setattr(toy.engine._attention, "plan", _broken)
        toy.step()
    assert failing.finished is FinishReason.ERROR
    assert asked == [torch.device("cuda")]


def test_nobody_waits_for_ever_on_an_engine_that_has_broken_down(
    engine: MakeEngine, prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = engine(max_running=1)
    requests = [toy.request(prompts(number, 20), 100) for number in range(2)]
    toy.step()
    with monkeypatch.context() as patched:
        patched.setattr(toy.engine.scheduler, "schedule", _broken)
        toy.engine.start()
        _wait_for(lambda: not toy.engine.alive)
    assert [toy.outputs[request][-1].finish_reason for request in requests] == [FinishReason.ABORT] * 2
    late = toy.request(prompts(3, 20), 4)
    toy.engine.scheduler.waiting.remove(late)
    toy.engine.submit(late)
    assert toy.outputs[late][-1].finish_reason is FinishReason.ABORT
    toy.engine = engine().engine  # the broken one's account is not looked at


def test_stop_tells_everybody_and_frees_everything(engine: MakeEngine, prompts: Prompts) -> None:
    toy = engine(max_running=1)
    running, waiting = toy.request(prompts(1, 20), 200), toy.request(prompts(2, 20), 200)
    toy.step()
    toy.engine.close()
    toy.engine.start()
    toy.engine.stop()
    late = toy.request(prompts(3, 20), 4)
    toy.engine.scheduler.waiting.remove(late)
    toy.engine.submit(late)
    for request in (running, waiting, late):
        assert [output.finish_reason for output in toy.outputs[request]][-1] is FinishReason.ABORT
    toy.assert_accounted()
    assert toy.engine.cache.protected == 0


def test_two_flushes_at_once_both_succeed(engine: MakeEngine) -> None:
    toy = engine()
    with ThreadPoolExecutor() as threads:
        flushes = [threads.submit(toy.engine.flush_cache) for _ in range(2)]
        toy.engine.start()
        assert [flush.result() for flush in flushes] == [True, True]
    toy.engine.stop()


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_comes_and_goes_the_account_and_the_answers_are_right(
    engine: MakeEngine, prompts: Prompts, oracle_greedy: Greedy, seed: int, page_size: int
) -> None:
    """Arrivals, aborts, evictions and preemptions at random; `step` checks the account each time."""
    random = Random(seed)
    toy = engine(pool=96, page_size=page_size, chunk=random.choice([5, 16, 40]), max_running=4)
    requests: list[Request] = []
    for _ in range(60):
        if random.random() < 0.4:
            prompt = prompts(random.randrange(3), random.randint(1, 30)) + prompts(50 + random.randrange(3), 3)
            requests.append(toy.request(prompt, random.randint(1, 25), salt=random.choice(["", "", "a"])))
        if random.random() < 0.1 and requests:
            toy.engine._abort(random.choice(requests))
        toy.step()
    toy.run()
    assert toy.engine.cache.protected == 0
    assert {request.finished for request in requests} == {FinishReason.LENGTH, FinishReason.ABORT}
    for request in requests:
        if request.finished is FinishReason.LENGTH:
            assert toy.generated(request) == oracle_greedy(request.prompt, request.params.max_tokens)
            assert 0 <= request.usage.cached_tokens < len(request.prompt)


def test_flush_is_refused_while_something_runs(engine: MakeEngine, prompts: Prompts) -> None:
    toy = engine()
    toy.generate(prompts(1, 20), 2)
    toy.engine.start()
    assert toy.engine.flush_cache()
    assert toy.engine.pool.free_slots == toy.engine.pool.num_slots
    toy.engine.stop()
    toy.request(prompts(2, 20), 2)
    assert not toy.engine.flush_cache()


def test_token_usage_leaves_out_what_is_merely_cached(engine: MakeEngine, prompts: Prompts) -> None:
    toy = engine(pool=100)
    running = toy.request(prompts(1, 30), 10)
    toy.step()
    assert toy.engine.token_usage == pytest.approx(0.30)
    toy.run()
    assert running.finished is FinishReason.LENGTH
    assert toy.engine.token_usage == 0
    assert toy.engine.cache.evictable == 39


def _broken(*_: object) -> None:
    raise RuntimeError("out of memory")


def _wait_for(condition: Callable[[], bool]) -> None:
    import time

    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
