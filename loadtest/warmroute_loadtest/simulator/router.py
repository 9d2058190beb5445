"""One router of a simulated fleet: the router's own routing, with its tree, its loads and its accounts.

Only the bytes are missing. What came of a request is told to the policy as well: see `policies.SimPolicy`.
"""

from collections.abc import Callable
from functools import partial

from warmroute_router.blocks import PromptBlocks
from warmroute_router.config import WorkerSpec
from warmroute_router.fleet import Fleet, State
from warmroute_router.placement import Placement
from warmroute_router.replicas.gossip import FLUSH_INTERVAL, Batch, Gossip
from warmroute_router.routing import Routing
from warmroute_router.tree import PrefixTree
from warmroute_router.usage import Usage

from .agenda import Agenda
from .policies import ServedPolicy, SimPolicy

Tell = Callable[["Router", Batch], None]
"""Send a router's batch to its peers."""


class Router:
    """For as long as its process lives. Another one may come after it, with the same index and name."""

    def __init__(
        self, index: int, policy: SimPolicy, workers: int, tree_bound: int, agenda: Agenda, tell: Tell | None
    ) -> None:
        """tell: None where routers do not talk. Other routers' policies never do, so there it is not called."""
        self.index = index
        self.name = f"router-{index}"
        self.fleet = Fleet()
        for number in range(workers):
            self.fleet.add(WorkerSpec(f"http://worker-{number}"))
        self.tree = PrefixTree(tree_bound)
        self.routing = Routing(self.fleet, self.tree, "simulated", policy, lambda: agenda.now)
        self._policy = policy
        self._agenda = agenda
        self._tell = tell
        self.gossip = Gossip(self.routing) if tell is not None and isinstance(policy, ServedPolicy) else None
        self._flush_planned = False

    def find_workers(self, blocks: int, down: set[int]) -> None:
        """As its first probes do: which of them are up, and how many blocks each one's cache has by its metrics."""
        for worker in self.fleet.workers:
            worker.retention.start_at(blocks)
            worker.state = State.UNHEALTHY if worker.index in down else State.READY

    def place(self, prompt: PromptBlocks) -> Placement:
        placement = self.routing.place(prompt)
        assert placement is not None, "a simulated fleet always has a worker that is ready"
        self._policy.dispatched(prompt, placement.worker, self._agenda.now)
        self._changed()
        return placement

    def first_byte(self, placement: Placement) -> None:
        placement.first_byte()
        self._policy.first_byte(placement.prompt, placement.worker, self._agenda.now)
        self._changed()

    def ended(self, placement: Placement, usage: Usage) -> None:
        # In the order of the proxy: what the engine says of the prompt comes with its last bytes.
        placement.report(usage)
        self._release(placement)

    def broken(self, placement: Placement, *, had_first_byte: bool) -> None:
        """The worker has died over the request."""
        if not had_first_byte:  # policies count on every moment to come
            self.first_byte(placement)
        self._release(placement)

    def _release(self, placement: Placement) -> None:
        placement.release()
        self._policy.ended(placement.prompt, placement.worker, self._agenda.now)
        self._changed()

    def _changed(self) -> None:
        """Peers hear of it a whole interval later, which is the longest that it takes."""
        if self.gossip is not None and not self._flush_planned:
            self._flush_planned = True
            self._agenda.after(FLUSH_INTERVAL, partial(self._flush, self.gossip))

    def _flush(self, gossip: Gossip) -> None:
        self._flush_planned = False
        batch = gossip.take()
        if batch is not None and self._tell is not None:
            self._tell(self, batch)
