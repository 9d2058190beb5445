"""The policy that this project is for: the worker that would answer soonest, in tokens of work.

    cost(w) = (remaining(w) + λ(w) · new(w)) · slowness(w) + α · in_flight(w)
    λ(w)    = 1 + EVICTION · pressure(w) · fill(w) + QUEUE · (remaining of the least loaded / mean new tokens)

`remaining` is what w still has to compute of other prompts, `new` what it would have to compute of this one: what is
not predicted in its cache, less a part (GONE) of what it once had and has probably lost, since nobody knows that for
sure. So a prompt that is gone everywhere goes back to where it was, where its next turn is looked for too. `slowness`
is 1 but where workers differ.

A token computed is worth more than one because it also pushes another one out of w's cache. How dear that one is
depends on how fast w's cache turns over: `pressure` is the share of the fleet's new tokens that w got of late, times
the number of workers, from 1 to 3; while the cache has room (`fill` below 1), less is evicted. So a worker that
everyone likes for its system prompt becomes dear before its cache is worn out, and the others learn that prompt too.
λ grows once nobody is idle, because then a token computed twice delays everyone behind it, while an idle worker
anywhere means that nobody is delayed. There is no threshold: a prefix that every worker holds discounts every worker.

Costs that are equal, or with other routers around less than a request apart, are told apart by the prompt: so
routers that see the same fleet send the same prompt to the same worker, and different ones not all to the same.

`docs/experiments.md` has the measurements behind the constants.
"""

from collections.abc import Mapping
from math import inf

from ..blocks import PromptBlocks
from .base import Choice, FleetView, W
from .rendezvous import distinguishing_key, ranked

EVICTION = 2.0
MAX_PRESSURE = 3.0
"""So that a lone chat, all of whose fleet's traffic is its own, does not leave a warm worker for a cold one."""
QUEUE = 2.0
GONE = 0.3
"""What a block counts that is predicted gone, but not for long, of one that is predicted cached."""
TOKENS_PER_REQUEST = 128
"""α: what one request in flight costs its worker, in tokens of prefill."""


class CacheAware:
    def choose(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]:
        workers = fleet.workers
        tokens, block_tokens, expected = prompt.tokens, prompt.block_tokens, _expected_blocks(fleet).get
        least_remaining, recent = inf, 0.0
        for worker in workers:
            if worker.remaining_tokens < least_remaining:
                least_remaining = worker.remaining_tokens
            recent += worker.recent_new_tokens
        mean_recent = recent / len(workers)
        base = 1.0
        if least_remaining:
            base += QUEUE * least_remaining / max(fleet.mean_new_tokens, 1.0)
        # Without what they evict: a lower bound, and quick, so that only few have to be looked at closely.
        bounds = [
            (worker.remaining_tokens + base * (tokens - expected(worker.index, 0) * block_tokens)) * worker.slowness
            + TOKENS_PER_REQUEST * worker.in_flight
            for worker in workers
        ]
        # A peer may just have put a request on the best worker, and this router does not know of it yet.
        unseen = TOKENS_PER_REQUEST if fleet.has_peers else 0

        def cost_at(place: int) -> float:
            worker, bound = workers[place], bounds[place]
            if not (fill := worker.cache_fill):
                return bound
            new = tokens - expected(worker.index, 0) * block_tokens
            return bound + _eviction(worker.recent_new_tokens, mean_recent) * fill * new * worker.slowness

        limit = cost_at(bounds.index(min(bounds))) + unseen
        near = [place for place, bound in enumerate(bounds) if bound <= limit]
        costs = [cost_at(place) for place in near]
        limit = min(costs) + unseen
        best = [workers[place] for place, cost in zip(near, costs, strict=True) if cost <= limit]
        chosen = best[0] if len(best) == 1 else _first_of_equals(best, prompt, fleet, mean_recent)
        return Choice(chosen, _reason(chosen, fleet, tie=len(best) > 1))


def _expected_blocks(fleet: FleetView[W]) -> Mapping[int, float]:
    if not fleet.doubtful_blocks:
        return fleet.cached_blocks
    expected: dict[int, float] = dict(fleet.cached_blocks)
    for index, blocks in fleet.doubtful_blocks.items():
        cached = expected.get(index, 0)
        expected[index] = cached + GONE * (blocks - cached)
    return expected


def _eviction(recent: float, mean_recent: float) -> float:
    """What a token that comes into a full cache costs there beside its computation."""
    pressure = recent / mean_recent if mean_recent else 1.0
    return EVICTION * min(max(pressure, 1.0), MAX_PRESSURE)


def _first_of_equals(best: list[W], prompt: PromptBlocks, fleet: FleetView[W], mean_recent: float) -> W:
    """Those first that got at most their share of late, so that an idle fleet fills evenly; then by rendezvous."""
    behind = [worker for worker in best if worker.recent_new_tokens <= mean_recent]
    return ranked(behind or best, distinguishing_key(prompt, fleet))[0]


def _reason(chosen: W, fleet: FleetView[W], *, tie: bool) -> str:
    """cold: nobody has any of it; load: somebody has more, but is busier; tie: others would do as well."""
    most = max(fleet.cached_blocks.values(), default=0)
    if not most:
        return "cold"
    if fleet.cached_blocks.get(chosen.index, 0) < most:
        return "load"
    return "tie" if tie else "affinity"
