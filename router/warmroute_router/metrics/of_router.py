"""What the router itself does: decisions, refusals, queue, tree, replicas, and where its workers come from."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from prometheus_client.core import InfoMetricFamily, Metric

from .. import __version__
from ..admission.admission import Admission
from ..discovery.kubernetes.discovery import KubernetesWorkers
from ..fleet import State, Worker
from ..proxy import Proxy
from ..replicas.peers import Peers
from ..routing import Routing
from .families import Values, counter, gauge, histogram, one

K = TypeVar("K", bound=Hashable)
_REFUSALS = (429, 502, 503)


def collect(routing: Routing, proxy: Proxy, workers: Sequence[Worker]) -> Iterable[Metric]:
    labels = {"version": __version__, "policy": routing.policy_name}
    yield InfoMetricFamily("warmroute", "The router.", labels)
    states = Counter(worker.state for worker in workers)
    values = [((state.value,), states[state]) for state in State if state is not State.GONE]
    yield gauge("workers", "Workers by their state.", values, ("state",))
    yield counter("drains", "Workers that have begun to drain.", one(routing.fleet.drains))
    yield counter(
        "refused_requests", "Requests answered by the router itself.", _counts(proxy.refused, *_REFUSALS), ("code",)
    )
    reasons = _counts(routing.decisions, "no_prompt", "no_capacity")
    yield counter("decisions", "Choices of a worker, by the policy's reason.", reasons, ("reason",))
    yield histogram(
        "decision_seconds",
        "Reading a prompt, hashing it, finding it in the tree and choosing a worker.",
        [((), routing.decision_time)],
    )
    yield gauge("held_body_bytes", "Bytes of request bodies in memory.", one(proxy.bodies.held))
    if proxy.admission is not None:
        yield from _admission(proxy.admission)
    tree = routing.tree
    yield gauge("tree_blocks", "Blocks in the prefix tree.", one(tree.blocks))
    yield gauge("tree_bytes", "Bytes of the prefix tree, by estimate.", one(tree.size))
    yield counter("tree_evicted_blocks", "Blocks evicted from the prefix tree.", one(tree.evicted))


def collect_replicas(peers: Peers) -> Iterable[Metric]:
    yield gauge("peers", "Other routers that are told of decisions.", one(peers.connected))
    followed = "Decisions of other routers that were taken over."
    yield counter("followed_decisions", followed, one(peers.gossip.followed))
    yield counter("untold_decisions", "Decisions that no batch had room for.", one(peers.gossip.untold))
    yield counter("missed_batches", "Batches that another router was too slow for.", one(peers.missed))


def collect_discovery(kubernetes: KubernetesWorkers) -> Iterable[Metric]:
    source, labels = ("kubernetes",), ("source",)
    found = "Workers that the source names, ready or not."
    yield gauge("discovered_workers", found, [(source, kubernetes.discovered)], labels)
    failures = "Times that the source could not be asked."
    yield counter("discovery_failures", failures, [(source, kubernetes.failures)], labels)


def _admission(admission: Admission) -> Iterable[Metric]:
    yield gauge("admitted_requests", "Requests past the queue.", one(admission.in_flight))
    yield gauge("queued_requests", "Requests that wait to be admitted.", one(admission.waiting))
    waits = "Time that admitted requests have waited for it."
    yield histogram("queue_wait_seconds", waits, [((), admission.queue_wait)])
    refused: Values = [(("full",), admission.queue_full), (("timeout",), admission.queue_timeouts)]
    yield counter("queue_refused_requests", "Requests that were not admitted.", refused, ("reason",))


def _counts(counts: Counter[K], *from_the_start: K) -> Values:
    """A series that began with its first count would have no rate then."""
    return [((str(key),), count) for key, count in (dict.fromkeys(from_the_start, 0) | counts.copy()).items()]
