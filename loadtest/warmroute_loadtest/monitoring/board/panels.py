"""What a panel is, and how Grafana writes it down."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24


@dataclass(frozen=True, slots=True)
class Query:
    expression: str
    legend: str
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    title: str
    description: str
    """What it is, and what to do where it looks bad."""
    queries: Sequence[Query]
    kind: Literal["timeseries", "stat", "state-timeline"] = "timeseries"
    unit: str = "short"
    width: int = 8
    height: int = 8
    top: float | None = None
    """End of the axis."""
    below_zero: bool = False
    """Whether there are such values: Grafana cuts off what is below the axis."""
    stacked: Literal["normal", "percent"] | None = None
    thresholds: tuple[tuple[float, str], ...] = ()
    """From which value on which colour. Below the first is red where that is green, and green otherwise."""
    table: bool = False
    """A legend with values, at the side: for what has one series per worker and a wide panel."""


@dataclass(frozen=True, slots=True)
class Section:
    title: str | None
    panels: Sequence[Panel]


def laid_out(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """Panels from left to right and from top to bottom, a title above each section."""
    return [{"id": number} | panel for number, panel in enumerate(_placed(sections), start=1)]


def _placed(sections: Sequence[Section]) -> Iterator[dict[str, Any]]:
    y = 0
    for section in sections:
        if section.title is not None:
            place = {"h": 1, "w": COLUMNS, "x": 0, "y": y}
            yield {"type": "row", "title": section.title, "collapsed": False, "gridPos": place, "panels": []}
            y += 1
        x = height = 0
        for panel in section.panels:
            if x + panel.width > COLUMNS:
                x, y, height = 0, y + height, 0
            yield _written(panel) | {"gridPos": {"h": panel.height, "w": panel.width, "x": x, "y": y}}
            x, height = x + panel.width, max(height, panel.height)
        y += height


def _written(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "color": {"mode": "palette-classic" if panel.kind == "timeseries" else "thresholds"},
        "thresholds": {"mode": "absolute", "steps": _steps(panel)},
        "mappings": [],
    }
    if not panel.below_zero and (panel.unit != "short" or panel.kind != "timeseries"):
        defaults["min"] = 0
    if panel.top is not None:
        defaults["max"] = panel.top
    options: dict[str, Any]
    match panel.kind:
        case "timeseries":
            defaults["custom"] = _lines(panel)
            options = _legend(panel)
        case "stat":
            reduced = {"calcs": ["lastNotNull"], "fields": "", "values": False}
            options = {"reduceOptions": reduced, "colorMode": "value", "graphMode": "area", "textMode": "auto"}
        case "state-timeline":
            defaults["custom"] = {"fillOpacity": 70, "lineWidth": 0}
            defaults["mappings"] = [_MAPPED]
            options = {"mergeValues": True, "showValue": "never", "rowHeight": 0.85, **_legend(panel)}
    dashed = [_letter(number) for number, query in enumerate(panel.queries) if query.dashed]
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": [_dashes(letter) for letter in dashed]},
        "options": options,
        "targets": [_target(_letter(number), query) for number, query in enumerate(panel.queries)],
    }


_MAPPED = {
    "type": "value",
    "options": {
        "0": {"text": "down", "color": "red", "index": 0},
        "1": {"text": "up", "color": "green", "index": 1},
    },
}


def _steps(panel: Panel) -> list[dict[str, Any]]:
    base = "red" if any(color == "green" for _, color in panel.thresholds) else "green"
    return [{"color": base, "value": None}, *({"color": color, "value": at} for at, color in panel.thresholds)]


def _lines(panel: Panel) -> dict[str, Any]:
    return {
        "drawStyle": "line",
        "lineWidth": 2 if panel.table else 1,
        "fillOpacity": 30 if panel.stacked else 0,
        "showPoints": "never",
        "spanNulls": False,  # a gap is what is unknown
        "stacking": {"mode": panel.stacked or "none", "group": "A"},
        "thresholdsStyle": {"mode": "dashed" if panel.thresholds else "off"},
    }


def _legend(panel: Panel) -> dict[str, Any]:
    shape: dict[str, Any] = {"displayMode": "list", "placement": "bottom", "calcs": []}
    if panel.table:
        shape = {"displayMode": "table", "placement": "right", "calcs": ["lastNotNull", "mean"]}
    return {"legend": {"showLegend": True, **shape}, "tooltip": {"mode": "multi", "sort": "desc"}}


def _dashes(letter: str) -> dict[str, Any]:
    look = [
        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [6, 6]}},
        {"id": "custom.lineWidth", "value": 1},
    ]
    return {"matcher": {"id": "byFrameRefID", "options": letter}, "properties": look}


def _target(letter: str, query: Query) -> dict[str, Any]:
    return {
        "refId": letter,
        "datasource": DATASOURCE,
        "expr": query.expression,
        "legendFormat": query.legend,
        "editorMode": "code",
        "range": True,
        "instant": False,
    }


def _letter(number: int) -> str:
    return "ABCDEFGH"[number]
