"""AIBrix gateway, `prefix-cache`.

Rule. If the busiest worker has at least `imbalance_min_gap` requests more than the idlest, and more than
`imbalance_factor` · (mean + 1): only the idlest may be matched. The workers with any match, by match in percent, then
by fewest requests, then at random: the first of them with no more than mean + σ requests, over the whole fleet. None:
the fewest requests, ties at random.

Sources. vllm-project/aibrix, `pkg/plugins/gateway/algorithms/prefix_cache.go` (`other-routers.md` section 3, item 5).

Defaults. A gap of more than 8 and no factor at e3e10f9, the version that the notes describe; another version of the
file has a gap of at least 8 and the factor 2.0, which is here as `aibrix_mean_gate`. σ × 1. 200,000 blocks, dropped
after 20 minutes without use.

Simplified. Blocks are the prompt's: the real ones are of 4 characters by default, so its 200,000 last less far than
these. A block that two workers hold counts twice towards the bound. Percents are whole numbers, as there.
"""

import random
from math import sqrt

from warmroute_router.blocks import PromptBlocks
from warmroute_router.policies import Choice, FleetView, WorkerView
from warmroute_router.policies.base import W

from .base import Baseline, least_loaded
from .sent_blocks import SentBlocks


class AibrixPrefixCache(Baseline):
    def __init__(
        self,
        imbalance_min_gap: int = 9,
        imbalance_factor: float = 0.0,
        deviations: float = 1.0,
        max_blocks: int = 200_000,
        idle_seconds: float = 1200.0,
    ) -> None:
        self._imbalance_min_gap = imbalance_min_gap
        self._imbalance_factor = imbalance_factor
        self._deviations = deviations
        self._max_blocks = max_blocks
        self._idle_seconds = idle_seconds
        self._sent = SentBlocks()

    def choose(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]:
        loads = [worker.in_flight for worker in fleet.workers]
        mean = sum(loads) / len(loads)
        gap = max(loads) - min(loads)
        idlest = least_loaded(fleet.workers)
        gated = gap >= self._imbalance_min_gap and max(loads) > self._imbalance_factor * (mean + 1)
        matched = self._best_first(prompt, idlest if gated else list(fleet.workers))
        limit = mean + self._deviations * _deviation(loads, mean)
        for worker in matched:
            if worker.in_flight <= limit:
                return Choice(worker, "affinity")
        return Choice(random.choice(idlest), "load" if matched or gated else "cold")

    def dispatched(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        self._sent.expire(now - self._idle_seconds)
        self._sent.add(prompt.hashes, worker.index, now)
        self._sent.trim_all(self._max_blocks)

    def _best_first(self, prompt: PromptBlocks, workers: list[W]) -> list[W]:
        matches = {worker.index: self._sent.match(prompt.hashes, worker.index) for worker in workers}
        matched = [worker for worker in workers if matches[worker.index]]
        random.shuffle(matched)
        matched.sort(key=lambda worker: (-(100 * matches[worker.index] // len(prompt.hashes)), worker.in_flight))
        return matched


def _deviation(loads: list[int], mean: float) -> float:
    """Of a sample, as there."""
    return sqrt(sum((load - mean) ** 2 for load in loads) / (len(loads) - 1)) if len(loads) > 1 else 0.0
