"""Plots per worker. Few have a bar and a name each; many are a profile, whose shape is the message."""

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape

from ....percentile import percentile
from ...summary import WorkerFigures
from ..series import heat_width, in_flight, nearly_done
from ..shown import Shown
from ..units import count, percent, short, three_digits, tick, times
from .plot import NO_CACHE, Plot, Spec, axis, axis_title, count_axis, layout, missing, run_keys, share_axis, time_axis

FEW = 16
MOST_ROWS = 200
LONGEST_NAME = 26

Fleets = Sequence[tuple[Shown, list[WorkerFigures]]]


def per_worker(shown: Sequence[Shown]) -> list[Plot]:
    fleets = [(one, sorted(one.summary.workers, key=lambda worker: -worker.requests)) for one in shown]
    return [_load(fleets), _hit_rate(fleets), *_in_flight(fleets)]


def _load(fleets: Fleets) -> Plot:
    skews = [
        times(one.summary.skew) + (f" ({one.label})" if len(fleets) > 1 else "") for one, fleet in fleets if fleet
    ]
    note = "Requests answered by each worker."
    if skews:
        note += f" The busiest has {' and '.join(skews)} the mean."
    return _plot(fleets, "Load", note, lambda worker: worker.requests, count)


def _hit_rate(fleets: Fleets) -> Plot:
    note = "Cached share of the prompt tokens of each worker."
    return _plot(fleets, "Hit rate", note, lambda worker: worker.hit_rate, percent)


def _plot(
    fleets: Fleets,
    title: str,
    note: str,
    value: Callable[[WorkerFigures], float | None],
    unit: Callable[[float], str],
) -> Plot:
    told = [{worker.worker: own for worker in fleet if (own := value(worker)) is not None} for _, fleet in fleets]
    names = _common_order(fleets)
    data = [
        _bars(one, own, unit, names) if names else _profile(one, own, unit)
        for (one, _), own in zip(fleets, told, strict=True)
    ]
    values_axis = share_axis() if unit is percent else count_axis()
    if names:
        axes: Spec = {"xaxis": values_axis, "yaxis": _name_axis(names)}
    else:
        axes = {"xaxis": axis(title=axis_title("workers, the highest first"), showgrid=False), "yaxis": values_axis}
    if any(trace["type"] == "bar" for trace in data):
        axes |= {"bargap": 0.25, "bargroupgap": 0.05}
    return Plot(
        f"{title.lower().replace(' ', '-')}-per-worker",
        f"{title} per worker",
        note,
        data,
        layout(**axes),
        run_keys([one for one, _ in fleets]),
        height=50 + len(names) * (12 + 16 * len(fleets)) if names else 300,
        missing=missing([one for one, _ in fleets], any(told), NO_CACHE),
    )


def _bars(one: Shown, values: Mapping[str, float], unit: Callable[[float], str], names: Sequence[str]) -> Spec:
    return {
        "type": "bar",
        "orientation": "h",
        "name": escape(one.label),
        "y": [escape(name) for name in names],
        "x": [short(values[name]) if name in values else None for name in names],
        "text": [unit(values[name]) if name in values else "" for name in names],
        "textposition": "auto",
        "marker": {"color": one.color},
        "hovertemplate": "%{y}: %{text}",
    }


def _profile(one: Shown, values: Mapping[str, float], unit: Callable[[float], str]) -> Spec:
    ranked = sorted(values.items(), key=lambda item: -item[1])
    spec: Spec = {
        "name": escape(one.label),
        "x": list(range(1, len(ranked) + 1)),
        "y": [short(value) for _, value in ranked],
        "text": [f"{escape(name)}: {unit(value)}" for name, value in ranked],
        "hovertemplate": "%{text}",
    }
    if len(ranked) <= FEW:
        return spec | {"type": "bar", "textposition": "none", "marker": {"color": one.color}}
    return spec | {
        "type": "scatter",
        "mode": "lines",
        "line": {"color": one.color, "width": 2, "shape": "hvh"},
        "fill": "tozeroy",
        "fillcolor": f"{one.color}-soft",
    }


def _in_flight(fleets: Fleets) -> list[Plot]:
    """A map for each run, all with the same scale."""
    common = _common_order(fleets)
    rows = [common or [worker.worker for worker in fleet][:MOST_ROWS] for _, fleet in fleets]
    end = nearly_done([one.run for one, _ in fleets])
    width = heat_width(max(map(len, rows)), end)
    maps = [in_flight(one.run, names, width, end) for (one, _), names in zip(fleets, rows, strict=True)]
    cells = sorted(cell for map_ in maps for row in map_ for cell in row if cell)
    if not cells:
        return []
    # One worker that is overrun must not make all the others pale.
    most = percentile(cells, 98)
    return [
        Plot(
            f"in-flight-{number}",
            "Requests in flight" + (f", {one.label}" if len(fleets) > 1 else ""),
            f"Mean number at once at each worker, in each {tick(width)}; "
            f"the strongest colour is {three_digits(most)} or more."
            + ("" if common else " The busiest worker is on top.")
            + (f" The {MOST_ROWS} busiest of {len(fleet)}." if len(names) < len(fleet) else ""),
            [_heat(names, map_, most, width)] if names else [],
            layout(xaxis=time_axis(), yaxis=_name_axis(names) | ({} if common else {"showticklabels": False})),
            height=min(60 + 24 * len(names), 560),
            columns=3 if len(fleets) > 1 else 6,
            missing=missing([one], names),
        )
        for number, ((one, fleet), names, map_) in enumerate(zip(fleets, rows, maps, strict=True), 1)
    ]


def _heat(names: Sequence[str], rows: Sequence[Sequence[float]], most: float, width: float) -> Spec:
    return {
        "type": "heatmap",
        "x": [short((column + 0.5) * width) for column in range(len(rows[0]))],
        "y": [escape(name) for name in names],
        "z": [[float(f"{cell:.3g}") for cell in row] for row in rows],
        "zmin": 0,
        "zmax": short(most),
        "colorscale": "--heat",
        "colorbar": {"thickness": 8, "outlinewidth": 0, "ticks": "", "nticks": 5},
        "ygap": 1 if len(names) <= 2 * FEW else 0,
        "hovertemplate": "%{y}, at %{x:.4~f} s: %{z} in flight<extra></extra>",
    }


def _common_order(fleets: Fleets) -> list[str]:
    """By name, where there are few workers and, of two runs, the fleets have any in common; otherwise nothing."""
    names = [{worker.worker for worker in fleet} for _, fleet in fleets]
    every = set().union(*names)
    if len(every) > FEW or not (len(names) == 1 or names[0] & names[1]):
        return []
    return sorted(every, key=lambda name: [part.zfill(12) for part in re.split(r"(\d+)", name)])


def _name_axis(names: Sequence[str]) -> Spec:
    shown = [name.removeprefix("http://").removeprefix("https://") for name in names]
    return axis(
        type="category",
        autorange="reversed",
        showgrid=False,
        tickvals=[escape(name) for name in names],
        ticktext=[escape(name if len(name) <= LONGEST_NAME else f"…{name[1 - LONGEST_NAME :]}") for name in shown],
    )
