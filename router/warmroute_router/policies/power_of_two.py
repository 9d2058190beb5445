"""The less loaded of two workers taken at random (Mitzenmacher, 2001)."""

import random

from ..blocks import PromptBlocks
from .base import Choice, FleetView, W


class PowerOfTwo:
    def choose(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]:
        del prompt
        two = random.sample(fleet.workers, min(2, len(fleet.workers)))
        return Choice(min(two, key=lambda worker: (worker.in_flight, worker.remaining_tokens)), "load")
