"""Prometheus metrics, read off the live objects when they are scraped: the hot path only adds to plain numbers.

`docs/metrics.md` describes each; a test holds it to what is here.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ..discovery.kubernetes.discovery import KubernetesWorkers
from ..proxy import Proxy
from ..replicas.peers import Peers
from ..routing import Routing
from . import of_router, of_workers


class RouterCollector(Collector):
    def __init__(
        self, routing: Routing, proxy: Proxy, peers: Peers | None, kubernetes: KubernetesWorkers | None
    ) -> None:
        self._routing = routing
        self._proxy = proxy
        self._peers = peers
        self._kubernetes = kubernetes

    def collect(self) -> Iterable[Metric]:
        workers = list(self._routing.fleet.workers)  # as it is now: this is another thread
        yield from of_router.collect(self._routing, self._proxy, workers)
        yield from of_workers.collect(workers, self._routing.tree, self._routing.now())
        if self._peers is not None:
            yield from of_router.collect_replicas(self._peers)
        if self._kubernetes is not None:
            yield from of_router.collect_discovery(self._kubernetes)


def build_registry(
    routing: Routing,
    proxy: Proxy,
    peers: Peers | None = None,
    kubernetes: KubernetesWorkers | None = None,
) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(RouterCollector(routing, proxy, peers, kubernetes))
    return registry
