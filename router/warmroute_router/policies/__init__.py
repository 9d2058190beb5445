"""Routing policies, by the name that `--policy` takes."""

from collections.abc import Callable

from .base import Choice, FleetView, Policy, WorkerView
from .cache_aware import CacheAware
from .least_load import LeastLoad
from .power_of_two import PowerOfTwo
from .prefix_hash import PrefixHash
from .random import Random
from .round_robin import RoundRobin
from .session import Session

__all__ = ["POLICIES", "Choice", "FleetView", "Policy", "WorkerView"]

POLICIES: dict[str, Callable[[], Policy]] = {
    "cache_aware": CacheAware,
    "least_load": LeastLoad,
    "power_of_two": PowerOfTwo,
    "prefix_hash": PrefixHash,
    "random": Random,
    "round_robin": RoundRobin,
    "session": Session,
}
