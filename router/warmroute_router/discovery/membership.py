"""Who is in the fleet: the workers that any source names, less those that the admin API has taken out."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from ..config import WorkerSpec, normalize_worker_url
from ..fleet import State, Worker
from ..routing import Routing

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

API = "api"
"""The source that the admin API is."""
MAX_WORKERS = 4096
MOST_REMEMBERED = 2 * MAX_WORKERS
"""URLs of which it is known that the API took them out, and as many of which it set the key."""


class Membership:
    """A worker is there while a source names it. When none does any more it drains, and goes when it has answered.

    What the API takes out stays out, whatever sources name it, until one of them that did not name it does so, or
    the API adds it again. Each source is told what it names as a whole, so nobody has to work out differences.
    """

    def __init__(self, routing: Routing, default_key: str | None) -> None:
        """`default_key`: for each worker that has none of its own."""
        self._routing = routing
        self._default_key = default_key
        self._named: dict[str, dict[str, WorkerSpec]] = {API: {}}
        """By source, and by URL."""
        self._out: dict[str, None] = {}
        """What the API has taken out, in that order."""
        self._keys: dict[str, str] = {}
        """What the API has set, in that order."""
        self._complained = False

    @property
    def has_room(self) -> bool:
        return len(self._routing.fleet.workers) < MAX_WORKERS

    def sources_of(self, url: str) -> list[str]:
        """Who names it."""
        return [source for source, specs in self._named.items() if url in specs]

    def apply(self, source: str, specs: Sequence[WorkerSpec]) -> None:
        """All that `source` names now. Its first word is where it starts from, and brings nobody back."""
        before = self._named.get(source)
        named = {spec.url: spec for spec in specs}
        self._named[source] = named
        if before is not None:
            for url, spec in named.items():
                if url not in before or _differ(before[url].identity, spec.identity):
                    self._out.pop(url, None)
        self._settle([*named, *(url for url in before or () if url not in named)])

    def add(self, url: str) -> None:
        """By the API. Brings back what drains."""
        self._named[API][url] = WorkerSpec(url)
        self._out.pop(url, None)
        self._settle([url])

    def set_key(self, url: str, key: str | None) -> None:
        """By the API, also of one that is yet to come. None: back to what its source knows, or the default."""
        self._keys.pop(url, None)
        if key is not None:
            self._keys[url] = key
            self._bound(self._keys)
        worker, spec = self._routing.fleet.by_url(url), self._spec(url)
        if worker is not None:
            own = spec.api_key if spec is not None else key or self._default_key
            worker.spec = replace(worker.spec, api_key=own)

    def drain(self, url: str) -> None:
        """By the API: nothing new is placed there, and it goes when it has answered what it has."""
        self._take_out(url)
        self._settle([url])

    def remove(self, url: str) -> None:
        """By the API: it is gone at once, and with it what the tree knew of it. Its running answers go on."""
        self._take_out(url)
        worker = self._routing.fleet.by_url(url)
        if worker is not None:
            logger.info("worker %s is removed", url)
            self._routing.remove(worker)

    def _take_out(self, url: str) -> None:
        """With the key that the API has set."""
        self._named[API].pop(url, None)
        self._keys.pop(url, None)
        self._out.pop(url, None)
        self._out[url] = None
        self._bound(self._out)

    def _bound(self, remembered: "dict[str, None] | dict[str, str]") -> None:
        """Sources may come up with ever new URLs. What was said first, of one that nobody names, goes first."""
        if len(remembered) > MOST_REMEMBERED:
            unnamed = (url for url in remembered if not self.sources_of(url))
            del remembered[next(unnamed, next(iter(remembered)))]

    def _settle(self, urls: Iterable[str]) -> None:
        """Bring workers in line with what is said of them."""
        workers = {worker.url: worker for worker in self._routing.fleet.workers}
        for url in urls:
            worker, spec = workers.get(url), None if url in self._out else self._spec(url)
            if spec is None:
                self._let_go(worker)
            elif worker is None:
                self._bring(spec)
            else:
                self._update(worker, spec)
        self._complained = self._complained and not self.has_room

    def _spec(self, url: str) -> WorkerSpec | None:
        """What its sources say of it, the first that says anything; None where nobody names it."""
        specs = [specs[url] for specs in self._named.values() if url in specs]
        if not specs:
            return None
        keys = (self._keys.get(url), *(spec.api_key for spec in specs), self._default_key)
        return WorkerSpec(
            url,
            api_key=_first(keys),
            server_name=_first(spec.server_name for spec in specs),
            identity=_first(spec.identity for spec in specs),
            ready=all(spec.ready for spec in specs),
            models=_first(spec.models for spec in specs),
        )

    def _let_go(self, worker: Worker | None) -> None:
        if worker is not None and worker.state is not State.DRAINING:
            logger.info("worker %s drains", worker.url)
            self._routing.fleet.drain(worker)

    def _bring(self, spec: WorkerSpec) -> None:
        if self.has_room:
            logger.info("worker %s is added", spec.url)
            self._routing.fleet.add(spec)
        elif not self._complained:
            self._complained = True
            logger.warning("worker %s and maybe others are left out: there are %d already", spec.url, MAX_WORKERS)

    def _update(self, worker: Worker, spec: WorkerSpec) -> None:
        fleet, before = self._routing.fleet, worker.spec
        renamed = before.server_name != spec.server_name  # which its connections are made with
        if renamed or _differ(before.identity, spec.identity):
            logger.info("worker %s is another one by now", worker.url)
            self._routing.remove(worker)
            fleet.add(spec)
            return
        # Who it is stays known where the source that knew it names it no more.
        worker.spec = spec if spec.identity is not None else replace(spec, identity=before.identity)
        if spec.models not in (None, before.models):  # where nobody says it any more, the worker is soon asked
            fleet.set_models(worker, spec.models)
        if worker.state is State.READY and not spec.ready:
            logger.info("worker %s is not ready, says its source", worker.url)
            worker.state = State.UNHEALTHY
        elif spec.ready and not before.ready:
            worker.doubted.set()  # so that it is probed at once
            if worker.answers and worker.state in (State.STARTING, State.UNHEALTHY):
                # Those that it replaces may be ending just now.
                logger.info("worker %s is ready", worker.url)
                worker.state = State.READY
        if worker.state is State.DRAINING:
            # Its cache is as warm as what the tree knows of it. It is probed anew, as if it had just come.
            logger.info("worker %s is back", worker.url)
            worker.state = State.STARTING
            if fleet.added is not None:
                fleet.added(worker)


def _differ(one: str | None, other: str | None) -> bool:
    """Whether these are two, and not one of whom less is known."""
    return one is not None and other is not None and one != other


def _first(values: Iterable[_T | None]) -> _T | None:
    return next((value for value in values if value is not None), None)


def checked_url(given: object) -> str:
    """Raises ValueError."""
    if not isinstance(given, str):
        raise ValueError("`url` must be a string like http://host:port")
    return normalize_worker_url(given)


def checked_key(given: object) -> str:
    """Raises ValueError, in words that do not show it."""
    if not isinstance(given, str) or not given:
        raise ValueError("`api_key` must be a string, and not empty")
    if not all("!" <= character <= "~" for character in given):
        raise ValueError("`api_key` has characters that no header can carry")
    return given
