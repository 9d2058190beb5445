"""Distributions of the latencies: which share of the requests was served within how long."""

from collections.abc import Callable, Sequence
from html import escape

from ...record import Answer
from ..figures import present
from ..series import distribution
from ..shown import Shown
from ..units import seconds, short
from .plot import Plot, Spec, distribution_axis, layout, missing, run_keys, share_axis


def distributions(shown: Sequence[Shown]) -> list[Plot]:
    return [
        _plot(shown, "ttft", "TTFT", "Share of requests with a first token by then.", lambda a: a.ttft),
        _plot(shown, "e2e", "End to end", "Share of requests that were done by then.", lambda a: a.e2e),
        _plot(shown, "itl", "Between tokens", "Share of streams whose mean gap was no longer.", lambda a: a.itl_mean),
    ]


def _plot(
    shown: Sequence[Shown], name: str, title: str, note: str, latency: Callable[[Answer], float | None]
) -> Plot:
    told = [present(latency(answer) for answer in one.good) for one in shown]
    every = [value for own in told for value in own]
    return Plot(
        f"{name}-distribution",
        title,
        note,
        [_curve(one, own) for one, own in zip(shown, told, strict=True)],
        layout(xaxis=distribution_axis(every), yaxis=share_axis()),
        run_keys(shown),
        columns=2,
        missing=missing(shown, every),
    )


def _curve(one: Shown, values: Sequence[float]) -> Spec:
    points = distribution(values)
    return {
        "type": "scatter",
        "mode": "lines" if len(points) > 1 else "markers",
        "name": escape(one.label),
        "x": [short(max(value, 1e-6)) for value, _ in points],  # a logarithmic axis has no 0
        "y": [short(share) for _, share in points],
        "text": [seconds(value) for value, _ in points],
        "hovertemplate": "%{y:.1%} within %{text}",
        "line": {"color": one.color, "width": 2, "shape": "hv"},
        "marker": {"color": one.color},
    }
