"""What a plot is, and what all of them have in common: one run's colour, Plotly's layout, the axes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, floor, log10
from typing import Any

from ..shown import Shown
from ..units import round_up, short, tick

Spec = dict[str, Any]
"""Plotly's JSON. A colour that starts with `--` is the style sheet's, so that it follows the theme."""

NOT_MEASURED = "No answer had this."
NO_CACHE = "Not reported: no answer told its cached tokens."
LOG_FROM = 20.0
"""The ratio of the largest to the smallest latency from which on a linear axis would hide the small ones."""
LINEAR_BELOW = 4.0


@dataclass(frozen=True, slots=True)
class Key:
    """A line of a plot's legend."""

    label: str
    color: str
    dash: str = "solid"


@dataclass(frozen=True, slots=True)
class Plot:
    name: str
    title: str
    note: str
    data: list[Spec]
    layout: Spec
    keys: list[Key] = field(default_factory=list)
    height: int = 300
    columns: int = 3
    """Of the page's six."""
    missing: str = ""
    """What to say instead, where there is nothing to draw."""


def run_keys(shown: Sequence[Shown]) -> list[Key]:
    """A single run needs no legend."""
    return [Key(one.label, one.color) for one in shown] if len(shown) > 1 else []


def missing(shown: Sequence[Shown], drawn: object, untold: str = NOT_MEASURED) -> str:
    """What to say instead of a plot where nothing is drawn; `untold` where there are answers after all."""
    if drawn:
        return ""
    return untold if any(one.good for one in shown) else "No request had a good answer."


def layout(**specifics: Any) -> Spec:
    return {
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
        "paper_bgcolor": "--clear",
        "plot_bgcolor": "--clear",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "--muted"},
        "hoverlabel": {"bgcolor": "--card", "bordercolor": "--grid", "font": {"color": "--text"}, "namelength": -1},
        "showlegend": False,
        **specifics,
    }


def axis(**specifics: Any) -> Spec:
    return {
        "automargin": True,
        "gridcolor": "--grid",
        "linecolor": "--grid",
        "zeroline": False,
        "ticks": "",
        "tickangle": 0,
        **specifics,
    }


def axis_title(text: str) -> Spec:
    return {"text": text, "font": {"size": 12}}


def time_axis() -> Spec:
    return axis(
        title=axis_title("seconds from the start"),
        showgrid=False,
        rangemode="tozero",
        unifiedhovertitle={"text": "at %{x:.4~f} s"},
    )


def count_axis() -> Spec:
    return axis(rangemode="tozero", tickformat=",~d")


def share_axis() -> Spec:
    return axis(range=[0, 1.02], tickformat=".0%", tickvals=[0, 0.25, 0.5, 0.75, 1])


def latency_axis(values: Sequence[float]) -> Spec:
    """From 0, and logarithmic where the values need it."""
    low, high = _bounds(values)
    return _logarithmic(low, high) if high / low > LOG_FROM else _linear(0.0, high)


def distribution_axis(values: Sequence[float]) -> Spec:
    """Logarithmic, unless the values are so near each other that this has too few round marks."""
    low, high = _bounds(values)
    return _logarithmic(low, high) if high / low > LINEAR_BELOW else _linear(low, high)


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    return max(min(values, default=0.1), 1e-6), max(max(values, default=1.0), 1e-5)


def _logarithmic(low: float, high: float) -> Spec:
    marks = _decades(low, high)
    return axis(
        type="log",
        range=[short(log10(low / 1.15)), short(log10(high * 1.15))],
        tickvals=marks,
        ticktext=[tick(mark) for mark in marks],
    )


def _linear(low: float, high: float) -> Spec:
    span = max(high - low, high / 4)
    margin = span / 20 + (span - (high - low)) / 2
    start, end = low - margin if low else 0.0, high + margin
    step = round_up(span / 5)
    marks = [short(number * step) for number in range(ceil(start / step), floor(end / step) + 1)]
    return axis(range=[short(start), short(end)], tickvals=marks, ticktext=[tick(mark) for mark in marks])


def _decades(low: float, high: float) -> list[float]:
    """1, 10, 100; with more in between where the decades are few."""
    digits = (1, 2, 5) if high / low < 30 else (1, 3) if high / low < 300 else (1,)
    exponents = range(floor(log10(low)) - 1, ceil(log10(high)) + 1)
    return [float(f"{digit}e{exponent}") for exponent in exponents for digit in digits]
