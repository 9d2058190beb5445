"""What can be simulated, by the name that `--policy` takes: the router's own policies, and other routers'."""

from collections.abc import Callable
from typing import Protocol

from warmroute_router.blocks import PromptBlocks
from warmroute_router.policies import POLICIES, Choice, FleetView, Policy, WorkerView
from warmroute_router.policies.base import W

from .baselines import BASELINES


class SimPolicy(Protocol):
    """A policy, and what other routers' policies keep books on: the life of each request, `now` in seconds.

    For each request in this order: `choose`, `dispatched`, `first_byte`, `ended`, each exactly once; and from the
    start where its worker dies over it, `first_byte` and `ended` of the lost one being that moment at the latest.
    """

    def choose(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]: ...
    def dispatched(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None: ...
    def first_byte(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None: ...
    def ended(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None: ...


class ServedPolicy:
    """One of the router's own: what it needs to know of requests it sees in the fleet."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def choose(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]:
        return self._policy.choose(prompt, fleet)

    def dispatched(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        pass

    def first_byte(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        pass

    def ended(self, prompt: PromptBlocks, worker: WorkerView, now: float) -> None:
        pass


def _served(make: Callable[[], Policy]) -> Callable[[int], SimPolicy]:
    return lambda engine_tokens: ServedPolicy(make())


SIM_POLICIES: dict[str, Callable[[int], SimPolicy]] = {
    **{name: _served(make) for name, make in POLICIES.items()},
    **BASELINES,
}
"""By name. Called with the size of one engine's KV cache in tokens."""
