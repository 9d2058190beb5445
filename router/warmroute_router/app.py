"""The ASGI application: a few routes of the router's own, and the data path for every other path and method."""

import asyncio
import hmac
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .config import RouterConfig
from .errors import RequestError, no_worker, send_error, unauthorized, worker_failed
from .fleet import Fleet, Worker
from .health import HealthProbes
from .policies import POLICIES
from .proxy import Proxy
from .replicas.peers import Peers
from .replicas.state_file import StateFile
from .routing import Routing
from .tree import MAX_TREE_BLOCKS, PrefixTree
from .types import Receive, Scope, Send

MODELS_TIMEOUT = 5.0
"""Seconds that a worker has to name its models."""


class RouterApp:
    """Owns the router's parts. The few paths of its own go to Starlette; all others straight to the data path."""

    def __init__(self, config: RouterConfig, gossip_listener: socket.socket | None = None) -> None:
        """`gossip_listener`: where its replicas connect to, if it has any."""
        self.fleet = Fleet(config.worker_urls)
        self.tree = PrefixTree(MAX_TREE_BLOCKS)
        self.routing = Routing(self.fleet, self.tree, config.policy, POLICIES[config.policy]())
        self.proxy = Proxy(self.routing, config.max_payload_size, usage_injection=config.usage_injection)
        self.peers: Peers | None = None
        if config.gossip is not None and gossip_listener is not None:
            self.peers = Peers(self.routing, config.gossip, gossip_listener)
        self._state_file = StateFile(config.state_file, self.routing) if config.state_file is not None else None
        self._api_key = config.api_key.encode() if config.api_key else None
        # The environment's proxies are not for workers: the data path does not take them either.
        self._client = httpx.AsyncClient(trust_env=False)
        routes = [Route("/health", self.health), Route("/v1/models", self.models), Route("/workers", self.workers)]
        self._own_paths = frozenset(route.path for route in routes)
        self._control = Starlette(
            routes=routes, lifespan=self.lifespan, exception_handlers={RequestError: _answer_error}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._control(scope, receive, send)
        elif not self._admits(scope):
            self.proxy.refused[401] += 1
            await send_error(send, unauthorized())
        elif scope["path"] in self._own_paths and scope["method"] in ("GET", "HEAD"):
            await self._control(scope, receive, send)
        else:
            await self.proxy(scope, receive, send)

    def _admits(self, scope: Scope) -> bool:
        """Every request needs the key where there is one, but those to /health."""
        if self._api_key is None or scope["path"] == "/health":
            return True
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, key = given.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._api_key)

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        del app
        # What was known comes first, so that the first probes can tell which engines are others by now.
        if self._state_file is not None:
            self._state_file.start()
        if self.peers is not None:
            await self.peers.start()
        probes = HealthProbes(self.routing, self._client)
        await probes.start()
        yield
        await probes.stop()
        if self.peers is not None:
            await self.peers.stop()
        if self._state_file is not None:
            await self._state_file.stop()
        await self._client.aclose()
        self.fleet.close()

    async def health(self, request: Request) -> Response:
        """200 while a worker is ready: what a load balancer in front asks."""
        del request
        ready, total = len(self.fleet.ready()), len(self.fleet.workers)
        if not ready:
            raise no_worker()
        return JSONResponse({"status": "ok", "workers_ready": ready, "workers": total})

    async def models(self, request: Request) -> Response:
        """The union of what the ready workers serve, in the order of the workers."""
        ready = self.fleet.ready()
        if not ready:
            raise no_worker()
        lists = await asyncio.gather(*(self._models_of(worker, request) for worker in ready))
        if all(models is None for models in lists):
            raise worker_failed("none of those that are up lists its models")
        union = {model["id"]: model for models in lists for model in models or ()}
        return JSONResponse({"object": "list", "data": list(union.values())})

    async def _models_of(self, worker: Worker, request: Request) -> list[dict[str, Any]] | None:
        key = request.headers.get("authorization")
        try:
            response = await self._client.get(
                f"{worker.url}/v1/models",
                headers={"authorization": key} if key else None,
                timeout=MODELS_TIMEOUT,
            )
            models = response.json()["data"]
            return [model for model in models if isinstance(model.get("id"), str)]
        except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
            return None  # this one has nothing to say; the others may

    async def workers(self, request: Request) -> Response:
        del request
        return JSONResponse(
            {
                "workers": [
                    {
                        "url": worker.url,
                        "state": worker.state,
                        "in_flight": worker.in_flight,
                        "waiting_tokens": worker.waiting_tokens,
                        "blocks_held": self.tree.held[worker.index],
                    }
                    for worker in self.fleet.workers
                ]
            }
        )


async def _answer_error(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, RequestError)
    headers = {name.decode(): value.decode() for name, value in error.headers}
    return Response(error.body, error.status, headers, "application/json")
