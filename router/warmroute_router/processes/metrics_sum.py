"""The metrics of several processes as those of one router.

Counters, histograms and loads are sums. What is each process's own opinion of the same thing, as whether a worker is
up or how fast it is, is the highest of them: a worker is up where any process finds it ready.
"""

from collections.abc import Iterable, Sequence
from copy import copy

from prometheus_client import Metric
from prometheus_client.samples import Sample

SUMMED_GAUGES = frozenset(
    {
        "warmroute_in_flight_requests",
        "warmroute_waiting_tokens",
        "warmroute_admitted_requests",
        "warmroute_queued_requests",
        "warmroute_worker_connections",
        "warmroute_held_body_bytes",
        "warmroute_tasks",
    }
)
_GROWING = ("counter", "histogram", "summary")
_SHARED = ("warmroute_engine_", "warmroute_drains")
"""What engines say of themselves and which workers drain is the same for all processes, counters too."""

Report = Sequence[Metric]
"""All families of one process."""


def summed(reports: Iterable[Report]) -> list[Metric]:
    """Each family and each of its series once, in the order in which they come first."""
    families: dict[str, Metric] = {}
    series: dict[str, dict[tuple[str, frozenset[tuple[str, str]]], Sample]] = {}
    for report in reports:
        for metric in report:
            families.setdefault(metric.name, metric)
            known = series.setdefault(metric.name, {})
            for sample in metric.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                before = known.get(key)
                known[key] = sample if before is None else _joined(metric, before, sample)
    return [_with(family, series[name].values()) for name, family in families.items()]


def _joined(metric: Metric, one: Sample, other: Sample) -> Sample:
    if metric.name == "process_start_time_seconds" or one.name.endswith("_created"):
        value = min(one.value, other.value)
    elif _is_summed(metric, one):
        value = one.value + other.value
    else:
        value = max(one.value, other.value)
    return one._replace(value=value)


def _is_summed(metric: Metric, sample: Sample) -> bool:
    if metric.name.startswith(_SHARED):
        return False
    if metric.type in _GROWING:
        return "quantile" not in sample.labels
    return metric.name in SUMMED_GAUGES or metric.name.startswith("process_")


def _with(family: Metric, samples: Iterable[Sample]) -> Metric:
    family = copy(family)
    family.samples = list(samples)
    return family


def _outlives(metric: Metric) -> bool:
    """Whether it counts on for a process that has ended."""
    return metric.type in _GROWING and not metric.name.startswith(_SHARED)


class Total:
    """The sum over processes that come and go. What has been counted stays counted."""

    def __init__(self) -> None:
        self._latest: dict[int, Report] = {}
        """Of the processes that there are. Who does not report in time counts with what it said last."""
        self._ended: list[Metric] = []
        """Counters of those that there were, as of their last report."""

    def report(self, process: int, metrics: Report) -> None:
        self._latest[process] = metrics

    def end(self, process: int) -> None:
        last = self._latest.pop(process, ())
        self._ended = summed([self._ended, [metric for metric in last if _outlives(metric)]])

    def metrics(self) -> list[Metric]:
        living = list(self._latest.values())
        if living:
            self._forget_gone_workers(living)
        return summed([*living, self._ended])

    def _forget_gone_workers(self, living: Iterable[Report]) -> None:
        """Each process drops the series of a worker that is gone; the dead cannot."""
        workers = {sample.labels.get("worker") for report in living for metric in report for sample in metric.samples}
        workers.add(None)
        self._ended = [
            _with(metric, [sample for sample in metric.samples if sample.labels.get("worker") in workers])
            for metric in self._ended
        ]
