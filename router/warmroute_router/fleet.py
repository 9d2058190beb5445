"""The workers: one object each for its whole life, with its load and its counters."""

from collections import Counter
from enum import StrEnum

from .calibration import Retention
from .upstream import Pool


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    UNHEALTHY = "unhealthy"


class Worker:
    """Load moves with requests only (`routing.Placement`), state with probes and failed connections only."""

    def __init__(self, index: int, url: str) -> None:
        self.index = index
        self.url = url
        self.pool = Pool(url)
        self.state = State.STARTING
        self.in_flight = 0
        """Requests sent and not yet ended."""
        self.waiting_tokens = 0
        """Uncached prompt tokens sent and not yet answered by a first byte, as predicted when they were sent."""
        self.recent_new_tokens = 0.0
        """Uncached prompt tokens sent of late, in a unit that is the same for all workers."""
        self.retention = Retention()
        self.requests: Counter[int] = Counter()
        """Ended requests by status; 499 where the client left, 502 where the worker failed."""
        self.prompt_tokens = 0
        """Of the replies that said how many of them came from the cache; so are the next three."""
        self.available_tokens = 0
        self.captured_tokens = 0
        self.delivered_tokens = 0
        self.unreported_requests = 0
        """Replies to understood prompts that said nothing of cached tokens: unknown, not zero."""

    @property
    def cache_fill(self) -> float:
        """0 to 1. As long as the size of its cache is not known, there is room in it."""
        return max(min(self.retention.clock / self.retention.blocks, 1.0), 0.0)


class Fleet:
    def __init__(self, urls: tuple[str, ...]) -> None:
        self.workers = [Worker(index, url) for index, url in enumerate(urls)]

    def ready(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.state is State.READY]

    def close(self) -> None:
        for worker in self.workers:
            worker.pool.close()
