"""SMG `cache_aware`: what the authors of sglang-router made of it since (smg-project/smg, v1.9.0 and after).

Rule. The gates are sglang's (see `sglang.py`); behind them, of all workers that hold the longest match the least
loaded (#2161), ties at random (#2096), and one bound for the whole tree instead of one for each worker (#2137).

Sources. smg-project/smg, `model_gateway/src/policies/cache_aware.rs` (`sglang-router.md` section 2, "How B/C
answered").

Defaults. 0.3, 64, 1.5 and 67,108,864 characters in all.

Simplified. Blocks stand for characters, as in `sglang.py`, and eviction is at once. A block that two workers hold
counts twice towards the bound. Load is requests in flight: the real one weighs them by what it polls from engines
where they tell, and may also gate on their KV use, take KV events, or hash only the heads of prompts; those are other
modes, off by default over HTTP.
"""

import random

from warmroute_router.blocks import PromptBlocks
from warmroute_router.policies import Choice, FleetView, WorkerView
from warmroute_router.policies.base import W

from .base import CHARS_PER_TOKEN, Baseline, blocks_of, is_imbalanced, least_loaded, matched_share
from .sent_blocks import SentBlocks
from .sglang import BALANCE_ABS_THRESHOLD, BALANCE_REL_THRESHOLD, CACHE_THRESHOLD, MAX_TREE_CHARS


class SmgCacheAware(Baseline):
    def __init__(
        self,
        cache_threshold: float = CACHE_THRESHOLD,
        balance_abs_threshold: int = BALANCE_ABS_THRESHOLD,
        balance_rel_threshold: float = BALANCE_REL_THRESHOLD,
        max_tree_chars: int = MAX_TREE_CHARS,
    ) -> None:
        self._cache_threshold = cache_threshold
        self._balance_abs_threshold = balance_abs_threshold
        self._balance_rel_threshold = balance_rel_threshold
        self._max_tree_chars = max_tree_chars
        self._sent = SentBlocks()

    def choose(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]:
        if is_imbalanced(fleet.workers, self._balance_abs_threshold, self._balance_rel_threshold):
            return Choice(random.choice(least_loaded(fleet.workers)), "load")
        longest, holders = self._sent.longest(prompt.hashes, fleet.workers)
        if matched_share(prompt, longest) > self._cache_threshold:
            return Choice(random.choice(least_loaded(holders)), "affinity")
        return Choice(random.choice(least_loaded(fleet.workers)), "load" if longest else "cold")

    def dispatched(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        self._sent.add(prompt.hashes, worker.index, now)
        self._sent.trim_all(blocks_of(self._max_tree_chars / CHARS_PER_TOKEN, prompt))
