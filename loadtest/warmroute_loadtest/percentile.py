"""Percentiles of measured and of simulated times, by one rule."""

from collections.abc import Sequence


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest value that at least `percent` % of the values do not exceed (nearest rank)."""
    rank = -(-percent * len(ordered) // 100)
    return ordered[max(rank, 1) - 1]
