"""docs/benchmarks.md: the tables of a race, each with when and on what it was measured."""

import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path

from ..markers import write_between_markers
from .results import Results

PAGE = Path(__file__).parents[3] / "docs/benchmarks.md"


def write_docs(tables: Mapping[str, Callable[[Results], str]], results: Results, page: Path = PAGE) -> None:
    """By part. One that was not measured is left as it is.

    Raises ValueError where a marker is missing.
    """
    for part, markdown in tables.items():
        if results.cases(part):
            measured = f"Measured {results.days(part)} on {_machine()}."
            write_between_markers(page, f"race: {part}", f"\n{measured}\n\n{markdown(results)}\n")


def _machine() -> str:
    return f"{os.cpu_count()} CPU cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
