"""The workers: one object each for its whole life, with its load and its counters."""

import asyncio
import ssl
from collections.abc import Callable
from enum import StrEnum
from itertools import count
from statistics import median
from typing import NamedTuple

from .account import Accounts
from .backlog import Backlog, Prefill
from .calibration import Retention
from .catalogue import Catalogue
from .config import BreakerConfig, TimeoutConfig, WorkerSpec
from .errors import RequestError, no_worker
from .guard import Guard
from .upstream.engine import NOTHING, EngineReport
from .upstream.pool import Pool


class State(StrEnum):
    """starting → ready ⇄ unhealthy → draining → gone"""

    STARTING = "starting"
    READY = "ready"
    UNHEALTHY = "unhealthy"
    DRAINING = "draining"
    """Gets nothing new, and goes when it has answered what it has."""
    GONE = "gone"


class Load(NamedTuple):
    """What one router has sent to one worker."""

    in_flight: int
    waiting_tokens: int
    oldest_tokens: int = 0
    """Of the prompt that waits longest; 0 where none does."""
    oldest_sent_at: float = 0.0
    """Seconds, on this router's clock."""


NO_LOAD = Load(0, 0)
_SAME_SPEED = 0.25
"""Between equal workers measuring differs by less, and idle ones shall stay equal."""
_MOST = 4.0
"""Whatever is measured, nobody counts as more than this much slower or faster than the others."""


class Worker:
    """Load moves with requests (`routing.Placement`) and what peers tell, state with probes and connections."""

    def __init__(self, index: int, spec: WorkerSpec, pool: Pool, breaker: BreakerConfig | None) -> None:
        """`index`: never that of another worker, not even of one that is gone."""
        self.index = index
        self.spec = spec
        self.url = spec.url
        self.url_bytes = spec.url.encode("ascii")
        self.pool = pool
        self.state = State.STARTING
        self.guard = Guard(breaker)
        self.doubted = asyncio.Event()
        """Set where a connection broke: it is to be probed soon."""
        self.in_flight = 0
        """Requests sent and not yet ended, by this router and its peers."""
        self.backlog = Backlog()
        self.peer_loads: dict[str, Load] = {}
        """The peers' part of these two, by peer."""
        self.remaining_tokens = 0.0
        """What was left of the waiting tokens at the last decision, by estimate."""
        self.slowness = 1.0
        """See `Fleet.compare_speeds`."""
        self.recent_new_tokens = 0.0
        """Uncached prompt tokens sent of late, in a unit that is the same for all workers."""
        self.retention = Retention()
        self.silence_is_zero = False
        """Whether its process has said of a prompt what was cached: then nothing said is nothing cached."""
        self.answers = False
        """Whether its last probes were good, ready or not."""
        self.started: float | None = None
        """When its engine's process started, in seconds since the epoch, where it says so."""
        self.engine: EngineReport = NOTHING
        """What it said of itself when it was asked last."""
        self.retries = 0
        """Requests that went to another worker after this one."""
        self.accounts = Accounts()
        self.models: tuple[str, ...] | None = None
        """Those that it serves, without repetition; None where that is not known. See `Fleet.set_models`."""

    @property
    def waiting_tokens(self) -> int:
        """Uncached prompt tokens sent and not yet answered by a first byte, as predicted when they were sent."""
        return self.backlog.tokens

    @property
    def own_counts(self) -> tuple[int, int]:
        """Requests in flight and waiting tokens of this router alone.

        Metrics ask from a thread of their own, perhaps in the middle of `set_peer_load`: hence all at once, and never
        below 0.
        """
        peers = tuple(self.peer_loads.values())
        return (
            max(self.in_flight - sum(load.in_flight for load in peers), 0),
            max(self.waiting_tokens - sum(load.waiting_tokens for load in peers), 0),
        )

    @property
    def own_load(self) -> Load:
        oldest = self.backlog.oldest
        return Load(*self.own_counts, *((oldest.tokens, oldest.sent_at) if oldest is not None else (0, 0.0)))

    def set_peer_load(self, peer: str, load: Load, now: float) -> None:
        before = self.peer_loads.get(peer, NO_LOAD)
        oldest = Prefill(load.oldest_tokens, load.oldest_sent_at) if load.oldest_tokens else None
        self.in_flight += load.in_flight - before.in_flight
        self.backlog.of_peer(peer, load.waiting_tokens - before.waiting_tokens, oldest, now)
        if load != NO_LOAD:
            self.peer_loads[peer] = load
        else:
            self.peer_loads.pop(peer, None)

    @property
    def cache_fill(self) -> float:
        """0 to 1. As long as the size of its cache is not known, there is room in it."""
        fill = self.retention.filled / self.retention.blocks
        return 1.0 if fill > 1.0 else fill if fill > 0.0 else 0.0


_NO_LIMITS = TimeoutConfig()


class Fleet:
    """The workers that there are just now."""

    def __init__(
        self,
        timeouts: TimeoutConfig = _NO_LIMITS,
        breaker: BreakerConfig | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.workers: list[Worker] = []
        self.catalogue = Catalogue(self.workers)
        self.drains = 0
        """How many workers have begun to drain."""
        self.why_empty: str | None = None
        """Why there are no workers, where their source knows."""
        self._by_url: dict[str, Worker] = {}
        self.added: Callable[[Worker], object] | None = None
        """Told of each that is added."""
        self.retentions: dict[int, Retention] = {}
        """By the worker's index."""
        self._timeouts = timeouts
        self._breaker = breaker
        self._tls = tls
        self._indexes = count()
        self._leaving: list[Worker] = []
        """Those that are gone, but still send."""

    def add(self, spec: WorkerSpec) -> Worker:
        assert self.by_url(spec.url) is None, f"{spec.url} is there already"
        worker = Worker(next(self._indexes), spec, Pool(spec, self._timeouts, self._tls), self._breaker)
        self.workers.append(worker)
        self._by_url[worker.url] = worker
        self.retentions[worker.index] = worker.retention
        self.set_models(worker, spec.models)
        if self.added is not None:
            self.added(worker)
        return worker

    def remove(self, worker: Worker) -> None:
        """What it is still sending goes on; nobody else will find it here."""
        self.workers.remove(worker)
        del self._by_url[worker.url]
        del self.retentions[worker.index]
        worker.state = State.GONE
        worker.pool.close()
        self.catalogue.removed(worker)
        self._leaving.append(worker)

    def drain(self, worker: Worker) -> None:
        """It gets nothing new, and goes when it has answered what it has."""
        worker.state = State.DRAINING
        self.drains += 1

    def set_models(self, worker: Worker, models: tuple[str, ...] | None) -> None:
        """What its source says that it serves, or else what it lists."""
        if models is not None:
            models = tuple(dict.fromkeys(models))
        if worker.models != models:
            worker.models = models
            worker.accounts.open(models or ())
        self.catalogue.changed()

    def by_url(self, url: str) -> Worker | None:
        return self._by_url.get(url)

    def nobody(self) -> RequestError:
        """What is answered where no worker can be asked: why there is none at all, where their source knows."""
        return no_worker(None if self.workers else self.why_empty)

    def ready(self) -> list[Worker]:
        ready = State.READY  # looked up once: each request asks this
        return [worker for worker in self.workers if worker.state is ready]

    def sweep(self, now: float) -> None:
        """See `Pool.sweep`."""
        for worker in (*self.workers, *self._leaving):
            worker.pool.sweep(now)
        if self._leaving:
            self._leaving = [worker for worker in self._leaving if worker.pool.busy]

    def compare_speeds(self) -> None:
        """Where measured prefill speeds of the same models differ by more than measuring does, let it count."""
        speeds: dict[tuple[str, ...] | None, list[float]] = {}
        for worker in self.workers:
            if worker.backlog.speed.tokens_per_s is not None:
                speeds.setdefault(worker.models, []).append(worker.backlog.speed.tokens_per_s)
        usual = {models: median(known) for models, known in speeds.items()}
        for worker in self.workers:
            speed = worker.backlog.speed.tokens_per_s
            slowness = usual[worker.models] / speed if speed is not None else 1.0
            worker.slowness = min(max(slowness, 1 / _MOST), _MOST) if abs(slowness - 1) > _SAME_SPEED else 1.0

    def close(self) -> None:
        for worker in self.workers:
            worker.pool.close()
