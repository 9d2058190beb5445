"""What each worker is, does and says, and what came of its requests, by model."""

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import TypeVar

from prometheus_client.core import Metric

from ..account import Account
from ..blocks import BLOCK_TOKENS
from ..fleet import State, Worker
from ..tree import PrefixTree
from .families import Values, counter, gauge, histogram

T = TypeVar("T")

_WORKER = ("worker",)
_BOTH = ("worker", "model")
_FROM_THE_START = {200: 0, 499: 0, 502: 0}
"""A series that began with its first count would have no rate then."""


def collect(workers: Sequence[Worker], tree: PrefixTree, now: float) -> Iterable[Metric]:
    """`now`: on the router's clock."""
    yield from _outcomes(workers)
    yield from _states(workers, now)
    yield from _loads(workers)
    yield from _engines(workers)
    yield from _caches(workers, tree)


def _outcomes(workers: Sequence[Worker]) -> Iterable[Metric]:
    for name, help, value in (
        (
            "prompt_tokens",
            "Prompt tokens of the replies that reported cached tokens: the denominator of the next four.",
            lambda account: account.prompt_tokens,
        ),
        (
            "available_tokens",
            "Prompt tokens that the best worker was predicted to hold.",
            lambda account: account.available_tokens,
        ),
        (
            "captured_tokens",
            "Prompt tokens that the chosen worker was predicted to hold.",
            lambda account: account.captured_tokens,
        ),
        (
            "delivered_tokens",
            "Prompt tokens that the engine took from its cache, by its own report.",
            lambda account: account.delivered_tokens,
        ),
        (
            "mispredicted_tokens",
            "Prompt tokens that were predicted in the chosen worker's cache and were not, or the other way.",
            lambda account: account.mispredicted_tokens,
        ),
        (
            "unreported_requests",
            "Replies that said nothing of cached tokens: their hit rate is unknown, not zero.",
            lambda account: account.unreported_requests,
        ),
    ):
        yield counter(name, help, _of_accounts(workers, value), _BOTH)
    codes = (
        ((worker.url, model, str(code)), count)
        for worker in workers
        for model, account in worker.accounts.all().items()
        for code, count in (_FROM_THE_START | account.requests.copy()).items()
    )
    yield counter(
        "worker_requests",
        "Ended tries; 499 where the client left, 502 where the worker failed.",
        codes,
        (*_BOTH, "code"),
    )
    yield histogram(
        "time_to_first_token_seconds",
        "Of streamed answers: from the request's last byte to the answer's first, with queue and retries.",
        _of_accounts(workers, lambda account: account.ttft),
        _BOTH,
    )
    yield histogram(
        "request_duration_seconds",
        "Of answers below 400: from the request's last byte to the answer's, with queue and retries.",
        _of_accounts(workers, lambda account: account.duration),
        _BOTH,
    )
    retries = "Requests that went on to another worker after this one failed."
    yield counter("retries", retries, _each(workers, lambda worker: worker.retries), _WORKER)


def _states(workers: Sequence[Worker], now: float) -> Iterable[Metric]:
    def state(state: State) -> Values:
        return _each(workers, lambda worker: worker.state is state)

    yield gauge("worker_up", "1 where the worker is ready.", state(State.READY), _WORKER)
    yield gauge(
        "worker_draining", "1 where the worker gets nothing new and is about to go.", state(State.DRAINING), _WORKER
    )
    serves = (((worker.url, model), 1) for worker in workers for model in worker.accounts.models)
    yield gauge(
        "worker_serves", "1 for each model that the worker lists, or `unknown` where it lists none.", serves, _BOTH
    )
    yield gauge(
        "breaker_closed",
        "0 where faults, or the worker's own word that it is full, keep requests from it.",
        _each(workers, lambda worker: worker.guard.admits(now)),
        _WORKER,
    )
    opened = "Times that faults have opened a worker's circuit breaker."
    yield counter("breaker_opened", opened, _each(workers, lambda worker: worker.guard.opened), _WORKER)


def _loads(workers: Sequence[Worker]) -> Iterable[Metric]:
    """Of this router alone, so that a sum over replicas counts nothing twice."""
    loads = [(worker, *worker.own_counts) for worker in workers]
    in_flight = (((worker.url,), requests) for worker, requests, _ in loads)
    yield gauge("in_flight_requests", "Requests sent and not yet ended.", in_flight, _WORKER)
    waiting = (((worker.url,), tokens) for worker, _, tokens in loads)
    yield gauge(
        "waiting_tokens", "Uncached prompt tokens sent and not yet answered by a first byte.", waiting, _WORKER
    )
    connections = (
        ((worker.url, state), count)
        for worker in workers
        for state, count in (("busy", worker.pool.busy), ("idle", worker.pool.idle))
    )
    yield gauge("worker_connections", "Open connections to the worker.", connections, ("worker", "state"))


def _engines(workers: Sequence[Worker]) -> Iterable[Metric]:
    """As the engines said last, under one name whichever engine it is."""
    reports = [(worker.url, worker.engine) for worker in workers]
    up = (((url,), any(value is not None for value in report)) for url, report in reports)
    yield gauge("engine_up", "1 where the engine's own metrics could be read.", up, _WORKER)
    for make, name, help, place in (
        (gauge, "engine_running_requests", "Requests that the engine is computing.", "running"),
        (gauge, "engine_queued_requests", "Requests that wait in the engine.", "queued"),
        (gauge, "engine_kv_cache_usage_ratio", "Part of the engine's KV cache that is in use, 0 to 1.", "kv_usage"),
        (gauge, "engine_kv_cache_tokens", "Tokens that the engine's KV cache has room for.", "capacity"),
        (counter, "engine_prompt_tokens", "Prompt tokens that the engine has seen.", "prompt_tokens"),
        (counter, "engine_cached_tokens", "Of these, the tokens that it took from its cache.", "cached_tokens"),
        (counter, "engine_generation_tokens", "Tokens that the engine has generated.", "generation_tokens"),
    ):
        told = ((url, getattr(report, place)) for url, report in reports)
        yield make(name, help, [((url,), value) for url, value in told if value is not None], _WORKER)


def _caches(workers: Sequence[Worker], tree: PrefixTree) -> Iterable[Metric]:
    """A worker of which nothing is known has no series."""
    held = "Blocks that the worker is predicted to hold."
    yield gauge("held_blocks", held, _each(workers, lambda worker: tree.held[worker.index]), _WORKER)
    retentions = [(worker.url, worker.retention.blocks) for worker in workers]
    yield gauge(
        "retention_tokens",
        "Prompt tokens that may come in before an unused prefix is predicted to be evicted.",
        [((url,), blocks * BLOCK_TOKENS) for url, blocks in retentions if blocks < inf],
        _WORKER,
    )
    speeds = [(worker.url, worker.backlog.speed.tokens_per_s) for worker in workers]
    yield gauge(
        "prefill_tokens_per_second",
        "Prompt tokens that the worker computes in a second, by the first bytes of streams that met it idle.",
        [((url,), speed) for url, speed in speeds if speed is not None],
        _WORKER,
    )


def _each(workers: Sequence[Worker], value: Callable[[Worker], float]) -> Values:
    return (((worker.url,), value(worker)) for worker in workers)


def _of_accounts(workers: Sequence[Worker], value: Callable[[Account], T]) -> Iterable[tuple[Sequence[str], T]]:
    return (
        ((worker.url, model), value(account))
        for worker in workers
        for model, account in worker.accounts.all().items()
    )
