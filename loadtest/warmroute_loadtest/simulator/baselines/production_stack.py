"""vLLM production-stack's router: `prefixaware`, and `loadaware` as proposed for it.

Rule of `prefixaware`. One trie for all workers, over chunks of 128 characters; of the workers that hold the longest
match (all of them where nothing matches), any, with no regard to load. Where `prefix_min_match_length` is set and the
match is shorter: the worker with the fewest requests a second over the last minute. Nothing is ever evicted.

Rule of `loadaware`. The highest of matched / prompt tokens − β · (requests − mean) / max(1, mean), the requests being
those in flight and the mean the fleet's; ties to the first by URL. Where no worker holds anything: the fewest
requests a second.

Sources. vllm-project/production-stack at a6c01db, `src/vllm_router/routers/routing_logic.py` and
`prefix/hashtrie.py`; PR #1035 (`other-routers.md` section 3, items 1 and 2).

Defaults. `prefix_min_match_length` 0, so never; β = 1; 60 seconds.

Simplified. Chunks are the prompt's blocks. The prompt is noted in the fallback too (PR #990 did not, to its harm).
`loadaware` asks LMCache's controller what the engines hold; here it remembers what it sent, an LRU of `engine_tokens`
for each worker. It has no default of its own: give it the simulated worker's KV cache. The order by URL is the order
by index. Sessions do not exist here, so its fallback never goes by them.
"""

import random
from collections import Counter, deque

from warmroute_router.blocks import PromptBlocks
from warmroute_router.policies import Choice, FleetView, WorkerView
from warmroute_router.policies.base import W

from .base import CHARS_PER_TOKEN, ENGINE_TOKENS, Baseline, blocks_of, matched_share
from .sent_blocks import SentBlocks

WINDOW_SECONDS = 60.0


class PrefixAware(Baseline):
    def __init__(self, prefix_min_match_length: int = 0) -> None:
        """prefix_min_match_length: in characters, as its flag is."""
        self._min_match_chars = prefix_min_match_length
        self._sent = SentBlocks()
        self._recent = RecentRequests()

    def choose(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]:
        longest, holders = self._sent.longest(prompt.hashes, fleet.workers)
        if longest * prompt.block_tokens * CHARS_PER_TOKEN < self._min_match_chars:
            return Choice(self._recent.fewest(fleet), "load" if longest else "cold")
        return Choice(random.choice(holders), "affinity" if longest else "cold")

    def dispatched(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        self._sent.add(prompt.hashes, worker.index, now)
        self._recent.add(worker, now)


class LoadAware(Baseline):
    def __init__(self, beta: float = 1.0, engine_tokens: int = ENGINE_TOKENS) -> None:
        self._beta = beta
        self._engine_tokens = engine_tokens
        self._sent = SentBlocks()
        self._recent = RecentRequests()

    def choose(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]:
        workers = sorted(fleet.workers, key=lambda worker: worker.index)
        matches = [self._sent.match(prompt.hashes, worker.index) for worker in workers]
        most = max(matches)
        if not most:
            return Choice(self._recent.fewest(fleet), "cold")
        mean = sum(worker.in_flight for worker in workers) / len(workers)
        scores = [
            matched_share(prompt, matched) - self._beta * (worker.in_flight - mean) / max(1.0, mean)
            for worker, matched in zip(workers, matches, strict=True)
        ]
        chosen = scores.index(max(scores))
        return Choice(workers[chosen], "affinity" if matches[chosen] == most else "load")

    def dispatched(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        self._sent.add(prompt.hashes, worker.index, now)
        self._sent.trim(worker.index, blocks_of(self._engine_tokens, prompt))
        self._recent.add(worker, now)


class RecentRequests:
    """How many requests each worker was sent in the last minute."""

    def __init__(self) -> None:
        self._sent: deque[tuple[float, int]] = deque()
        self._counts: Counter[int] = Counter()

    def add(self, worker: WorkerView, now: float) -> None:
        self._sent.append((now, worker.index))
        self._counts[worker.index] += 1
        while self._sent[0][0] <= now - WINDOW_SECONDS:
            self._counts[self._sent.popleft()[1]] -= 1

    def fewest(self, fleet: FleetView[W]) -> W:
        return min(fleet.workers, key=lambda worker: (self._counts[worker.index], worker.index))
