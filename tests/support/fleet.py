"""A fleet of workers that nobody connects to."""

from warmroute_router.account import Account
from warmroute_router.config import WorkerSpec
from warmroute_router.fleet import Fleet, Worker


def fleet_of(*urls: str) -> Fleet:
    fleet = Fleet()
    for url in urls:
        fleet.add(WorkerSpec(url))
    return fleet


def account_of(worker: Worker) -> Account:
    """Of the only model, or of all requests where the worker lists none."""
    return worker.accounts.of("")
