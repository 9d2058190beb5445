"""The figures of several policies on one trace, for people."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from ..traces import Trace
from .result import Result
from .spec import FleetSpec

_NO_LIMIT = 1000


def print_results(console: Console, trace: Trace, spec: FleetSpec, results: Sequence[Result]) -> None:
    """One row per policy. As wide as it needs to be: a figure that is cut short is none."""
    table = _table(trace, spec, results)
    table.width = Measurement.get(console, console.options.update(max_width=_NO_LIMIT), table).maximum
    console.print(table, soft_wrap=True)


def _table(trace: Trace, spec: FleetSpec, results: Sequence[Result]) -> Table:
    skipped = f", {trace.skipped:,} malformed left out" if trace.skipped else ""
    block_tokens = spec.block_tokens or trace.block_tokens
    table = Table(
        title=f"{trace.name}: {len(trace.requests):,} requests{skipped}",
        caption=f"{spec.workers} workers × {spec.blocks:,} blocks of {block_tokens} tokens, "
        f"{spec.prefill_rate:,.0f} tokens/s; TTFT in s; ceiling {results[0].ceiling:.1%}{_replicas(spec)}",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),  # with short names it fits 80 columns
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("\npolicy", no_wrap=True)
    for heading in _headings(spec):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        table.add_row(*_cells(result))
    return table


def _replicas(spec: FleetSpec) -> str:
    """What is out of the ordinary, on a line of its own."""
    told = []
    if spec.routers > 1:
        told.append(f"{spec.routers} routers" + ("" if spec.gossip else " that do not talk"))
    if spec.restart_router_at is not None:
        told.append(f"a router restarts {'warm' if spec.warm_restart else 'cold'} at {spec.restart_router_at:g} s")
    if spec.restart_worker_at is not None:
        told.append(f"a worker restarts at {spec.restart_worker_at:g} s")
    return "\n" + "; ".join(told) if told else ""


def _headings(spec: FleetSpec) -> tuple[str, ...]:
    times = ("TTFT\nmean", "\np50", "\np90", "\np99")
    return ("hit\nrate", "of\nceiling", *times, f"1/s in\n{spec.slo:g} s", "\nskew", "pred.\nerror")


def _cells(result: Result) -> tuple[str, ...]:
    times = (result.ttft_mean, result.ttft_p50, result.ttft_p90, result.ttft_p99)
    return (
        result.policy,
        f"{result.hit_rate:.1%}",
        f"{result.hit_rate / result.ceiling:.1%}" if result.ceiling else "",
        *(f"{time:.2f}" for time in times),
        f"{result.goodput:.2f}",
        f"{result.skew:.2f}",
        f"{result.prediction_error:.1%}",
    )
