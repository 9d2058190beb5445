"""Prometheus metrics, read off the live objects when they are scraped: the hot path only adds to plain integers."""

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from . import __version__
from .admission.admission import Admission
from .blocks import BLOCK_TOKENS
from .fleet import State, Worker
from .proxy import Proxy
from .replicas.peers import Peers
from .routing import Routing


class _PerWorker(NamedTuple):
    """A metric that is one attribute of each worker."""

    kind: type[CounterMetricFamily | GaugeMetricFamily]
    name: str
    help: str
    attribute: str


_PER_WORKER = (
    _PerWorker(
        CounterMetricFamily,
        "prompt_tokens",
        "Prompt tokens of the replies that reported cached tokens: the denominator of the next four.",
        "prompt_tokens",
    ),
    _PerWorker(
        CounterMetricFamily,
        "available_tokens",
        "Prompt tokens that the best worker was predicted to hold.",
        "available_tokens",
    ),
    _PerWorker(
        CounterMetricFamily,
        "captured_tokens",
        "Prompt tokens that the chosen worker was predicted to hold.",
        "captured_tokens",
    ),
    _PerWorker(
        CounterMetricFamily,
        "delivered_tokens",
        "Prompt tokens that the engine took from its cache, by its own report.",
        "delivered_tokens",
    ),
    _PerWorker(
        CounterMetricFamily,
        "mispredicted_tokens",
        "Prompt tokens that were predicted in the chosen worker's cache and were not, or the other way.",
        "mispredicted_tokens",
    ),
    _PerWorker(
        CounterMetricFamily,
        "unreported_requests",
        "Replies that said nothing of cached tokens: their hit rate is unknown, not zero.",
        "unreported_requests",
    ),
    _PerWorker(
        CounterMetricFamily, "retries", "Requests that went on to another worker after this one failed.", "retries"
    ),
)


class RouterCollector(Collector):
    def __init__(self, routing: Routing, proxy: Proxy, peers: Peers | None) -> None:
        self._routing = routing
        self._proxy = proxy
        self._peers = peers

    def collect(self) -> Iterable[Metric]:
        workers = list(self._routing.fleet.workers)  # as it is now: this is another thread
        yield InfoMetricFamily(
            "warmroute", "The router.", {"version": __version__, "policy": self._routing.policy_name}
        )
        for metric in _PER_WORKER:
            family = metric.kind(f"warmroute_{metric.name}", metric.help, labels=["worker"])
            for worker in workers:
                family.add_metric([worker.url], getattr(worker, metric.attribute))
            yield family
        yield from self._loads(workers)
        yield from self._states(workers)
        yield _counted("worker_requests", "Ended requests.", ["worker", "code"], _by_worker_and_code(workers))
        refused = [([str(code)], count) for code, count in self._proxy.refused.copy().items()]
        yield _counted("refused_requests", "Requests answered by the router itself.", ["code"], refused)
        decisions = [([reason], count) for reason, count in self._routing.decisions.copy().items()]
        yield _counted("decisions", "Choices of a worker, by the policy's reason.", ["reason"], decisions)
        yield from self._guards(workers)
        yield from self._connections(workers)
        if self._proxy.admission is not None:
            yield from _admission(self._proxy.admission)
        yield from self._tree(workers)
        yield from self._calibration(workers)
        if self._peers is not None:
            yield from self._replicas(self._peers)

    def _loads(self, workers: list[Worker]) -> Iterable[Metric]:
        """Of this router alone, so that a sum over replicas counts nothing twice."""
        in_flight = GaugeMetricFamily(
            "warmroute_in_flight_requests", "Requests sent and not yet ended.", labels=["worker"]
        )
        waiting = GaugeMetricFamily(
            "warmroute_waiting_tokens",
            "Uncached prompt tokens sent and not yet answered by a first byte.",
            labels=["worker"],
        )
        for worker in workers:
            own_in_flight, own_waiting = worker.own_counts
            in_flight.add_metric([worker.url], own_in_flight)
            waiting.add_metric([worker.url], own_waiting)
        yield from (in_flight, waiting)

    def _calibration(self, workers: list[Worker]) -> Iterable[Metric]:
        """A worker of which nothing is known has no series."""
        retention = GaugeMetricFamily(
            "warmroute_retention_tokens",
            "Prompt tokens that may come in before an unused prefix is predicted to be evicted.",
            labels=["worker"],
        )
        for worker in workers:
            if worker.retention.blocks < inf:
                retention.add_metric([worker.url], worker.retention.blocks * BLOCK_TOKENS)
        yield retention
        speed = GaugeMetricFamily(
            "warmroute_prefill_tokens_per_second",
            "Prompt tokens that the worker computes in a second, by the first bytes of streams that met it idle.",
            labels=["worker"],
        )
        for worker in workers:
            if worker.backlog.speed.tokens_per_s is not None:
                speed.add_metric([worker.url], worker.backlog.speed.tokens_per_s)
        yield speed

    def _replicas(self, peers: Peers) -> Iterable[Metric]:
        yield GaugeMetricFamily("warmroute_peers", "Other routers that are told of decisions.", peers.connected)
        yield CounterMetricFamily(
            "warmroute_followed_decisions", "Decisions of other routers that were taken over.", peers.gossip.followed
        )
        yield CounterMetricFamily(
            "warmroute_untold_decisions", "Decisions that no batch had room for.", peers.gossip.untold
        )
        yield CounterMetricFamily(
            "warmroute_missed_batches", "Batches that another router was too slow for.", peers.missed
        )

    def _states(self, workers: list[Worker]) -> Iterable[Metric]:
        up = GaugeMetricFamily("warmroute_worker_up", "1 where the worker is ready.", labels=["worker"])
        for worker in workers:
            up.add_metric([worker.url], float(worker.state is State.READY))
        yield up

    def _guards(self, workers: list[Worker]) -> Iterable[Metric]:
        closed = GaugeMetricFamily(
            "warmroute_breaker_closed",
            "0 where faults, or the worker's own word that it is full, keep requests from it.",
            labels=["worker"],
        )
        opened = CounterMetricFamily(
            "warmroute_breaker_opened", "Times that faults have opened a worker's circuit breaker.", labels=["worker"]
        )
        for worker in workers:
            closed.add_metric([worker.url], float(worker.guard.closed))
            opened.add_metric([worker.url], worker.guard.opened)
        yield from (closed, opened)

    def _connections(self, workers: list[Worker]) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "warmroute_worker_connections", "Open connections to the worker.", labels=["worker", "state"]
        )
        for worker in workers:
            family.add_metric([worker.url, "busy"], worker.pool.busy)
            family.add_metric([worker.url, "idle"], worker.pool.idle)
        yield family
        yield GaugeMetricFamily(
            "warmroute_held_body_bytes", "Bytes of request bodies in memory.", self._proxy.bodies.held
        )

    def _tree(self, workers: list[Worker]) -> Iterable[Metric]:
        tree = self._routing.tree
        held = GaugeMetricFamily(
            "warmroute_held_blocks", "Blocks that the worker is predicted to hold.", labels=["worker"]
        )
        for worker in workers:
            held.add_metric([worker.url], tree.held[worker.index])
        yield held
        yield GaugeMetricFamily("warmroute_tree_blocks", "Blocks in the prefix tree.", tree.blocks)
        yield CounterMetricFamily(
            "warmroute_tree_evicted_blocks", "Blocks evicted from the prefix tree.", tree.evicted
        )


def _admission(admission: Admission) -> Iterable[Metric]:
    yield GaugeMetricFamily("warmroute_admitted_requests", "Requests past the queue.", admission.in_flight)
    yield GaugeMetricFamily("warmroute_queued_requests", "Requests that wait to be admitted.", admission.waiting)
    refused = [(["full"], admission.queue_full), (["timeout"], admission.queue_timeouts)]
    yield _counted("queue_refused_requests", "Requests that were not admitted.", ["reason"], refused)


def _by_worker_and_code(workers: list[Worker]) -> Iterable[tuple[list[str], int]]:
    for worker in workers:
        for code, count in worker.requests.copy().items():
            yield [worker.url, str(code)], count


def _counted(
    name: str,
    help: str,
    labels: list[str],
    counts: Iterable[tuple[list[str], int]],
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"warmroute_{name}", help, labels=labels)
    for values, count in counts:
        family.add_metric(values, count)
    return family


def build_registry(routing: Routing, proxy: Proxy, peers: Peers | None = None) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(RouterCollector(routing, proxy, peers))
    return registry
