"""The figures of a run, for people."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .record import UNANSWERED, Run
from .summary import LATE, TOLERATED, Latency, Summary, WorkerFigures, summarise

_MOST_FAILURES = 8
"""Kinds that are shown."""
_WHOLE = 0.9
"""The share of its duration from which on a run was not cut short."""


def print_run(console: Console, run: Run) -> None:
    figures = summarise(run)
    tables = [_totals(run, figures)]
    if figures.ttft is not None:
        tables += [_latencies(figures), _workers(figures)]
    if figures.failures:
        tables.append(_failures(figures))
    console.print(f"[bold]{escape(run.label)}[/bold]", highlight=False)
    for table in tables:
        console.print(table)
        console.print()
    if run.duration < _WHOLE * run.load.get("duration", 0.0):
        console.print("There were no more requests: --requests, or the workload's own parameters, give more.\n")
    if figures.late > TOLERATED and run.load["kind"] != "at_once":
        console.print(
            f"{figures.late:.1%} of the requests were sent more than {LATE * 1000:g} ms late, up to "
            f"{_time(figures.latest)}: this generator did not keep up. All times count from when a request was due, "
            "so they include that.",
            style="yellow",
            highlight=False,
        )


def _table(*headings: str, names: int = 0) -> Table:
    """The first `names` columns hold words, and the others figures."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < names else "right", overflow="fold")
    return table


def _totals(run: Run, figures: Summary) -> Table:
    table = _table(
        "requests", "good", "seconds", "req/s", "tokens/s\nin", "\nout", "hit\nrate", "pre-\ndicted", "pred.\nerror"
    )
    table.add_row(
        f"{figures.requests:,}",
        f"{figures.good:,}",
        f"{run.duration:,.1f}",
        f"{figures.requests_per_s:,.1f}",
        f"{figures.prompt_tokens_per_s:,.0f}",
        f"{figures.completion_tokens_per_s:,.0f}",
        _share(figures.hit_rate),
        _share(figures.predicted),
        _share(figures.prediction_error),
    )
    return table


def _latencies(figures: Summary) -> Table:
    table = _table("", *Latency._fields, names=1)
    for name, latency in (
        ("time to first token", figures.ttft),
        ("between tokens", figures.itl),
        ("to the end", figures.e2e),
    ):
        if latency is not None:
            table.add_row(name, *map(_time, latency))
    return table


def _workers(figures: Summary) -> Table:
    table = _table("worker", "requests", "share", "hit rate", "TTFT p50", names=1)
    for each in figures.workers:
        table.add_row(*_worker(each))
    if len(figures.workers) > 1:
        table.caption = f"skew (busiest / mean): {figures.skew:.2f}"
        table.caption_justify = "left"
    return table


def _worker(figures: WorkerFigures) -> tuple[str, ...]:
    ttft = "" if figures.ttft_p50 is None else _time(figures.ttft_p50)
    return (escape(figures.worker), f"{figures.requests:,}", f"{figures.share:.1%}", _share(figures.hit_rate), ttft)


def _failures(figures: Summary) -> Table:
    table = _table("failed", "status", "error")
    table.columns[2].justify = "left"
    for requests, status, error in figures.failures[:_MOST_FAILURES]:
        table.add_row(f"{requests:,}", "" if status == UNANSWERED else str(status), escape(error))
    if rest := sum(failure.requests for failure in figures.failures[_MOST_FAILURES:]):
        table.add_row(f"{rest:,}", "", "of other kinds")
    return table


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
