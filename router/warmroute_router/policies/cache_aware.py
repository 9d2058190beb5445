"""The policy that this project is for: the worker that would answer soonest, in tokens of work.

    cost(w) = waiting(w) + λ · new(w) + α · in_flight(w)

`new` is what w would have to compute of this prompt, `waiting` what it still has to compute of others. λ > 1
because a prefix computed twice also pushes another one out of a cache. λ grows with the queue of the least loaded
worker: once nobody is idle, a token computed twice delays everyone behind it, while an idle worker anywhere
means that nobody is delayed. There is no threshold: a prefix that every worker holds discounts every worker.
"""

from ..blocks import PromptBlocks
from .base import Choice, FleetView, W
from .rendezvous import distinguishing_key, ranked

LAMBDA_IDLE = 2.5
LAMBDA_PER_QUEUED_REQUEST = 1.0
TOKENS_PER_REQUEST = 16
"""α: what one running request costs its worker, in tokens of prefill."""


class CacheAware:
    def choose(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]:
        least_waiting = min(worker.waiting_tokens for worker in fleet.workers)
        weight = LAMBDA_IDLE + LAMBDA_PER_QUEUED_REQUEST * least_waiting / max(fleet.mean_new_tokens, 1.0)
        cached = fleet.cached_blocks
        lowest = float("inf")
        best: list[W] = []
        for worker in fleet.workers:
            new = max(prompt.tokens - cached.get(worker.index, 0) * prompt.block_tokens, 0)
            cost = worker.waiting_tokens + weight * new + TOKENS_PER_REQUEST * worker.in_flight
            if cost < lowest:
                lowest, best = cost, [worker]
            elif cost == lowest:
                best.append(worker)
        chosen = best[0] if len(best) == 1 else ranked(best, distinguishing_key(prompt, fleet))[0]
        return Choice(chosen, _reason(chosen, fleet))


def _reason(chosen: W, fleet: FleetView[W]) -> str:
    """cold: nobody has any of it; affinity: nobody has more of it; load: somebody has more, but is busier."""
    most = max(fleet.cached_blocks.values(), default=0)
    if not most:
        return "cold"
    return "affinity" if fleet.cached_blocks.get(chosen.index, 0) == most else "load"
