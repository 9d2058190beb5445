"""Inter-token latencies of a whole run: each is counted, none is kept."""

from collections import Counter
from collections.abc import Iterable
from itertools import accumulate

_TICK = 1e-5
"""Seconds to which they are counted: there are far fewer such values than there are gaps in a long run."""


class Gaps:
    def __init__(self) -> None:
        self._ticks: Counter[int] = Counter()
        self._sum = 0.0
        self._max = 0.0

    def add(self, gaps: Iterable[float]) -> None:
        for gap in gaps:
            self._ticks[round(gap / _TICK)] += 1
            self._sum += gap
            if gap > self._max:
                self._max = gap

    def figures(self) -> dict[str, float]:
        """Seconds: `p50`, `p90`, `p99` (nearest rank), `mean` and `max`; nothing where there were no gaps."""
        total = self._ticks.total()
        if not total:
            return {}
        ordered = sorted(self._ticks)
        upto = list(accumulate(self._ticks[tick] for tick in ordered))
        percentiles = {
            f"p{percent}": ordered[next(place for place, count in enumerate(upto) if count >= total * percent / 100)]
            * _TICK
            for percent in (50, 90, 99)
        }
        return {**percentiles, "mean": self._sum / total, "max": self._max}
