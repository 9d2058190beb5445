"""The ASGI application: a few routes of the router's own, and the data path for every other path and method."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .admin import AdminApi
from .admission.admission import Admission
from .admission.shared_counts import SharedCounts
from .config import KeyConfig, RouterConfig, WorkerSpec
from .discovery.allow_list import AllowList
from .discovery.changes import Changes
from .discovery.dns import DnsWorkers
from .discovery.file import WorkersFile
from .discovery.kubernetes.discovery import KubernetesWorkers
from .discovery.membership import Membership
from .errors import (
    ConnectionLost,
    RequestError,
    admin_elsewhere,
    answer_error,
    draining,
    send_error,
    unauthorized,
    worker_failed,
)
from .fleet import Fleet, Worker
from .health import HealthProbes
from .housekeeping import Housekeeping
from .keys import KeyRing
from .policies import POLICIES
from .proxy import Proxy
from .replicas.peers import Peers
from .replicas.state_file import StateFile
from .retries import Retries
from .routing import Routing
from .tls import ReloadingContext, worker_context
from .tree import MAX_TREE_BLOCKS, PrefixTree
from .types import ASGIApp, Receive, Scope, Send, Sender
from .upstream.models import PATH as MODELS
from .upstream.models import read_models
from .upstream.worker_client import Unanswered, WorkerClient

HEALTH, READY, LIVE = "/health", "/health/ready", "/health/live"
MODELS_TIMEOUT = 5.0
"""Seconds that a worker has to name its models."""


class RouterApp:
    """Owns the router's parts. The few paths of its own go to Starlette; all others straight to the data path."""

    def __init__(
        self,
        config: RouterConfig,
        gossip_listener: socket.socket | None = None,
        *,
        shared: SharedCounts | None = None,
        changes_path: Path | None = None,
        reloads: tuple[Callable[[], None], ...] = (),
    ) -> None:
        """gossip_listener: where its replicas connect to, if it has any.

        shared, changes_path: what it shares with the other processes of one router.
        reloads: further files to look at now and then.
        """
        self._loop: asyncio.AbstractEventLoop | None = None
        self.draining = False
        """Whether it is about to stop: load balancers shall send no more."""
        worker_tls = ReloadingContext(worker_context, config.worker_tls)
        self.fleet = Fleet(config.timeouts, config.breaker, worker_tls.context)
        self.tree = PrefixTree(MAX_TREE_BLOCKS)
        self.routing = Routing(self.fleet, self.tree, config.policy, POLICIES[config.policy]())
        self.routing.max_per_worker = config.admission.max_per_worker
        self.proxy = Proxy(
            self.routing,
            Retries(config.retries),
            _admission(config, self.routing, shared),
            config.max_payload_size,
            total_timeout=config.timeouts.total,
            usage_injection=config.usage_injection,
        )
        self.peers: Peers | None = None
        if config.gossip is not None and gossip_listener is not None:
            self.peers = Peers(self.routing, config.gossip, gossip_listener)
        self._state_file = StateFile(config.state_file, self.routing) if config.state_file is not None else None
        self._client = WorkerClient(worker_tls.context)
        self._probes = HealthProbes(self.routing, self._client, config.health, config.engine_stats_interval)
        self._keys = _key_ring(config.api_keys)

        membership = Membership(self.routing, config.worker_api_key)
        membership.apply("flags", [WorkerSpec(url) for url in config.worker_urls])
        self.workers_file = WorkersFile(config.workers_file, membership) if config.workers_file is not None else None
        if self.workers_file is not None:
            self.workers_file.load()
        self._dns = DnsWorkers(config.worker_dns, membership)
        self.kubernetes: KubernetesWorkers | None = None
        if config.kubernetes is not None:
            self.kubernetes = KubernetesWorkers(config.kubernetes, membership, self.fleet)
        self._changes = Changes(changes_path, membership)
        admin_keys = _key_ring(config.admin.keys)
        own_port = config.admin.port is not None
        allowed = AllowList(config.admin.allowed_workers)
        self._admin = AdminApi(self.routing, self._changes, allowed, admin_keys, own_port=own_port)
        self.admin_app: ASGIApp | None = self._admin if own_port else None
        """For the port of its own, if it has one."""

        watched = (worker_tls, self._keys, admin_keys, self.workers_file)
        reloads = (*reloads, *(each.reload_if_changed for each in watched if each is not None))
        self._housekeeping = Housekeeping(self.routing, self._changes, reloads)
        routes = [
            *(Route(path, self.health) for path in (HEALTH, READY)),
            Route(LIVE, self.live),
            Route(MODELS, self.models),
        ]
        self._own_paths = frozenset(route.path for route in routes)
        self._control = Starlette(routes=routes, exception_handlers={RequestError: answer_error})

    async def __call__(self, scope: Scope, receive: Receive, send: Sender) -> None:
        if AdminApi.handles(scope["path"]):
            await self._administer(scope, receive, send)
        elif not self._admits(scope):
            await self._refuse(unauthorized(), send)
        elif scope["path"] in self._own_paths and scope["method"] in ("GET", "HEAD"):
            await self._control(scope, receive, send)
        else:
            await self.proxy(scope, receive, send)

    async def _administer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.admin_app is not None:
            await self._refuse(admin_elsewhere(), send)
        elif not self._admin.has_keys and not self._admits(scope):
            await self._refuse(unauthorized(), send)
        else:
            await self._admin(scope, receive, send)

    async def _refuse(self, error: RequestError, send: Send) -> None:
        self.proxy.refused[error.status] += 1
        await send_error(send, error)

    def _admits(self, scope: Scope) -> bool:
        """Every request needs a key where there are any, but those to /health and below."""
        return self._keys is None or scope["path"] in (HEALTH, READY, LIVE) or self._keys.admits(scope["headers"])

    async def start(self) -> None:
        """Whatever goes on beside the requests, in the loop that serves them."""
        self._loop = asyncio.get_running_loop()
        await self._dns.start()
        if self.kubernetes is not None:
            await self.kubernetes.start()
        self._changes.reload_if_changed()
        # What was known comes before the first probes, so that they can tell which engines are others by now.
        if self._state_file is not None:
            self._state_file.start()
        if self.peers is not None:
            await self.peers.start()
        await self._probes.start()
        self._housekeeping.start()

    async def stop(self) -> None:
        await self._housekeeping.stop()
        await self._probes.stop()
        await self._dns.stop()
        if self.kubernetes is not None:
            await self.kubernetes.stop()
        if self.peers is not None:
            await self.peers.stop()
        if self._state_file is not None:
            await self._state_file.stop()
        await self._client.close()
        self.fleet.close()

    def count_tasks(self) -> int:
        """Of its event loop. May be asked from any thread."""
        return 0 if self._loop is None else len(asyncio.all_tasks(self._loop))

    async def health(self, request: Request) -> Response:
        """200 while a worker is ready: what a load balancer in front asks."""
        del request
        if self.draining:
            raise draining()
        ready, total = len(self.fleet.ready()), len(self.fleet.workers)
        if not ready:
            raise self.fleet.nobody()
        return JSONResponse({"status": "ok", "workers_ready": ready, "workers": total})

    async def live(self, request: Request) -> Response:
        """200 as long as it serves: a restart would bring no worker back."""
        del request
        return JSONResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        """The union of what the ready workers serve, in the order of the workers."""
        ready = self.fleet.ready()
        if not ready:
            raise self.fleet.nobody()
        lists = await asyncio.gather(*(self._models_of(worker, request) for worker in ready))
        if all(models is None for models in lists):
            raise worker_failed(ConnectionLost("none of those that are up lists its models"))
        union = {model["id"]: model for models in lists for model in models or ()}
        return JSONResponse({"object": "list", "data": list(union.values())})

    async def _models_of(self, worker: Worker, request: Request) -> list[dict[str, Any]] | None:
        authorization = request.headers.get("authorization")
        try:
            answer = await self._client.get(worker.spec, MODELS, timeout=MODELS_TIMEOUT, authorization=authorization)
        except Unanswered:
            return None  # this one has nothing to say; the others may
        return read_models(answer.body)


def _key_ring(config: KeyConfig) -> KeyRing | None:
    """None where there are no keys. Raises OSError and ValueError on a file that has none either."""
    if not config:
        return None
    ring = KeyRing(config)
    ring.load()
    return ring


def _admission(config: RouterConfig, routing: Routing, shared: SharedCounts | None) -> Admission | None:
    limits = config.admission
    if limits.max_concurrent_requests is None and limits.max_per_worker is None and limits.rate is None:
        return None
    return Admission(limits, has_room=lambda: routing.has_room, shared=shared)
