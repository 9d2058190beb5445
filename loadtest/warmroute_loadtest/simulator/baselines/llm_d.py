"""llm-d's router (the Gateway API inference extension's endpoint picker), default profile.

Rule. The highest of 2·queue + 2·(1 − kv) + 3·prefix, ties at random, where

    queue  = (longest queue − the worker's) / (longest − shortest), and 1 for all where they are equal
    kv     = the part of its KV cache that is in use
    prefix = matched blocks / the prompt's blocks

The prefix scorer is the approximate one: it keeps an LRU of blocks for each worker, written before the answer.

Sources. llm-d/llm-d-router, `pkg/epp/config/loader/defaults.go` and the scorers' READMEs (`other-routers.md`
section 3, item 4).

Defaults. Weights 2, 2, 3; LRU of 31,250 blocks of 64 tokens, which the router resets to the engine's own number of
blocks once it has read it: give `engine_tokens` the simulated worker's KV cache. At most 131,072 tokens are matched.

Simplified. Instead of the scraped queue, the requests that have had no first byte: fresher than the real one's, and
it counts those in prefill too. Instead of the scraped KV use, the distinct blocks of the requests in flight, and one
more for each, over `engine_tokens`, at most 1: it sees neither the answers grow nor requests that the engine has not
let in yet. Blocks are the prompt's own, whatever their size. The LRU drops a prompt's end before its head, so that a
part left over still counts; the real one drops the head first.
"""

import random
from array import array

from warmroute_router.blocks import PromptBlocks
from warmroute_router.policies import Choice, FleetView, WorkerView
from warmroute_router.policies.base import W

from .base import ENGINE_TOKENS, Baseline, blocks_of
from .in_flight import PendingPrefill, RunningBlocks
from .sent_blocks import SentBlocks

MAX_PREFIX_TOKENS = 131_072


class LlmD(Baseline):
    def __init__(
        self,
        queue_weight: float = 2.0,
        kv_weight: float = 2.0,
        prefix_weight: float = 3.0,
        engine_tokens: int = ENGINE_TOKENS,
        max_prefix_tokens: int = MAX_PREFIX_TOKENS,
    ) -> None:
        self._queue_weight = queue_weight
        self._kv_weight = kv_weight
        self._prefix_weight = prefix_weight
        self._engine_tokens = engine_tokens
        self._max_prefix_tokens = max_prefix_tokens
        self._sent = SentBlocks()
        self._pending = PendingPrefill()
        self._running = RunningBlocks()

    def choose(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]:
        hashes = self._key(prompt)
        matches = [self._sent.match(hashes, worker.index) for worker in fleet.workers]
        queues = [self._pending.requests[worker.index] for worker in fleet.workers]
        longest, shortest = max(queues), min(queues)
        spread = longest - shortest
        highest, best = float("-inf"), [0]
        for at, worker in enumerate(fleet.workers):
            queue = (longest - queues[at]) / spread if spread else 1.0
            prefix = matches[at] / len(hashes) if hashes else 0.0
            free = 1.0 - self._kv_use(worker, prompt)
            score = self._queue_weight * queue + self._kv_weight * free + self._prefix_weight * prefix
            if score > highest:
                highest, best = score, [at]
            elif score == highest:
                best.append(at)
        chosen, most = random.choice(best), max(matches)
        reason = "cold" if not most else "affinity" if matches[chosen] == most else "load"
        return Choice(fleet.workers[chosen], reason)

    def dispatched(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        self._sent.add(self._key(prompt), worker.index, now)
        self._sent.trim(worker.index, blocks_of(self._engine_tokens, prompt))
        self._pending.begin(prompt, worker, prompt.tokens)
        self._running.begin(prompt, worker)

    def first_byte(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        del now
        self._pending.finish(prompt, worker)

    def ended(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        del now
        self._running.finish(prompt, worker)

    def _key(self, prompt: PromptBlocks) -> "array[int]":
        return prompt.hashes[: blocks_of(self._max_prefix_tokens, prompt)]

    def _kv_use(self, worker: WorkerView, prompt: PromptBlocks) -> float:
        return min(self._running.blocks(worker.index) * prompt.block_tokens / self._engine_tokens, 1.0)
