"""Each worker in its turn."""

from ..blocks import PromptBlocks
from .base import Choice, FleetView, W


class RoundRobin:
    def __init__(self) -> None:
        self._last = -1

    def choose(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]:
        """The next worker in order of index, so that one that is down for a while does not shift the turns."""
        del prompt
        after = [worker for worker in fleet.workers if worker.index > self._last]
        chosen = min(after or fleet.workers, key=lambda worker: worker.index)
        self._last = chosen.index
        return Choice(chosen, "turn")
