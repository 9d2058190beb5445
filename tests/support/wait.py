"""Waiting, by looking again and again, for what another process does."""

import time
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds; only matters in failure."""


def until(condition: Callable[[], bool], patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
