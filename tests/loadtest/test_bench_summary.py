"""The figures of a run, against cases worked out by hand."""

import math
from dataclasses import replace
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from warmroute_loadtest.bench.gaps import Gaps
from warmroute_loadtest.bench.record import UNANSWERED, Answer, Run
from warmroute_loadtest.bench.summary import Failure, Latency, WorkerFigures, hit_rate, summarise
from warmroute_loadtest.bench.table import print_run

ITL = {"p50": 0.01, "p90": 0.02, "p99": 0.03, "mean": 0.012, "max": 0.05}


def good(worker: str, ttft: float, cached: int | None, matched: int | None = None, late: float = 0.0) -> Answer:
    return Answer(
        due=0.0,
        late=late,
        status=200,
        worker=worker,
        ttft=ttft,
        e2e=2 * ttft,
        prompt_tokens=100,
        completion_tokens=10,
        cached_tokens=cached,
        matched_tokens=matched,
    )


def run_of(*answers: Answer, kind: str = "poisson") -> Run:
    return Run(
        label="a [b] run",
        command="",
        started="",
        duration=2.0,
        version="",
        urls=[],
        model="m",
        workload={"name": "rag"},
        load={"kind": kind},
        itl=ITL,
        answers=list(answers),
    )


ANSWERS = (
    good("http://a", 0.1, 80, matched=60),
    good("http://a", 0.3, None, matched=10),
    good("http://a", 0.2, 40, matched=40),
    good("http://b", 0.5, 0, matched=20),
    Answer(0.0, 0.0, 503, "busy, come back in 12 s"),
    Answer(0.0, 0.0, 503, "busy, come back in 7 s"),
    Answer(0.0, 0.0, UNANSWERED, "the connection was closed", ttft=9.0),
    Answer(0.0, 0.0, 200, "the stream ended without [DONE]", ttft=9.0, e2e=9.0, prompt_tokens=100),
)


def test_the_figures_of_a_run() -> None:
    figures = summarise(run_of(*ANSWERS))
    assert (figures.requests, figures.good) == (8, 4)
    assert figures.failures == [
        Failure(2, 503, "busy, come back in 12 s"),
        Failure(1, UNANSWERED, "the connection was closed"),
        Failure(1, 200, "the stream ended without [DONE]"),
    ]
    assert figures.requests_per_s == 2.0
    assert (figures.prompt_tokens_per_s, figures.completion_tokens_per_s) == (200.0, 20.0)
    assert figures.hit_rate == pytest.approx(120 / 400)
    assert figures.predicted == pytest.approx(130 / 400)
    assert figures.prediction_error == pytest.approx((0.2 + 0.0 + 0.2) / 3)
    assert figures.ttft == pytest.approx(Latency(mean=0.275, p50=0.2, p90=0.5, p99=0.5, max=0.5))
    assert figures.e2e == pytest.approx(Latency(mean=0.55, p50=0.4, p90=1.0, p99=1.0, max=1.0))
    assert figures.itl == Latency(**ITL)
    assert figures.workers == [
        WorkerFigures("http://a", 3, 0.75, 0.4, 0.2),
        WorkerFigures("http://b", 1, 0.25, 0.0, 0.5),
    ]
    assert figures.skew == 1.5
    assert (figures.late, figures.latest) == (0.0, 0.0)


def test_a_run_without_anything() -> None:
    figures = summarise(replace(run_of(), duration=0.0, itl={}))
    assert (figures.requests, figures.good, figures.failures) == (0, 0, [])
    assert (figures.hit_rate, figures.predicted, figures.ttft, figures.itl) == (None, None, None, None)
    assert (figures.skew, figures.late) == (1.0, 0.0)


def test_engines_that_tell_nothing_have_no_hit_rate() -> None:
    assert hit_rate([good("a", 0.1, None)]) is None
    assert hit_rate([good("a", 0.1, None), good("a", 0.1, 50)]) == 0.25


def shown(run: Run) -> str:
    out = StringIO()
    print_run(Console(file=out, width=80), run)
    return out.getvalue()


def test_a_worker_that_says_nothing_beside_others_that_do_has_cached_nothing() -> None:
    told = summarise(run_of(good("http://a", 0.1, 50), good("http://b", 0.1, None)))
    assert [(each.worker, each.hit_rate) for each in told.workers] == [("http://a", 0.5), ("http://b", 0.0)]
    untold = summarise(run_of(good("http://a", 0.1, None), good("http://b", 0.1, None)))
    assert [each.hit_rate for each in untold.workers] == [None, None]


def test_the_table_says_all_of_it() -> None:
    told = shown(run_of(*ANSWERS))
    for part in ("a [b] run", "30.0%", "32.5%", "275.00 ms", "http://a", "75.0%", "1.50", "busy, come back in 12 s"):
        assert part in told
    assert "did not keep up" not in told
    assert max(map(len, told.splitlines())) <= 80


def test_late_sends_are_told() -> None:
    late = [good("a", 0.1, 0, late=0.02)] * 2
    on_time = [good("a", 0.1, 0)] * 98
    assert "2.0% of the requests were sent more than 10 ms late, up to 20.00 ms" in shown(run_of(*late, *on_time))
    assert "late" not in shown(run_of(*late[:1], *on_time, *on_time[:1]))
    assert "late" not in shown(run_of(*late, *on_time, kind="at_once"))


def test_a_workload_that_was_over_too_soon_is_told() -> None:
    run = run_of(*ANSWERS)
    assert "no more requests" in shown(replace(run, load={"kind": "poisson", "rate": 4.0, "duration": 60.0}))
    assert "no more requests" not in shown(replace(run, load={"kind": "poisson", "rate": 4.0, "duration": 2.1}))


@given(gaps=st.lists(st.floats(0, 10), min_size=1, max_size=200))
def test_gaps_are_counted_to_ten_microseconds(gaps: list[float]) -> None:
    counted = Gaps()
    counted.add(gaps[:5])
    counted.add(gaps[5:])
    figures = counted.figures()
    ordered = sorted(gaps)
    for percent in (50, 90, 99):
        exact = ordered[max(1, math.ceil(percent * len(gaps) / 100)) - 1]
        assert figures[f"p{percent}"] == pytest.approx(exact, abs=5.1e-6)
    assert figures["mean"] == pytest.approx(sum(gaps) / len(gaps))
    assert figures["max"] == max(gaps)
    assert Gaps().figures() == {}
