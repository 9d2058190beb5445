"""A run of `warmroute bench`, or two side by side, as one HTML page that needs no network."""

from collections.abc import Sequence
from pathlib import Path

from ..record import Run

__all__ = ["write_report"]


def write_report(path: Path, runs: Sequence[Run]) -> None:
    """Of one run, or of two, the second against the first. Raises OSError where the file cannot be written."""
    from .page import page  # jinja2 and plotly come with an extra: the CLI has to be able to say so

    path.write_text(page(runs), encoding="utf-8")
