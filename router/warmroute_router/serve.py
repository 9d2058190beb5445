"""`warmroute serve`: flags, configuration, sockets, announcement, serving, drain."""

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import uvloop
from prometheus_client import CollectorRegistry, Gauge, ProcessCollector

from .admission.shared_counts import SharedCounts
from .app import RouterApp
from .cli import announce
from .config import RouterConfig
from .flags import parse_config
from .metrics import build_registry
from .processes.supervisor import supervise
from .serving.allocator import keep_freed_memory
from .serving.descriptors import raise_limit
from .serving.door import Door
from .serving.lifecycle import Lifecycle
from .serving.listen import check_backlog
from .serving.listeners import Listeners, opened
from .serving.metrics_server import metrics_served
from .serving.signals import await_loop, obeying_signals
from .start import CannotStart, announcement, starting
from .tls import ReloadingContext, server_context


def main(argv: Sequence[str] | None = None) -> int:
    """The router: a reverse proxy in front of inference workers."""
    config = parse_config(argv)
    set_up_logging(config.log_level)
    await_loop()
    keep_freed_memory()
    try:
        return _serve(config)
    except CannotStart as error:
        print(f"warmroute serve: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def set_up_logging(level: str, prefix: str = "") -> None:
    """prefix: tells several processes apart."""
    logging.basicConfig(level=level.upper(), format=f"%(asctime)s %(levelname)s {prefix}%(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)


def _serve(config: RouterConfig) -> int:
    raise_limit(config.admission)
    check_backlog()
    with ExitStack() as stack:
        with starting():
            listeners = stack.enter_context(opened(config))
        if config.processes > 1:
            return supervise(config, listeners)
        with starting():
            process = Process(config, listeners[0])
            metrics_url = stack.enter_context(
                metrics_served(config.prometheus_host, config.prometheus_port, process.registry)
            )

        def started() -> None:
            announce(announcement(config, listeners, process.workers, metrics_url))

        return 0 if uvloop.run(_until_signalled(process.lifecycle, started)) else 1


async def _until_signalled(lifecycle: Lifecycle, started: Callable[[], None]) -> bool:
    with obeying_signals(lifecycle.stop):
        return await lifecycle.run(started)


class Process:
    """The parts of one router process, put together."""

    def __init__(
        self,
        config: RouterConfig,
        listeners: Listeners,
        *,
        shared: SharedCounts | None = None,
        changes_path: Path | None = None,
    ) -> None:
        """shared, changes_path: see RouterApp. Raises OSError and ValueError on files that are not as expected."""
        tls = ReloadingContext(server_context, config.tls) if config.tls is not None else None
        context = tls.context if tls is not None else None
        app = RouterApp(
            config,
            listeners.gossip,
            shared=shared,
            changes_path=changes_path,
            reloads=(tls.reload_if_changed,) if tls is not None else (),
        )
        refused = app.proxy.refused
        doors = [Door(app, listeners.public, context, refused=refused)]
        if app.admin_app is not None and listeners.admin is not None:
            doors.append(Door(app.admin_app, [listeners.admin], context, refused=refused))
        self.lifecycle = Lifecycle(app, doors, delay=config.shutdown_delay, grace=config.shutdown_grace)
        self.registry: CollectorRegistry = build_registry(app.routing, app.proxy, app.peers, app.kubernetes)
        ProcessCollector(registry=self.registry)
        tasks = Gauge(
            "warmroute_tasks",
            "Tasks of the router's event loop: a few, and some for each request.",
            registry=self.registry,
        )
        tasks.set_function(app.count_tasks)
        self._app = app

    @property
    def workers(self) -> int:
        return len(self._app.fleet.workers)
