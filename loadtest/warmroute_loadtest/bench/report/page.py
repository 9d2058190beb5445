"""The page: everything that the template needs."""

from collections.abc import Sequence
from secrets import token_urlsafe
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from ..record import Run
from .comparison import Row, rows
from .figures import figures
from .notices import notices, reasons
from .plots import sections
from .shown import Shown, show
from .units import count, percent, seconds

CARDS = {
    "hit rate": "Hit rate",
    "TTFT p50": "TTFT p50",
    "TTFT p99": "TTFT p99",
    "E2E p50": "End to end p50",
    "output tokens per second": "Output tokens",
    "skew": "Skew",
}
"""The figures of the first row, and what they are called there."""

MOST_REASONS = 20


def page(runs: Sequence[Run]) -> str:
    shown = show(runs)
    plots = sections(shown)
    table = rows([figures(one) for one in shown])
    environment = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"count": count, "percent": percent, "seconds": seconds}
    return environment.get_template("report.html").render(
        shown=shown,
        comparing=len(shown) > 1,
        briefs=[_in_brief(one) for one in shown],
        notices=notices(shown),
        cards=_cards(table),
        sections=plots,
        specs={plot.name: {"data": plot.data, "layout": plot.layout} for own in plots.values() for plot in own},
        facts=[_facts(one.run) for one in shown],
        table=table,
        reasons=[reasons(one)[:MOST_REASONS] for one in shown],
        # Only scripts that carry it run, whatever a label or an error text tries to be.
        nonce=token_urlsafe(16),
        plotly=Markup(get_plotlyjs()),
    )


def _cards(table: dict[str, list[Row]]) -> list[tuple[str, Row]]:
    by_name = {row.name: row for group in table.values() for row in group}
    return [(title, by_name[name]) for name, title in CARDS.items()]


def _in_brief(one: Shown) -> str:
    told, run = one.summary, one.run
    failed = count(told.requests - told.good) if told.good < told.requests else "none"
    what = (f"{count(told.requests)} requests, {failed} failed, in {seconds(run.duration)}", _load(run))
    return " · ".join(str(part) for part in (*what, run.workload.get("name"), run.model) if part)


def _facts(run: Run) -> dict[str, str]:
    return {
        "Started": run.started,
        "Lasted": seconds(run.duration),
        "Model": run.model,
        "Workload": _parameters(run.workload, "name"),
        "Load": _load(run),
        "warmroute": run.version,
    }


def _load(run: Run) -> str:
    return _parameters(run.load, "kind")


def _parameters(given: dict[str, Any], first: str) -> str:
    """`rag, documents 20`; what is called as its only parameter is said once: `concurrency 16`."""
    head = str(given.get(first, ""))
    rest = [
        f"{key.replace('_', ' ')} {format(value, 'g') if isinstance(value, float) else value}"
        for key, value in given.items()
        if key != first
    ]
    return ", ".join([head.replace("_", " "), *rest] if head and head not in given else rest)
