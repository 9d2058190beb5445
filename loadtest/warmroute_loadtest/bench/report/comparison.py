"""Figures of two runs side by side: the second against the first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from typing import Literal

from .figures import Figure
from .units import times

SAME = 0.02
"""Figures that are nearer than this share of each other are called the same."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, of each run."""

    name: str
    figures: Sequence[Figure]

    @property
    def ratio(self) -> str:
        """The second over the first, where there is such a thing."""
        first, second = self._values
        return times(second / first) if first and second is not None else ""

    @property
    def verdict(self) -> Literal["better", "worse", "same", ""]:
        first, second = self._values
        if first is None or second is None or not self.figures[0].better:
            return ""
        if isclose(first, second, rel_tol=SAME):
            return "same"
        return "better" if (second > first) == (self.figures[0].better == "more") else "worse"

    @property
    def arrow(self) -> str:
        """Which way the figure went; whether that is good, the verdict says."""
        first, second = self._values
        if self.verdict == "same" or first is None or second is None:
            return "="
        return "▲" if second > first else "▼"

    @property
    def _values(self) -> tuple[float | None, float | None]:
        return (self.figures[0].value, self.figures[1].value) if len(self.figures) > 1 else (None, None)


def rows(of_runs: Sequence[Mapping[str, Sequence[Figure]]]) -> dict[str, list[Row]]:
    """By group; each run's figures come in the same order."""
    return {
        group: [Row(own[0].name, own) for own in zip(*(figures[group] for figures in of_runs), strict=True)]
        for group in of_runs[0]
    }
