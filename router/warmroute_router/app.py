"""The ASGI application: a few routes of the router's own, and the data path for every other path and method."""

import asyncio
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from .config import RouterConfig
from .errors import RequestError, no_worker, send_error, unauthorized
from .fleet import Fleet, Worker
from .health import HealthProbes
from .policies import POLICIES
from .proxy import Proxy
from .routing import Routing
from .tree import PrefixTree
from .types import ASGIApp, Receive, Scope, Send

MAX_TREE_BLOCKS = 1_000_000
"""256 MB of prompts, about 64 million tokens."""
MODELS_TIMEOUT = 5.0
"""Seconds that a worker has to name its models."""


class RouterApp:
    """Owns the router's parts. `__call__` is the ASGI entry point; the lifespan starts and stops the probes."""

    def __init__(self, config: RouterConfig) -> None:
        self.fleet = Fleet(config.worker_urls)
        self.tree = PrefixTree(MAX_TREE_BLOCKS)
        self.routing = Routing(self.fleet, self.tree, config.policy, POLICIES[config.policy]())
        self.proxy = Proxy(self.routing, config.max_payload_size)
        self._client = httpx.AsyncClient()
        starlette = Starlette(
            routes=[
                Route("/health", self.health),
                Route("/v1/models", self.models),
                Route("/workers", self.workers),
                Mount("/", self.proxy),
            ],
            lifespan=self.lifespan,
            exception_handlers={RequestError: _answer_error},
        )
        self._app: ASGIApp = ApiKey(starlette, config.api_key) if config.api_key else starlette

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        del app
        probes = HealthProbes(self.fleet, self._client)
        await probes.start()
        yield
        await probes.stop()
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
        lists = await asyncio.gather(*(self._models_of(worker, request) for worker in self.fleet.ready()))
        if not any(models is not None for models in lists):
            raise no_worker()
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


class ApiKey:
    """Asks every request for the key, but those to /health."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = b"Bearer " + key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/health":
            given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            if not hmac.compare_digest(given, self._expected):
                await send_error(send, unauthorized())
                return
        await self._app(scope, receive, send)


async def _answer_error(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, RequestError)
    headers = {name.decode(): value.decode() for name, value in error.headers}
    return Response(error.body, error.status, headers, "application/json")
