"""The table of a seed."""

from rich.console import Console
from rich.table import Table

from .faults import Kind
from .judge import Verdict
from .record import Record

_EVERY = 10
"""Seconds between two figures of memory."""


def print_record(console: Console, record: Record, again: str) -> None:
    """`again`: the command that runs it again."""
    console.print(_table(record))
    faults = ", ".join(f"{kind} {count:,}" for kind, count in record.met.most_common() if kind is not Kind.NONE)
    console.print(f"Faults that requests met: {faults or 'none'}")
    if record.slowest_story:
        console.print(f"The slowest: {record.slowest_story}", markup=False, soft_wrap=True)
    sizes = [footprint.rss / 2**20 for footprint in record.footprints]
    if sizes:
        shown = [sizes[0], *sizes[_EVERY:-1:_EVERY], sizes[-1]]
        console.print(
            f"Memory of the router, every {_EVERY} s: " + ", ".join(f"{size:.0f}" for size in shown) + " MB"
        )
    for complaint in record.complaints:
        console.print(f"seed {record.seed}: {complaint}", style="red", markup=False, soft_wrap=True)
    if record.complaints:
        console.print(f"seed {record.seed} failed. Again: {again}", style="bold red", markup=False, soft_wrap=True)


def _table(record: Record) -> Table:
    table = Table(title=f"chaos, seed {record.seed}", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("requests", f"{record.requests:,}")
    for verdict in Verdict:
        table.add_row(str(verdict), f"{record.verdicts[verdict]:,}")
    table.add_section()
    for outcome, count in sorted(record.outcomes.items()):
        table.add_row(outcome, f"{count:,}")
    table.add_section()
    table.add_row("slowest good answer", f"{record.slowest:.2f} s")
    table.add_row("retries", f"{record.retries:,.0f}")
    table.add_row("misdeeds of clients", f"{record.misdeeds:,}")
    return table
