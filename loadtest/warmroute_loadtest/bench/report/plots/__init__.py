"""The report's plots."""

from collections.abc import Sequence

from ..shown import Shown
from .distributions import distributions
from .over_time import over_time
from .per_worker import per_worker
from .plot import Plot

__all__ = ["Plot", "sections"]


def sections(shown: Sequence[Shown]) -> dict[str, list[Plot]]:
    return {
        "Over time": over_time(shown),
        "Latency distributions": distributions(shown),
        "Workers": per_worker(shown),
    }
