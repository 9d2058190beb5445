"""What was measured, kept as it comes, so that a race that was broken off can go on; medians and ratios of it."""

import statistics
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import orjson

from .contenders import US

Measure = Mapping[str, float]
"""Figures of one run, by name."""


class Results:
    """By part, case and contender: a list of measures, one for each repetition."""

    def __init__(self, file: Path | None = None) -> None:
        """Without a file, nothing is kept."""
        self._file = file
        self._kept: dict[str, dict[str, dict[str, list[dict[str, Any]]]]] = {}
        if file is not None and file.exists():
            self._kept = orjson.loads(file.read_bytes())

    def has(self, part: str, case: str, contender: str, repetition: int) -> bool:
        return len(self._of(part, case, contender)) > repetition

    def add(self, part: str, case: str, contender: str, measure: Measure) -> None:
        runs = self._kept.setdefault(part, {}).setdefault(case, {}).setdefault(contender, [])
        runs.append({**measure, "day": date.today().isoformat()})
        if self._file is not None:
            self._file.parent.mkdir(exist_ok=True)
            self._file.write_bytes(orjson.dumps(self._kept, option=orjson.OPT_INDENT_2))

    def forget(self, part: str, contender: str) -> None:
        """So that it is measured anew."""
        for case in self._kept.get(part, {}).values():
            case.pop(contender, None)

    def cases(self, part: str) -> list[str]:
        return [name for name, runs in self._kept.get(part, {}).items() if runs]

    def contenders(self, part: str) -> list[str]:
        return list(dict.fromkeys(name for case in self._kept.get(part, {}).values() for name in case))

    def values(self, part: str, case: str, contender: str, figure: str) -> list[float]:
        """One for each repetition that has it."""
        return [run[figure] for run in self._of(part, case, contender) if figure in run]

    def median(self, part: str, case: str, contender: str, figure: str) -> float | None:
        values = self.values(part, case, contender, figure)
        return statistics.median(values) if values else None

    def ratio(self, part: str, case: str, contender: str, figure: str) -> float | None:
        """Of our median to theirs."""
        ours, theirs = self.median(part, case, US, figure), self.median(part, case, contender, figure)
        return ours / theirs if ours is not None and theirs else None

    def added(self, part: str, case: str, contender: str, base: str, figure: str) -> list[float]:
        """How much more it is than the base's, repetition by repetition."""
        pairs = zip(
            self.values(part, case, contender, figure), self.values(part, case, base, figure), strict=False
        )  # a race that was broken off has more of one than of the other
        return [value - least for value, least in pairs]

    def days(self, part: str) -> str:
        """When it was measured: a day, or the first and the last."""
        known = sorted({run["day"] for case in self._kept[part].values() for runs in case.values() for run in runs})
        return known[0] if len(known) == 1 else f"{known[0]} to {known[-1]}"

    def _of(self, part: str, case: str, contender: str) -> list[dict[str, Any]]:
        return self._kept.get(part, {}).get(case, {}).get(contender, [])


def spread(values: list[float], shown: Callable[[float], str]) -> str:
    """The median, and from where to where the others are."""
    if not values:
        return "–"
    median = shown(statistics.median(values))
    return median if len(values) == 1 else f"{median} ({shown(min(values))} to {shown(max(values))})"


def multiple(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}×"


def markdown_table(headings: list[str], rows: list[list[str]]) -> str:
    lines = [headings, ["---"] + ["---:"] * (len(headings) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
