"""N processes count as one router."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from warmroute_router.processes.metrics_sum import SUMMED_GAUGES, Report, Total, summed

WORKERS = ("http://a", "http://b", "http://c")
LOADS = sorted(SUMMED_GAUGES)
OPINIONS = ("warmroute_worker_up", "warmroute_retention_tokens", "warmroute_tree_blocks")
BOUNDS = ("0.1", "1.0", "+Inf")

amounts = st.dictionaries(st.sampled_from(WORKERS), st.integers(0, 1000))


def counter(name: str, values: dict[str, int]) -> Metric:
    family = CounterMetricFamily(name, f"What {name} is.", labels=["worker"])
    for worker, value in values.items():
        family.add_metric([worker], value)
    return family


def gauge(name: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, f"What {name} is.", labels=["worker"])
    for worker, value in values.items():
        family.add_metric([worker], value)
    return family


def histogram(name: str, values: dict[str, int]) -> Metric:
    family = HistogramMetricFamily(name, f"What {name} is.", labels=["worker"])
    for worker, value in values.items():
        buckets = [(bound, float(value * (place + 1))) for place, bound in enumerate(BOUNDS)]
        family.add_metric([worker], buckets, sum_value=value / 2)
    return family


@st.composite
def reports(draw: st.DrawFn) -> Report:
    return [
        *(counter(name, draw(amounts)) for name in ("one", "two")),
        *(histogram(name, draw(amounts)) for name in ("seconds",)),
        *(gauge(name, draw(amounts)) for name in (*LOADS, *OPINIONS)),
    ]


Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def series(report: Report) -> Series:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for metric in report
        for sample in metric.samples
    }


def text(report: Report) -> str:
    class Collector:
        def collect(self) -> Report:
            return report

    registry = CollectorRegistry()
    registry.register(Collector())
    return generate_latest(registry).decode()


@given(reports(), st.integers(1, 5))
def test_n_copies_sum_to_n_times_what_is_counted_and_to_the_same_opinion(report: Report, copies: int) -> None:
    opinions = {key for key in series(report) if key[0] in OPINIONS}
    expected = {key: value * (1 if key in opinions else copies) for key, value in series(report).items()}
    assert series(summed([report] * copies)) == expected


def test_a_drain_that_all_processes_see_is_one() -> None:
    total = Total()
    for process, drains in enumerate((2, 3, 3)):
        total.report(process, [counter("warmroute_drains", {"": drains})])
    assert list(series(total.metrics()).values()) == [3]
    total.end(1)
    assert list(series(total.metrics()).values()) == [3]


@given(st.lists(reports(), min_size=1, max_size=4))
def test_each_series_is_the_sum_or_the_highest_of_those_who_have_it(several: list[Report]) -> None:
    expected: Series = {}
    for report in several:
        for key, value in series(report).items():
            before = expected.get(key)
            if before is None:
                expected[key] = value
            else:
                expected[key] = max(before, value) if key[0] in OPINIONS else before + value
    assert series(summed(several)) == expected


@given(st.lists(reports(), min_size=1, max_size=4))
def test_the_text_names_each_family_once_and_can_be_read_again(several: list[Report]) -> None:
    total = summed(several)
    lines = text(total).splitlines()
    for kind in ("# HELP", "# TYPE"):
        names = [line.split()[2] for line in lines if line.startswith(kind)]
        assert len(names) == len(set(names)) == len(total)
    assert series(list(text_string_to_metric_families(text(total)))) == series(total)


@given(st.lists(reports(), min_size=1, max_size=3))
def test_what_is_summed_is_left_as_it_is(several: list[Report]) -> None:
    before = [series(report) for report in several]
    summed(several)
    assert [series(report) for report in several] == before


def test_the_oldest_start_is_that_of_all_and_other_figures_of_processes_are_summed() -> None:
    def report(start: float, memory: float) -> list[Metric]:
        return [
            GaugeMetricFamily("process_start_time_seconds", "Start.", start),
            GaugeMetricFamily("process_resident_memory_bytes", "Memory.", memory),
        ]

    total = series(summed([report(20.0, 3.0), report(10.0, 4.0)]))
    assert sorted((name, value) for (name, _), value in total.items()) == [
        ("process_resident_memory_bytes", 7.0),
        ("process_start_time_seconds", 10.0),
    ]


# Processes that come and go


def value(metrics: Sequence[Metric], name: str, worker: str = "http://a") -> float | None:
    return series(metrics).get((name, frozenset({("worker", worker)})))


def test_what_a_process_has_counted_stays_when_it_ends_and_its_load_goes() -> None:
    total = Total()
    for process in (0, 1):
        total.report(process, [counter("done", {"http://a": 5}), gauge(LOADS[0], {"http://a": 2})])
    total.end(1)
    assert value(total.metrics(), "done_total") == 10
    assert value(total.metrics(), LOADS[0]) == 2
    total.report(1, [counter("done", {"http://a": 1})])
    assert value(total.metrics(), "done_total") == 11


def test_a_process_that_does_not_report_counts_with_what_it_said_last() -> None:
    total = Total()
    total.report(0, [gauge(LOADS[0], {"http://a": 1})])
    total.report(1, [gauge(LOADS[0], {"http://a": 2})])
    total.report(0, [gauge(LOADS[0], {"http://a": 4})])
    assert value(total.metrics(), LOADS[0]) == 6


def test_a_worker_that_is_gone_is_forgotten_with_what_ended_processes_counted_of_it() -> None:
    total = Total()
    both = {"http://a": 5, "http://b": 7}
    for process in (0, 1):
        total.report(process, [counter("done", both)])
    total.end(1)
    total.report(0, [counter("done", {"http://a": 5})])
    assert value(total.metrics(), "done_total", "http://b") is None
    assert value(total.metrics(), "done_total") == 10


def test_what_has_no_worker_stays_though_only_an_ended_process_counted_it() -> None:
    def refused(code: str) -> Metric:
        family = CounterMetricFamily("refused", "Refused.", labels=["code"])
        family.add_metric([code], 1)
        return family

    total = Total()
    total.report(0, [refused("429")])
    total.report(1, [refused("503")])
    total.end(1)
    assert series(total.metrics())[("refused_total", frozenset({("code", "503")}))] == 1


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9) | st.none()), max_size=40))
def test_no_counter_goes_backwards(steps: list[tuple[int, int | None]]) -> None:
    """A number is what a process counts more; None ends it, and another takes its place."""
    total = Total()
    counted = dict.fromkeys(range(3), 0)
    seen = 0.0
    for process, more in steps:
        if more is None:
            total.end(process)
            counted[process] = 0
        else:
            counted[process] += more
            total.report(process, [counter("done", {"http://a": counted[process]})])
        now = value(total.metrics(), "done_total") or 0.0
        assert now == seen + (more or 0)
        seen = now


def test_what_an_engine_says_is_not_said_twice_and_ends_with_those_who_heard_it() -> None:
    """Counters too: each process has asked the same engine."""
    total = Total()
    for process, tokens in ((1, 100), (2, 110)):
        total.report(process, [counter("warmroute_engine_prompt_tokens", {WORKERS[0]: tokens}), counter("own", {})])
    name = ("warmroute_engine_prompt_tokens_total", frozenset({("worker", WORKERS[0])}))
    assert series(total.metrics())[name] == 110
    total.end(2)
    assert series(total.metrics())[name] == 100
