"""A bar for a person who waits for a run."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .run import Bench


@contextmanager
def progress(bench: Bench, requests: int) -> Iterator[Callable[[], None]]:
    """What is yielded draws it anew; nothing is drawn where stderr goes to a file."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[told]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=requests, told="")

        def show() -> None:
            told = f"{bench.sent - bench.answered:,} in flight, {bench.failed:,} failed"
            bar.update(task, completed=bench.answered, told=told, refresh=True)

        yield show
