"""NVIDIA Dynamo's KV router in its predicted mode (`--no-router-kv-events`).

Rule. The lowest of prefill + decode, in blocks, ties at random, where

    prefill = overlap weight · max(blocks that the worker still has to compute + the prompt's − those it holds, 0)
    decode  = distinct blocks of what the worker has in flight, this prompt included

What a worker holds is what it was sent within the last 120 seconds.

Sources. ai-dynamo/dynamo, `router-concepts.md` and `router-configuration.md` (`other-routers.md` section 3, item 6).

Defaults. Overlap weight 1, temperature 0 (the lowest cost wins; above 0 it draws lots, which is not here), TTL 120 s,
at most 1,048,576 blocks in all, and pruned to 0.8 of that. Output is not tracked, so answers do not grow.

Simplified. Blocks are the prompt's, not the engine's of 16 tokens. A request in flight has one block beyond its
prompt's full ones. What it has to compute is fixed when it is sent and gone with its first byte. A block that two
workers hold counts twice towards the bound, and blocks expire when the clock is next told. Only the worker's own GPU
cache gives credit; no queue in the router.
"""

import random

from warmroute_router.blocks import PromptBlocks
from warmroute_router.policies import Choice, FleetView, WorkerView
from warmroute_router.policies.base import W

from .base import Baseline, uncached_tokens
from .in_flight import PendingPrefill, RunningBlocks
from .sent_blocks import SentBlocks

PRUNE_TARGET = 0.8


class DynamoKv(Baseline):
    def __init__(
        self, overlap_weight: float = 1.0, ttl_seconds: float = 120.0, max_tree_blocks: int = 1_048_576
    ) -> None:
        self._overlap_weight = overlap_weight
        self._ttl_seconds = ttl_seconds
        self._max_tree_blocks = max_tree_blocks
        self._sent = SentBlocks()
        self._pending = PendingPrefill()
        self._running = RunningBlocks()

    def choose(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]:
        lowest, best, most = float("inf"), [(fleet.workers[0], 0)], 0
        for worker in fleet.workers:
            matched = self._sent.match(prompt.hashes, worker.index)
            most = max(most, matched)
            tokens = self._pending.tokens[worker.index] + prompt.tokens
            prefill = max(tokens / prompt.block_tokens - matched, 0.0)
            cost = self._overlap_weight * prefill + self._running.blocks_with(prompt.hashes, worker.index)
            if cost < lowest:
                lowest, best = cost, [(worker, matched)]
            elif cost == lowest:
                best.append((worker, matched))
        chosen, matched = random.choice(best)
        return Choice(chosen, "cold" if not most else "affinity" if matched == most else "load")

    def dispatched(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        self._sent.expire(now - self._ttl_seconds)
        matched = self._sent.match(prompt.hashes, worker.index)
        self._pending.begin(prompt, worker, uncached_tokens(prompt, matched))
        self._running.begin(prompt, worker)
        self._sent.add(prompt.hashes, worker.index, now)
        if self._sent.blocks > self._max_tree_blocks:
            self._sent.trim_all(int(PRUNE_TARGET * self._max_tree_blocks))

    def first_byte(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        self._sent.expire(now - self._ttl_seconds)
        self._pending.finish(prompt, worker)

    def ended(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        self._sent.expire(now - self._ttl_seconds)
        self._running.finish(prompt, worker)
