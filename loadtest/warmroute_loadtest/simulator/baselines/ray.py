"""Ray Serve LLM's PrefixCacheAffinityRouter.

Rule. If the longest queue exceeds the shortest by more than `imbalanced_threshold`: two workers at random, the
shorter queue of them. Else the workers that hold the longest match, if it is at least a tenth of the prompt; if not,
those that were sent the least text so far. Of these, the shortest queue.

Sources. ray-project/ray, `python/ray/llm/_internal/serve/routing_policies/prefix_aware/prefix_aware_router.py`
(`other-routers.md` section 3, item 7).

Defaults. `imbalanced_threshold` infinite (since PR #59390), so that load never decides alone; `match_rate_threshold`
0.1; eviction off, so there is none here.

Simplified. Blocks stand for characters. A queue is the requests in flight, exact where the real one caches or probes.
Of equal queues the lowest index, where the real one takes the first in an order of its own.
"""

import random
from collections.abc import Sequence

from warmroute_router.blocks import PromptBlocks
from warmroute_router.policies import Choice, FleetView, WorkerView
from warmroute_router.policies.base import W

from .base import Baseline, first_of_least_loaded, matched_share
from .sent_blocks import SentBlocks


class RayPrefixAffinity(Baseline):
    def __init__(self, imbalanced_threshold: float = float("inf"), match_rate_threshold: float = 0.1) -> None:
        self._imbalanced_threshold = imbalanced_threshold
        self._match_rate_threshold = match_rate_threshold
        self._sent = SentBlocks()

    def choose(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]:
        queues = [worker.in_flight for worker in fleet.workers]
        if max(queues) - min(queues) > self._imbalanced_threshold:
            two = random.sample(fleet.workers, min(2, len(fleet.workers)))
            return Choice(min(two, key=lambda worker: worker.in_flight), "load")
        longest, holders = self._sent.longest(prompt.hashes, fleet.workers)
        if matched_share(prompt, longest) >= self._match_rate_threshold:
            return Choice(first_of_least_loaded(holders), "affinity")
        return Choice(first_of_least_loaded(self._smallest(fleet.workers)), "load" if longest else "cold")

    def dispatched(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        self._sent.add(prompt.hashes, worker.index, now)

    def _smallest(self, workers: Sequence[W]) -> list[W]:
        least = min(self._sent.held(worker.index) for worker in workers)
        return [worker for worker in workers if self._sent.held(worker.index) == least]
