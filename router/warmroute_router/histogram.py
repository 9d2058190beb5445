"""A histogram that the hot path can afford: observing is a bisection and two additions."""

from bisect import bisect_left
from collections.abc import Sequence
from math import inf

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""From the router's own time to that of long answers."""
MICROSECONDS = (1e-05, 2.5e-05, 5e-05, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1)
"""The same for what the router computes; in seconds."""


class Histogram:
    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: ascending; each belongs to the bucket below it, and a last one goes up to infinity."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulated(self) -> list[tuple[str, float]]:
        """As Prometheus counts: by upper bound, with all that is below."""
        total, buckets = 0, []
        for bound, count in zip((*self.bounds, inf), self.counts.copy(), strict=True):
            total += count
            buckets.append(("+Inf" if bound == inf else repr(bound), float(total)))
        return buckets
