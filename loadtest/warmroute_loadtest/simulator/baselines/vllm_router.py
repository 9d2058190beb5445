"""The vLLM router's `cache_aware`, the default of its CLI: a fork of sglang's.

Rule. sglang's (see `sglang.py`), and between its two steps: while the load is balanced, a request that names a
session goes where that session went last, whatever it holds. A session is noted in all branches.

Sources. vllm-project/router, `src/policies/cache_aware.rs` and `src/tree.rs` (`other-routers.md` section 3, item 3;
the sessions are of a version of the file that the notes do not describe).

Defaults. As sglang's, 0.3, 64, 1.5 and 67,108,864 characters per worker; sessions last an hour without use.

Simplified. As in `sglang.py`. The real one evicts every 120 seconds, expires sessions at the same time, and counts
workers that are down as idle ones when it looks for imbalance; a fleet here does not show them.
"""

from collections import OrderedDict

from warmroute_router.blocks import PromptBlocks
from warmroute_router.policies import Choice, FleetView, WorkerView
from warmroute_router.policies.base import W

from .sglang import SglangCacheAware

SESSION_SECONDS = 3600.0


class VllmRouterCacheAware(SglangCacheAware):
    def __init__(
        self,
        cache_threshold: float = 0.3,
        balance_abs_threshold: int = 64,
        balance_rel_threshold: float = 1.5,
        max_tree_chars: int = 67_108_864,
    ) -> None:
        super().__init__(cache_threshold, balance_abs_threshold, balance_rel_threshold, max_tree_chars)
        self._sessions: OrderedDict[int, tuple[float, int]] = OrderedDict()
        """For each session when it was last sent, and to which worker; the oldest first."""

    def choose_balanced(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]:
        if prompt.session in self._sessions:
            _, index = self._sessions[prompt.session]
            for worker in fleet.workers:
                if worker.index == index:
                    return Choice(worker, "affinity")
        return super().choose_balanced(prompt, fleet)

    def dispatched(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        super().dispatched(prompt, worker, now)
        if prompt.session:
            self._sessions[prompt.session] = now, worker.index
            self._sessions.move_to_end(prompt.session)
        while self._sessions and next(iter(self._sessions.values()))[0] < now - SESSION_SECONDS:
            self._sessions.popitem(last=False)
