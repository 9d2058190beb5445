"""A fleet of workers that nobody connects to."""

from warmroute_router.config import WorkerSpec
from warmroute_router.fleet import Fleet


def fleet_of(*urls: str) -> Fleet:
    fleet = Fleet()
    for url in urls:
        fleet.add(WorkerSpec(url))
    return fleet
