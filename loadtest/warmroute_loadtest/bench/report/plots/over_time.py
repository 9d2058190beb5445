"""Plots over time: TTFT, hit rate, and failures where there are any."""

from collections.abc import Callable, Sequence
from html import escape

from ..figures import present
from ..series import Bin, bin_width, bins
from ..shown import Shown
from ..units import percent, seconds, short, tick
from .plot import (
    NO_CACHE,
    Key,
    Plot,
    Spec,
    count_axis,
    latency_axis,
    layout,
    missing,
    run_keys,
    share_axis,
    time_axis,
)

MARKED = 60
"""Bins up to which each has a mark, so that one between two gaps is seen too."""


Binned = Sequence[tuple[Shown, list[Bin]]]


def over_time(shown: Sequence[Shown]) -> list[Plot]:
    width = bin_width([one.run for one in shown])
    binned = [(one, bins(one.run, width)) for one in shown]
    plots = [_ttft(binned, width), _hit_rate(binned, width)]
    if any(bin_.failed for _, own in binned for bin_ in own):
        plots.append(_failures(binned, width))
    return plots


def _ttft(binned: Binned, width: float) -> Plot:
    shown = [one for one, _ in binned]
    data, keys = [], []
    for one, own in binned:
        for which, dash, values in (
            ("p50", "solid", [bin_.ttft_p50 for bin_ in own]),
            ("p99", "dot", [bin_.ttft_p99 for bin_ in own]),
        ):
            name = f"{one.label} {which}" if len(binned) > 1 else which
            data.append(_line(one, name, own, values, seconds, dash))
            keys.append(Key(name, one.color, dash))
    drawn = [value for trace in data for value in present(trace["y"])]
    return Plot(
        "ttft-over-time",
        "TTFT",
        f"p50 and p99 of the requests due in each {tick(width)}. Lower is better.",
        data,
        layout(xaxis=time_axis(), yaxis=latency_axis(drawn), hovermode="x unified"),
        keys,
        missing=missing(shown, drawn),
    )


def _hit_rate(binned: Binned, width: float) -> Plot:
    shown = [one for one, _ in binned]
    data = [_line(one, one.label, own, [bin_.hit_rate for bin_ in own], percent) for one, own in binned]
    return Plot(
        "hit-rate-over-time",
        "Hit rate",
        f"Cached share of the prompt tokens, in each {tick(width)}. Higher is better.",
        data,
        layout(xaxis=time_axis(), yaxis=share_axis(), hovermode="x unified"),
        run_keys([one for one, _ in binned]),
        missing=missing(shown, [value for trace in data for value in present(trace["y"])], NO_CACHE),
    )


def _failures(binned: Binned, width: float) -> Plot:
    data = [
        {
            "type": "bar",
            "name": escape(one.label),
            "x": [short(bin_.middle) for bin_ in own],
            "y": [bin_.failed for bin_ in own],
            "marker": {"color": one.color},
        }
        for one, own in binned
    ]
    return Plot(
        "failures-over-time",
        "Failed requests",
        f"Of those due in each {tick(width)}.",
        data,
        layout(xaxis=time_axis(), yaxis=count_axis(), hovermode="x unified", bargap=0.15),
        run_keys([one for one, _ in binned]),
        height=180,
        columns=6,
    )


def _line(
    one: Shown,
    name: str,
    own: Sequence[Bin],
    values: Sequence[float | None],
    unit: Callable[[float], str],
    dash: str = "solid",
) -> Spec:
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(own) <= MARKED else "lines",
        "name": escape(name),
        "x": [short(bin_.middle) for bin_ in own],
        "y": [None if value is None else short(value) for value in values],
        "text": ["" if value is None else unit(value) for value in values],
        "hovertemplate": "%{text}",
        "line": {"color": one.color, "dash": dash, "width": 2 if dash == "solid" else 1.5},
        "marker": {"color": one.color, "size": 4},
    }
