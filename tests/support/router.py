"""The router on a real socket, in the test's own event loop, so that its counters can be looked at."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from warmroute_router.app import RouterApp
from warmroute_router.config import RouterConfig, normalize_worker_url
from warmroute_router.serving.door import Door
from warmroute_router.serving.lifecycle import Lifecycle

CONFIG = RouterConfig(
    worker_urls=(),
    policy="cache_aware",
    hosts=("127.0.0.1",),
    port=0,
    prometheus_host="127.0.0.1",
    prometheus_port=0,
    max_payload_size=64 * 1024 * 1024,
    usage_injection=True,
    log_level="info",
)
GRACE = 30.0
"""Seconds. Nothing is left to be waited for where a test has passed."""


class RunningRouter:
    def __init__(self, app: RouterApp, port: int) -> None:
        self.app = app
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def assert_idle(self) -> None:
        """No load is left behind by anyone."""
        for worker in self.app.fleet.workers:
            assert (worker.in_flight, worker.waiting_tokens) == (0, 0), worker.url


@asynccontextmanager
async def running_router(*urls: str, config: RouterConfig = CONFIG) -> AsyncIterator[RunningRouter]:
    app = RouterApp(replace(config, worker_urls=tuple(normalize_worker_url(url) for url in urls)))
    async with running_app(app) as router:
        yield router


@asynccontextmanager
async def running_app(app: RouterApp) -> AsyncIterator[RunningRouter]:
    listener = _listener()
    lifecycle = Lifecycle(app, [Door(app, [listener], refused=app.proxy.refused)], delay=0, grace=GRACE)
    started = asyncio.Event()
    serving = asyncio.create_task(lifecycle.run(started.set))
    await started.wait()
    try:
        yield RunningRouter(app, listener.getsockname()[1])
    finally:
        lifecycle.stop()
        await serving


def _listener() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    return listener


async def until(condition: Callable[[], bool], patience: float = 30.0) -> None:
    """Poll a condition, since counters do not notify. `patience` is in seconds, and only matters in failure."""
    async with asyncio.timeout(patience):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
