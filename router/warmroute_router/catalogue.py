"""Which models there are, and who serves them.

Where all workers serve the same, the engine answers for itself what it makes of a name: many take any. Only where
they differ, a request goes to those that list its model. A model whose workers have all gone is remembered, so that
its requests are not answered by another one in the meantime.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .fleet import Worker

_MOST_REMEMBERED = 1024


class Catalogue:
    def __init__(self, workers: "list[Worker]") -> None:
        """`workers`: all that there are, as they come and go. Whoever changes them, or their models, says so."""
        self._workers = workers
        self._is_current = True
        self._mixed = False
        self._serving: dict[str, list[Worker]] = {}
        self._silent: list[Worker] = []
        """Those that list nothing."""
        self._lost: dict[str, None] = {}
        """Names that only workers listed which are gone, in that order."""

    @property
    def mixed(self) -> bool:
        """Whether workers differ in what they serve."""
        if not self._is_current:
            self._read()
        return self._mixed

    @property
    def models(self) -> list[str]:
        if not self._is_current:
            self._read()
        return list(self._serving)

    def serving(self, model: str) -> "list[Worker]":
        """Who may be sent a request for it. Empty where nobody may."""
        mixed = self.mixed
        if model in self._lost:
            return self._silent
        if not mixed or not model:
            return self._workers
        return self._serving.get(model, self._silent)

    def is_missed(self, model: str) -> bool:
        """Whether it was served here until its workers went."""
        return not self.serving(model) and model in self._lost

    def changed(self) -> None:
        """Who is there, or what they serve."""
        self._is_current = False

    def removed(self, worker: "Worker") -> None:
        """It has gone, from `workers` too."""
        self._lost.update(dict.fromkeys(worker.models or ()))
        self.changed()

    def _read(self) -> None:
        self._is_current = True
        self._serving = {}
        for worker in self._workers:
            for model in worker.models or ():
                self._serving.setdefault(model, []).append(worker)
        self._silent = [worker for worker in self._workers if worker.models is None]
        self._mixed = len({frozenset(worker.models) for worker in self._workers if worker.models is not None}) > 1
        lost = [model for model in self._lost if model not in self._serving]
        self._lost = dict.fromkeys(lost[-_MOST_REMEMBERED:])
