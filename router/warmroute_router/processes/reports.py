"""A scrape of several processes: all are asked at once, and their sum is given."""

import threading
import time
from collections.abc import Iterable
from multiprocessing.connection import wait

from prometheus_client import Metric
from prometheus_client.registry import Collector

from .child import Child
from .metrics_sum import Total

PATIENCE = 1.0
"""Seconds that a process has to report, before it counts with its last report."""


class Reports(Collector):
    """Scraped by threads of the metrics' server, told of processes by another: one thing at a time."""

    def __init__(self) -> None:
        self._children: dict[int, Child] = {}
        self._total = Total()
        self._lock = threading.Lock()

    def add(self, number: int, child: Child) -> None:
        with self._lock:
            self._children[number] = child

    def remove(self, number: int) -> None:
        """It has ended. What it has counted so far stays."""
        with self._lock:
            if self._children.pop(number, None) is not None:
                self._total.end(number)

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            self._ask()
            return self._total.metrics()

    def _ask(self) -> None:
        waiting = {child.connection: (number, child) for number, child in self._children.items()}
        for child in self._children.values():
            child.ask()
        until = time.monotonic() + PATIENCE
        while waiting and (left := until - time.monotonic()) > 0:
            for connection in wait(list(waiting), left):
                number, child = waiting.pop(connection)  # type: ignore[call-overload]
                metrics = child.report()
                if metrics is not None:
                    self._total.report(number, metrics)
