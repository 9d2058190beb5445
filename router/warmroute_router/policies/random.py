"""Any worker."""

import random

from ..blocks import PromptBlocks
from .base import Choice, FleetView, W


class Random:
    def choose(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]:
        del prompt
        return Choice(random.choice(fleet.workers), "random")
