"""Consistent hashing of the prefix, with bounded load (Mirrokni, Thorup and Zadimoghaddam, 2018).

The key is the first block that not every worker has, not a fixed head: a system prompt that all share would send
everything to one worker. The first worker in the key's order takes it whose share stays below the bound.
"""

import math

from ..blocks import PromptBlocks
from .base import Choice, FleetView, W
from .rendezvous import distinguishing_key, ranked

LOAD_FACTOR = 1.25
"""Of the mean number of requests in flight, this one counted."""


class PrefixHash:
    def choose(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]:
        order = ranked(fleet.workers, distinguishing_key(prompt, fleet))
        total = sum(worker.in_flight for worker in order) + 1
        bound = math.ceil(LOAD_FACTOR * total / len(order))
        for worker in order:
            if worker.in_flight < bound:
                return Choice(worker, "affinity" if worker is order[0] else "load")
        raise AssertionError("one worker is always below the mean")
