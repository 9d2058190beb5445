"""What can be started in front of workers."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

RIVALS = Path(__file__).parents[3] / ".rivals"
"""Made by scripts/rivals."""


class Place(NamedTuple):
    """Where one process is to serve."""

    urls: Sequence[str]
    """Of the workers."""
    port: int
    metrics_port: int
    folder: Path
    """For its files; gone when it is."""


class Program(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str:
        """With its version."""

    @property
    def command(self) -> Sequence[str]: ...

    @property
    def installed(self) -> bool: ...

    def arguments(self, place: Place) -> list[str]:
        """What follows `command`. May write files into the place's folder."""
