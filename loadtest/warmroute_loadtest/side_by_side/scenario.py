"""What a row of the table is: a fault, what is right, who suffered from it, and the run that shows it."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ..rivals.routers import Router


class Outcome(NamedTuple):
    ok: bool
    shown: str
    """What was measured, in a few words."""


Run = Callable[[Router], Awaitable[Outcome]]


class Scenario(NamedTuple):
    name: str
    fault: str
    right: str
    source: str
    """The issue or pull request in which somebody suffered from it."""
    run: Run


def scenario(*, fault: str, right: str, source: str) -> Callable[[Run], Scenario]:
    """Makes a row of a function, under the function's name."""

    def row(run: Run) -> Scenario:
        name = getattr(run, "__name__", "").replace("_", "-")
        return Scenario(name, fault, right, source, run)

    return row
