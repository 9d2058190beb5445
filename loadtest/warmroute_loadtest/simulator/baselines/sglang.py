"""sglang-router 0.3.2 `cache_aware`, the wheel's default policy.

Rule. If the busiest worker has more than `balance_abs_threshold` requests more than the idlest *and* more than
`balance_rel_threshold` times as many: the idlest. Else the prompt's longest match in one tree for all workers: where
it is more than `cache_threshold` of the prompt, the one tenant that the tree remembers at its end, which is whoever
was sent that text first, no matter who else holds it and how busy they are. Else the idlest. Every prompt is noted
for its worker, in all branches. Ties go to the lowest index. A remembered tenant that may not be chosen is dropped
from the tree, and the first worker takes the request.

Sources. sgl-project/sglang, `sgl-model-gateway/src/policies/cache_aware.rs` and `tree.rs` at release 0.3.2
(`sglang-router.md` section 2, line A).

Defaults. 0.3, 64, 1.5 and 67,108,864 characters per worker, the wheel's own arguments.

Simplified. Blocks stand for characters, so a match ends at a block's end, and four characters for a token. Eviction
is at once, not every 60 seconds, and in true order of use: the real tree gives inner nodes no time, and renews
a leaf that is matched only one time in eight. When a remembered tenant's part is evicted, the lowest index among the
other holders takes its place, where the real one takes any.
"""

from warmroute_router.blocks import PromptBlocks
from warmroute_router.policies import Choice, FleetView, WorkerView
from warmroute_router.policies.base import W

from .base import CHARS_PER_TOKEN, Baseline, blocks_of, first_of_least_loaded, is_imbalanced, matched_share
from .sent_blocks import Sent, SentBlocks, leading

CACHE_THRESHOLD = 0.3
BALANCE_ABS_THRESHOLD = 64
BALANCE_REL_THRESHOLD = 1.5
MAX_TREE_CHARS = 67_108_864


class SglangCacheAware(Baseline):
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
        self._tenants: dict[int, int] = {}
        """For each block that any worker holds, the one that is remembered."""

    def choose(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]:
        if is_imbalanced(fleet.workers, self._balance_abs_threshold, self._balance_rel_threshold):
            return Choice(first_of_least_loaded(fleet.workers), "load")
        return self.choose_balanced(prompt, fleet)

    def choose_balanced(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]:
        matched = leading(prompt.hashes, self._tenants)
        if matched_share(prompt, matched) <= self._cache_threshold:
            return Choice(first_of_least_loaded(fleet.workers), "load" if matched else "cold")
        tenant = self._tenants[prompt.hashes[matched - 1]]
        for worker in fleet.workers:
            if worker.index == tenant:
                return Choice(worker, "affinity")
        self._reassign(self._sent.forget(tenant))
        return Choice(min(fleet.workers, key=lambda worker: worker.index), "load")

    def dispatched(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        self._sent.add(prompt.hashes, worker.index, now)
        for block in prompt.hashes:
            self._tenants.setdefault(block, worker.index)
        bound = blocks_of(self._max_tree_chars / CHARS_PER_TOKEN, prompt)
        self._reassign(self._sent.trim(worker.index, bound))

    def _reassign(self, dropped: list[Sent]) -> None:
        for worker, block in dropped:
            if self._tenants[block] != worker:
                continue
            holders = self._sent.holders(block)
            if holders:
                self._tenants[block] = min(holders)
            else:
                del self._tenants[block]
