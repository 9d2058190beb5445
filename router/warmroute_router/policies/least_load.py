"""Fewest requests in flight, then fewest waiting tokens; ties at random."""

import random

from ..blocks import PromptBlocks
from .base import Choice, FleetView, W


class LeastLoad:
    def choose(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]:
        del prompt
        loads = [(worker.in_flight, worker.remaining_tokens) for worker in fleet.workers]
        lowest = min(loads)
        tied = [worker for worker, load in zip(fleet.workers, loads, strict=True) if load == lowest]
        return Choice(random.choice(tied), "load")
