"""Metric families, each made at a scrape from the values that it has just then."""

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from ..histogram import Histogram

Values = Iterable[tuple[Sequence[str], float]]
"""Of one family: the values of its labels, and the series' own."""
_PREFIX = "warmroute_"


def counter(name: str, help: str, values: Values, labels: Sequence[str] = ()) -> Metric:
    """`name`: without prefix and `_total`."""
    family = CounterMetricFamily(_PREFIX + name, help, labels=labels)
    for of_labels, value in values:
        family.add_metric(of_labels, value)
    return family


def gauge(name: str, help: str, values: Values, labels: Sequence[str] = ()) -> Metric:
    family = GaugeMetricFamily(_PREFIX + name, help, labels=labels)
    for of_labels, value in values:
        family.add_metric(of_labels, value)
    return family


def histogram(
    name: str, help: str, values: Iterable[tuple[Sequence[str], Histogram]], labels: Sequence[str] = ()
) -> Metric:
    """Those that have observed nothing have no series: each has a score of them."""
    family = HistogramMetricFamily(_PREFIX + name, help, labels=labels)
    for of_labels, observed in values:
        if (buckets := observed.cumulated())[-1][1]:
            family.add_metric(of_labels, buckets, observed.sum)
    return family


def one(value: float) -> Values:
    """Of a family without labels."""
    return [((), value)]
