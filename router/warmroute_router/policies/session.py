"""Sticky sessions: a session stays on its worker; whoever names none, and each first request, goes by the cache."""

from collections import OrderedDict

from ..blocks import PromptBlocks
from .base import Choice, FleetView, W
from .cache_aware import CacheAware

MAX_SESSIONS = 100_000
"""Remembered at a time; the least recently used is forgotten, and then placed anew."""


class Session:
    def __init__(self) -> None:
        self._places: OrderedDict[int, int] = OrderedDict()
        """Worker index by session key."""
        self._otherwise = CacheAware()

    def choose(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]:
        if not prompt.session:
            return self._otherwise.choose(prompt, fleet)
        place = self._places.get(prompt.session)
        choice = next((Choice(worker, "session") for worker in fleet.workers if worker.index == place), None)
        if choice is None:  # new, or its worker is away
            choice = self._otherwise.choose(prompt, fleet)
        self._places[prompt.session] = choice.worker.index
        self._places.move_to_end(prompt.session)
        if len(self._places) > MAX_SESSIONS:
            self._places.popitem(last=False)
        return choice
