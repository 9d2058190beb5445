"""The circuit breaker and back-pressure of one worker, on a clock that is set by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from warmroute_router.config import BreakerConfig
from warmroute_router.guard import DECLINED_PAUSE, MAX_DECLINED_PAUSE, Guard

CONFIG = BreakerConfig(failure_threshold=3, success_threshold=2, timeout=10.0, window=60.0)


def opened() -> Guard:
    guard = Guard(CONFIG)
    for _ in range(3):
        guard.failed(0.0)
    assert (guard.closed, guard.state, guard.opened) == (False, "faults", 1)
    return guard


def test_faults_in_a_row_open_it_and_one_fewer_do_not() -> None:
    guard = Guard(CONFIG)
    guard.failed(0.0)
    guard.failed(0.0)
    assert guard.admits(0.0)
    guard.completed()
    guard.failed(1.0)
    guard.failed(1.0)
    assert guard.admits(1.0), "an answer in between: they are not in a row"
    guard.failed(1.0)
    assert not guard.closed
    assert not guard.admits(1.0)


def test_faults_that_are_far_apart_do_not_add_up() -> None:
    guard = Guard(CONFIG)
    for now in (0.0, 1.0, 61.0, 62.0):
        guard.failed(now)
    assert guard.admits(62.0)
    guard.failed(63.0)
    assert not guard.closed


def test_without_a_breaker_faults_open_nothing() -> None:
    guard = Guard(None)
    for _ in range(1000):
        guard.failed(0.0)
    assert guard.closed


def test_an_open_one_admits_nobody_until_its_time_is_over_and_then_few() -> None:
    guard = opened()
    assert (guard.admits(9.99), guard.wait(4.0)) == (False, 6.0)
    assert guard.admits(10.0)
    assert guard.begin()
    assert guard.begin()
    assert not guard.admits(10.0), "two successes are wanted, so two may try"
    guard.end_trial()
    assert guard.admits(10.0)


def test_as_many_answers_as_are_wanted_close_it() -> None:
    guard = opened()
    for _ in range(2):
        assert not guard.closed
        trial = guard.begin()
        guard.answered(trial=trial)
        guard.end_trial()
    assert (guard.closed, guard.state) == (True, "closed")
    assert not guard.begin()


def test_an_answer_that_was_on_its_way_before_does_not_close_it() -> None:
    guard = opened()
    for _ in range(5):
        guard.answered(trial=False)
    assert not guard.closed


def test_a_fault_in_a_trial_opens_it_for_another_while() -> None:
    guard = opened()
    guard.begin()
    guard.failed(12.0)
    guard.end_trial()
    assert (guard.admits(21.9), guard.admits(22.0), guard.opened) == (False, True, 2)


def test_late_faults_of_requests_from_before_prolong_nothing() -> None:
    guard = opened()
    guard.failed(9.0)
    assert guard.admits(10.0)
    assert guard.opened == 1


def test_a_decline_is_a_pause_that_doubles_and_no_fault() -> None:
    guard = Guard(CONFIG)
    now = 0.0
    for pause in (0.5, 1.0, 2.0, 4.0, 8.0, MAX_DECLINED_PAUSE, MAX_DECLINED_PAUSE):
        assert guard.admits(now)
        guard.declined(now, None)
        assert (guard.state, guard.wait(now), guard.opened) == ("declined", pause, 0)
        guard.declined(now, None)  # the others that were sent at the same time
        now += pause


@pytest.mark.parametrize(("told", "pause"), [(3.0, 3.0), (0.0, DECLINED_PAUSE), (3600.0, MAX_DECLINED_PAUSE)])
def test_a_decline_lasts_as_long_as_the_worker_says_within_bounds(told: float, pause: float) -> None:
    guard = Guard(CONFIG)
    guard.declined(0.0, told)
    assert guard.wait(0.0) == pause


def test_after_a_decline_one_request_finds_out() -> None:
    guard = Guard(CONFIG)
    guard.declined(0.0, None)
    assert guard.declines_only()
    assert guard.admits(0.5)
    trial = guard.begin()
    assert not guard.admits(0.5)
    guard.answered(trial=trial)
    guard.end_trial()
    assert guard.closed
    guard.declined(1.0, None)
    assert guard.wait(1.0) == DECLINED_PAUSE, "it starts anew"


def test_what_faults_have_opened_a_decline_does_not_turn_into_back_pressure() -> None:
    guard = opened()
    guard.begin()
    guard.declined(10.0, 1.0)
    guard.end_trial()
    assert (guard.state, guard.wait(10.0), guard.declines_only()) == ("faults", 1.0, False)


def test_faults_behind_declines_count() -> None:
    guard = Guard(CONFIG)
    guard.declined(0.0, None)
    for _ in range(3):
        guard.failed(0.6)
    assert guard.state == "faults"


def test_another_process_has_a_clean_sheet() -> None:
    guard = opened()
    guard.reset()
    assert guard.closed


Event = tuple[str, float]


@given(st.lists(st.tuples(st.sampled_from(["fail", "decline", "send", "answer", "end"]), st.floats(0, 20))))
def test_trials_never_exceed_what_is_wanted_and_end_at_none(events: list[Event]) -> None:
    guard, now, on_their_way = Guard(CONFIG), 0.0, list[bool]()
    for event, seconds in events:
        now += seconds
        if event == "fail":
            guard.failed(now)
        elif event == "decline":
            guard.declined(now, None)
        elif event == "send" and guard.admits(now):
            on_their_way.append(guard.begin())
            assert sum(on_their_way) <= CONFIG.success_threshold
        elif event == "answer" and on_their_way:
            guard.answered(trial=on_their_way[-1])
            guard.completed()
        elif event == "end" and on_their_way and on_their_way.pop():
            guard.end_trial()
    while on_their_way:
        if on_their_way.pop():
            guard.end_trial()
    assert guard.admits(now + 1000), "it heals by itself"
