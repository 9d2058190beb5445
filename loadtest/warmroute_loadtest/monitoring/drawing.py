"""A panel as we draw it: what Grafana would show, of the same data, by Plotly."""

import re
from collections.abc import Sequence
from math import isfinite
from typing import Any, NamedTuple

from .dashboard import Panel
from .prometheus import Series
from .story import Event

COLORS = ("#2f7ed8", "#e8833a", "#3a9d5d", "#b3589a", "#7a6fd0", "#c9a227", "#4fa8a8", "#c94f4f")
_GOOD, _WARN, _BAD = "#3a9d5d", "#e8833a", "#d64545"
_NAMED = {"green": _GOOD, "orange": _WARN, "red": _BAD}
_FORMATS = {
    "percentunit": (".0%", ""),
    "s": ("~s", "s"),
    "bytes": ("~s", "B"),
    "reqps": ("~r", ""),
    "ops": ("~r", ""),
    "short": ("~r", ""),
}
"""Plotly's, by Grafana's unit, and what follows the number."""


class Line(NamedTuple):
    name: str
    color: str
    dashed: bool
    when: list[float]
    """Seconds from the start."""
    values: list[float | None]

    @property
    def known(self) -> list[float]:
        return [value for value in self.values if value is not None]

    @property
    def last(self) -> float | None:
        return self.values[-1] if self.values else None

    @property
    def mean(self) -> float | None:
        return sum(self.known) / len(self.known) if self.known else None


def lines(panel: Panel, found: Sequence[Sequence[Series]], start: float, seconds: int) -> list[Line]:
    """`found`: the series of each target. Seconds without a value are gaps."""
    drawn: list[Line] = []
    colors: dict[object, str] = {}
    for target, series in zip(panel.targets, found, strict=True):
        dashed = any(each["matcher"]["options"] == target.letter for each in panel.raw["fieldConfig"]["overrides"])
        for each in sorted(series, key=lambda one: sorted(one.labels.items())):
            # What is real and predicted of one worker has one color, so that the two can be compared.
            key = tuple(sorted(each.labels.items())) or (target.letter,)
            color = colors.setdefault(key, COLORS[len(colors) % len(COLORS)])
            at = {round(when - start): value for when, value in each.points if isfinite(value)}
            values = [at.get(second) for second in range(seconds)]
            drawn.append(Line(_legend(target.legend, each), color, dashed, list(range(seconds)), values))
    return drawn


def _legend(legend: str, series: Series) -> str:
    return re.sub(r"\{\{ *(\w+) *\}\}", lambda label: _short(series.labels[label[1]]), legend)


def _short(value: str) -> str:
    """Of a worker's URL its host: all of them have one port."""
    return value.removeprefix("http://").partition(":")[0]


def spec(panel: Panel, drawn: Sequence[Line], events: Sequence[Event], start: float) -> dict[str, Any]:
    """Plotly's data and layout."""
    if panel.kind == "state-timeline":
        return {"data": [_strips(drawn)], "layout": _layout(panel, drawn, events, start, strips=True)}
    stacking = panel.raw["fieldConfig"]["defaults"].get("custom", {}).get("stacking", {}).get("mode", "none")
    data = [_curve(line, stacking) for line in drawn]
    return {"data": data, "layout": _layout(panel, drawn, events, start)}


def _curve(line: Line, stacking: str) -> dict[str, Any]:
    look = {"color": line.color, "width": 1.4 if line.dashed else 1.8, "dash": "dot" if line.dashed else "solid"}
    curve: dict[str, Any] = {"type": "scatter", "mode": "lines", "x": line.when, "y": line.values, "line": look}
    if stacking != "none":
        curve |= {"stackgroup": "one", "groupnorm": "fraction" if stacking == "percent" else ""}
    return curve


def _strips(drawn: Sequence[Line]) -> dict[str, Any]:
    last_first = list(reversed(drawn))
    return {
        "type": "heatmap",
        "x": last_first[0].when if last_first else [],
        "y": [line.name for line in last_first],
        "z": [line.values for line in last_first],
        "zmin": 0,
        "zmax": 1,
        "colorscale": [[0, _BAD], [1, _GOOD]],
        "showscale": False,
        "ygap": 5,
    }


def _layout(
    panel: Panel, drawn: Sequence[Line], events: Sequence[Event], start: float, *, strips: bool = False
) -> dict[str, Any]:
    defaults = panel.raw["fieldConfig"]["defaults"]
    tickformat, suffix = _FORMATS[defaults["unit"]]
    percent = defaults.get("custom", {}).get("stacking", {}).get("mode") == "percent"
    axis: dict[str, Any] = {"gridcolor": "#eceff3", "zeroline": False, "tickfont": {"size": 11}, "automargin": True}
    known = [value for line in drawn for value in line.known]
    below, above = min(known, default=0.0), max(known, default=0.0)
    if defaults["unit"] == "short" and above >= 1000:
        tickformat = "~s"
    vertical = {**axis, "nticks": 6, "tickformat": ".0%" if percent else tickformat, "ticksuffix": suffix}
    if strips:
        vertical = {**axis, "showgrid": False, "type": "category"}
    elif (top := defaults.get("max")) is not None:
        vertical["range"] = [min(below, 0) * 1.1, top * 1.02]
    else:
        vertical["rangemode"] = "tozero"
    seconds = drawn[0].when[-1] if drawn else 1
    horizontal = {**axis, "ticksuffix": " s", "range": [0, seconds], "tickvals": [*range(30, int(seconds), 30)]}
    return {
        "xaxis": horizontal,
        "yaxis": vertical,
        "shapes": [*_marks(events, start), *([] if strips else _thresholds(defaults))],
        "margin": {"l": 8, "r": 10, "t": 6, "b": 22},
        "showlegend": False,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "Inter, Helvetica, Arial, sans-serif", "color": "#4b5563", "size": 11},
    }


def _marks(events: Sequence[Event], start: float) -> list[dict[str, Any]]:
    line = {"color": "#64748b", "width": 1, "dash": "dash"}
    return [
        {"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1, "line": line}
        for x in (event.when - start for event in events)
    ]


def _thresholds(defaults: dict[str, Any]) -> list[dict[str, Any]]:
    if defaults["custom"]["thresholdsStyle"]["mode"] == "off":
        return []
    return [
        {
            "type": "line",
            "xref": "paper",
            "yref": "y",
            "x0": 0,
            "x1": 1,
            "y0": step["value"],
            "y1": step["value"],
            "line": {"color": _NAMED[step["color"]], "width": 1, "dash": "dash"},
            "opacity": 0.6,
        }
        for step in defaults["thresholds"]["steps"]
        if step["value"] is not None
    ]


def written(value: float | None, unit: str) -> str:
    """For legends and single figures."""
    if value is None:
        return "–"
    match unit:
        case "percentunit":
            return f"{value:.0%}"
        case "s":
            return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.0f} ms"
        case "reqps":
            return f"{value:.1f} /s"
        case _:
            return f"{value:.1f}"


def color_of(value: float | None, defaults: dict[str, Any]) -> str:
    """That of the highest threshold which it reaches."""
    color = "#374151"
    for step in defaults["thresholds"]["steps"]:
        if value is not None and (step["value"] is None or value >= step["value"]):
            color = _NAMED[step["color"]]
    return color
