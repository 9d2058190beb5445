"""When requests are due, against what the mathematics say."""

import math
from itertools import islice, pairwise, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from warmroute_loadtest.bench.load import Concurrency, OwnTimes, Ramp, Rate, Timetable, due_times


def first(load: Timetable, count: int, seed: int = 0) -> list[float]:
    return list(islice(due_times(load, (), seed), count))


def expected_events(ramp: Ramp, until: float, steps: int = 20_000) -> float:
    """The rate's integral, by the sum of many thin slices."""
    width = until / steps
    return sum(
        (ramp.start + (ramp.end - ramp.start) * (step + 0.5) * width / ramp.duration) * width for step in range(steps)
    )


def test_the_gaps_of_a_poisson_process_are_exponential() -> None:
    gaps = sorted(later - earlier for earlier, later in pairwise(first(Rate(20.0), 5001)))
    assert sum(gaps) / len(gaps) == pytest.approx(1 / 20, rel=0.05)
    # Kolmogorov and Smirnov's distance; one process in a thousand has more than this.
    expected = [1 - math.exp(-20 * gap) for gap in gaps]
    distance = max(
        max((place + 1) / len(gaps) - share, share - place / len(gaps)) for place, share in enumerate(expected)
    )
    assert distance < 1.95 / math.sqrt(len(gaps))


def test_gaps_do_not_know_of_each_other() -> None:
    gaps = [later - earlier for earlier, later in pairwise(first(Rate(1.0), 5001))]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    neighbours = sum((one - mean) * (other - mean) for one, other in pairwise(gaps)) / len(gaps)
    assert abs(neighbours / variance) < 0.05


def test_a_constant_rate() -> None:
    assert first(Rate(4.0, "constant"), 4) == [0.0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("arrivals", ["poisson", "constant"])
def test_all_at_once(arrivals: str) -> None:
    assert first(Rate(math.inf, arrivals), 3) == [0.0, 0.0, 0.0]  # type: ignore[arg-type]


def test_the_same_seed_gives_the_same_times() -> None:
    assert first(Rate(5.0), 100) == first(Rate(5.0), 100)
    assert first(Rate(5.0), 100, seed=1) != first(Rate(5.0), 100, seed=2)


@given(
    start=st.floats(0, 100),
    end=st.floats(0, 100),
    duration=st.floats(1, 100),
    share=st.floats(0.01, 1),
)
def test_a_ramp_is_the_integral_of_its_rate(start: float, end: float, duration: float, share: float) -> None:
    ramp = Ramp(start, end, duration, "constant")
    events = expected_events(ramp, share * duration, steps=200)  # the rate is straight: thin enough
    if events < 1e-3:
        return
    # Where the rate has fallen to nothing, many times have the same number of events.
    assert expected_events(ramp, min(ramp.after(events), duration), steps=200) == pytest.approx(events, rel=1e-6)


def test_a_ramp_that_falls_to_nothing_ends() -> None:
    times = first(Ramp(10.0, 0.0, 4.0, "constant"), 100)
    assert sum(time < math.inf for time in times) == 21  # 10 * 4 / 2 of them, and the first at 0
    assert times == sorted(times)


def test_a_poisson_ramp_has_as_many_as_expected_in_each_part() -> None:
    ramp = Ramp(10.0, 90.0, 100.0)
    times = list(takewhile(lambda time: time < 100.0, due_times(ramp, (), 0)))
    for quarter in range(4):
        expected = expected_events(ramp, 25.0 * (quarter + 1)) - expected_events(ramp, 25.0 * quarter)
        counted = sum(25.0 * quarter <= time < 25.0 * (quarter + 1) for time in times)
        assert abs(counted - expected) < 4 * math.sqrt(expected)


def test_a_traces_own_times() -> None:
    assert list(due_times(OwnTimes(2.0), [0.0, 3.0, 10.0], 0)) == [0.0, 1.5, 5.0]


def test_what_a_record_says() -> None:
    assert Rate(3.0).record() == {"kind": "poisson", "rate": 3.0}
    assert Rate(3.0, "constant").record() == {"kind": "constant", "rate": 3.0}
    assert Rate(math.inf).record() == {"kind": "at_once"}
    assert Ramp(1.0, 2.0, 60.0).record() == {
        "kind": "ramp",
        "start": 1.0,
        "end": 2.0,
        "duration": 60.0,
        "arrivals": "poisson",
    }
    assert OwnTimes(2.0).record() == {"kind": "trace", "speed": 2.0}
    assert Concurrency(8).record() == {"kind": "concurrency", "concurrency": 8}
