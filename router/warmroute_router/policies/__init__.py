"""Routing policies, by the name that `--policy` takes."""

from collections.abc import Callable

from .base import Choice, FleetView, Policy, WorkerView
from .cache_aware import CacheAware
from .least_load import LeastLoad
from .random import Random
from .round_robin import RoundRobin

__all__ = ["POLICIES", "Choice", "FleetView", "Policy", "WorkerView"]

POLICIES: dict[str, Callable[[], Policy]] = {
    "cache_aware": CacheAware,
    "least_load": LeastLoad,
    "random": Random,
    "round_robin": RoundRobin,
}
