"""The routers of a simulated fleet: which of them gets a request, what they tell each other, and restarts."""

import random
from collections.abc import Callable
from functools import partial

from warmroute_router.fleet import State
from warmroute_router.replicas.gossip import Batch
from warmroute_router.replicas.snapshot import Loading, snapshot

from .agenda import Agenda
from .policies import SimPolicy
from .router import Router
from .spec import FleetSpec

MakePolicy = Callable[[], SimPolicy]
"""Called once for each router that starts: policies remember what they chose."""


class Replicas:
    def __init__(self, spec: FleetSpec, block_tokens: int, make_policy: MakePolicy, agenda: Agenda) -> None:
        self._spec = spec
        self._tree_bound = spec.tree_bound(block_tokens)
        self._make_policy = make_policy
        self._agenda = agenda
        self._draw = random.Random(spec.seed)  # of its own: the policies draw the same whatever comes before them
        self._down: set[int] = set()
        self.routers = [self._start(index, None) for index in range(spec.routers)]
        if spec.restart_router_at is not None:
            agenda.at(spec.restart_router_at, self._restart_router)

    def pick(self) -> Router:
        """Who gets the next request: any of them, as behind a load balancer that knows nothing of prompts."""
        return self._draw.choice(self.routers)

    def heir(self, router: Router) -> Router:
        """Who is there now in this one's place: mostly itself."""
        return self.routers[router.index]

    def worker_gone(self, index: int) -> None:
        """Every router finds the worker's port closed."""
        self._down.add(index)
        for router in self.routers:
            router.routing.unreachable(router.fleet.workers[index], gone=True)

    def worker_back(self, index: int) -> None:
        self._down.remove(index)
        for router in self.routers:
            router.fleet.workers[index].state = State.READY

    def _start(self, index: int, known: Router | None) -> Router:
        """known: whose snapshot it starts with."""
        spec = self._spec
        tell = self._tell if spec.gossip and spec.routers > 1 else None
        router = Router(index, self._make_policy(), spec.workers, self._tree_bound, self._agenda, tell)
        if known is not None:
            loading = Loading(router.routing)
            for chunk in snapshot(known.routing):
                loading.feed(chunk)
        router.find_workers(spec.blocks, self._down)
        return router

    def _restart_router(self) -> None:
        """The first one gives way to a new one at once, which knows nothing of what its workers are still doing.

        With what a peer knows, or a lone one with its own file, unless it is to start cold.
        """
        old, peers = self.routers[0], self.routers[1:]
        teacher = peers[0] if old.gossip is not None and peers else old
        new = self._start(0, teacher if self._spec.warm_restart else None)
        self.routers[0] = new
        for peer in peers:
            if peer.gossip is not None and new.gossip is not None:
                self._deliver(partial(peer.gossip.lost, old.name))
                self._deliver(partial(new.gossip.apply, peer.name, peer.gossip.standing()))

    def _tell(self, sender: Router, batch: Batch) -> None:
        if sender is not self.routers[sender.index]:
            return  # its process is gone, and what it still had to tell
        for peer in self.routers:
            if peer is not sender and peer.gossip is not None:
                self._deliver(partial(peer.gossip.apply, sender.name, batch))

    def _deliver(self, message: Callable[[], None]) -> None:
        """All take the same time, so they come in the order in which they were sent."""
        self._agenda.after(self._spec.gossip_delay, message)
