"""LMetric: multiply what would have to be computed by how many share the worker.

Rule. The lowest of (new prefill tokens on the worker, if the request goes there) × (its batch + 1). The one is added
so that not all idle workers tie at 0, as Dynamo's `lmetric` mode does.

Sources. arXiv 2603.15202 (`other-routers.md` section 3, item 12, and item 6 for Dynamo's mode).

Defaults. None: that is the paper's point.

Simplified. New prefill tokens are read as all that the worker has yet to compute, this prompt's included, as in
Dynamo's mode; with `queued=False` only this prompt's. The notes allow both readings, so both are baselines. What a
worker holds is what it was sent, an LRU of `engine_tokens` for each, where the paper asks the engines: give it the
simulated worker's KV cache. The batch is the requests in flight. A prompt that is held whole still has one token to
compute, as in engines, lest all its holders tie. Ties at random: how the paper breaks them is not known to us.
"""

import random

from warmroute_router.blocks import PromptBlocks
from warmroute_router.policies import Choice, FleetView, WorkerView
from warmroute_router.policies.base import W

from .base import ENGINE_TOKENS, Baseline, blocks_of, uncached_tokens
from .in_flight import PendingPrefill
from .sent_blocks import SentBlocks


class LMetric(Baseline):
    def __init__(self, queued: bool = True, engine_tokens: int = ENGINE_TOKENS) -> None:
        self._queued = queued
        self._engine_tokens = engine_tokens
        self._sent = SentBlocks()
        self._pending = PendingPrefill()

    def choose(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]:
        lowest, best, most = float("inf"), [(fleet.workers[0], 0)], 0
        for worker in fleet.workers:
            matched = self._sent.match(prompt.hashes, worker.index)
            most = max(most, matched)
            tokens = max(uncached_tokens(prompt, matched), 1)
            if self._queued:
                tokens += self._pending.tokens[worker.index]
            score = tokens * (worker.in_flight + 1)
            if score < lowest:
                lowest, best = score, [(worker, matched)]
            elif score == lowest:
                best.append((worker, matched))
        chosen, matched = random.choice(best)
        return Choice(chosen, "cold" if not most else "affinity" if matched == most else "load")

    def dispatched(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        matched = self._sent.match(prompt.hashes, worker.index)
        self._pending.begin(prompt, worker, uncached_tokens(prompt, matched))
        self._sent.add(prompt.hashes, worker.index, now)
        self._sent.trim(worker.index, blocks_of(self._engine_tokens, prompt))

    def first_byte(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        del now
        self._pending.finish(prompt, worker)
