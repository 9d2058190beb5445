"""What a router tells its peers, and what it makes of what they tell. No sockets here: the simulator runs it too.

Each decision is told whole, with all hashes of its prompt: a 32nd of the prompt's bytes, and a batch that is lost
costs no more than itself. Loads are told as they are, not as changes, so nothing is left over when a peer goes away.
"""

from array import array
from collections.abc import Mapping
from typing import NamedTuple

from ..fleet import NO_LOAD, Load
from ..placement import Placement
from ..routing import Routing

FLUSH_INTERVAL = 0.02
"""Seconds between two batches."""
MAX_UNTOLD = 2048
"""Decisions of one batch: some 20 ms of work for whoever gets it."""
MAX_UNTOLD_BLOCKS = 128 * 1024
"""Of one batch, 1 MiB; decisions beyond are not told."""


class Sent(NamedTuple):
    """One decision."""

    worker: str
    """Its URL."""
    hashes: "array[int]"
    tokens: int


class ToldLoad(NamedTuple):
    """A `Load` for others: clocks differ, how long something has waited does not."""

    in_flight: int
    waiting_tokens: int
    oldest_tokens: int = 0
    oldest_age: float = 0.0
    """Seconds."""


class Batch(NamedTuple):
    sent: list[Sent]
    loads: Mapping[str, ToldLoad]
    """What the router itself has on each worker, by URL; only of those where that has changed."""


class Gossip:
    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        routing.placed = self._note
        self._sent: list[Sent] = []
        self._blocks = 0
        self._told: dict[str, Load] = {}
        self._peers: set[str] = set()
        self.untold = 0
        """Decisions that no batch had room for."""
        self.followed = 0
        """Decisions of peers that were taken over."""

    def _note(self, placement: Placement) -> None:
        prompt = placement.prompt
        if self._blocks + len(prompt.hashes) > MAX_UNTOLD_BLOCKS or len(self._sent) >= MAX_UNTOLD:
            self.untold += 1
            return
        self._blocks += len(prompt.hashes)
        self._sent.append(Sent(placement.worker.url, prompt.hashes, prompt.tokens))

    def take(self) -> Batch | None:
        """What has happened since the last time; None where nothing did."""
        now = self._routing.now()
        for worker in self._routing.fleet.workers:
            worker.backlog.remaining_at(now)  # which takes for done what must be
        loads = {worker.url: worker.own_load for worker in self._routing.fleet.workers}
        changed = {url: load for url, load in loads.items() if load != self._told.get(url, NO_LOAD)}
        changed |= dict.fromkeys(self._told.keys() - loads.keys(), NO_LOAD)  # of workers that are gone
        if not self._sent and not changed:
            return None
        self._told = loads
        batch = Batch(self._sent, _told(changed, now))
        self._sent, self._blocks = [], 0
        return batch

    def standing(self) -> Batch:
        """All loads as they were last told: for a peer that has just come, or that missed a batch."""
        return Batch([], _told(self._told, self._routing.now()))

    def apply(self, peer: str, batch: Batch) -> None:
        """What `peer` tells. Workers that are not known here are not spoken of."""
        self._peers.add(peer)
        self._routing.has_peers = bool(self._peers)
        workers = {worker.url: worker for worker in self._routing.fleet.workers}
        now = self._routing.now()
        for sent in batch.sent:
            worker = workers.get(sent.worker)
            if worker is not None:
                self._routing.follow(worker, sent.hashes, sent.tokens)
                self.followed += 1
        for url, told in batch.loads.items():
            if url in workers:
                load = Load(*told[:3], now - max(told.oldest_age, 0.0) if told.oldest_tokens else 0.0)
                workers[url].set_peer_load(peer, load, now)

    def lost(self, peer: str) -> None:
        """Nothing is known of this peer's load any more."""
        self._peers.discard(peer)
        self._routing.has_peers = bool(self._peers)
        now = self._routing.now()
        for worker in self._routing.fleet.workers:
            worker.set_peer_load(peer, NO_LOAD, now)


def _told(loads: Mapping[str, Load], now: float) -> dict[str, ToldLoad]:
    return {
        url: ToldLoad(*load[:3], now - load.oldest_sent_at if load.oldest_tokens else 0.0)
        for url, load in loads.items()
    }
