"""`warmroute serve`: flags, configuration, sockets, announcement, serving, drain."""

import logging
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvicorn
import uvloop
from prometheus_client import CollectorRegistry, start_http_server

from . import __version__
from .app import RouterApp
from .config import RouterConfig, bracketed
from .flags import parse_config
from .metrics import build_registry

KEEP_ALIVE = 75
"""Seconds that a client's idle connection stays open: longer than the idle timeout of clients and load balancers."""
BACKLOG = 2048
"""Connections that wait to be accepted."""
GRACE = 30
"""Seconds that streams have to end after SIGTERM."""


def main(argv: Sequence[str] | None = None) -> int:
    """The router: a reverse proxy in front of inference workers."""
    config = parse_config(argv)
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it warns of each odd request, at length
    # As Ctrl-C does, it drains where uvicorn listens to it, and ends the process at once where not yet.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _run(config)
    except OSError as error:
        print(f"warmroute serve: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def _run(config: RouterConfig) -> int:
    listener = _listen(config.host, config.port)
    gossip_listener = None if config.gossip is None else _listen(config.gossip.host, config.gossip.port)
    app = RouterApp(config, gossip_listener)
    with _metrics_server(config, build_registry(app.routing, app.proxy, app.peers)) as metrics_port:
        gossip_port = gossip_listener.getsockname()[1] if gossip_listener is not None else None
        announcement = _announcement(config, listener.getsockname()[1], metrics_port, gossip_port)
        uvloop.run(_Server(server_config(app), announcement).serve(sockets=[listener]))
    return 0


def server_config(app: RouterApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        # The answer's headers are the worker's own.
        server_header=False,
        date_header=False,
        # Who is in front of this router is not known, so nobody's x-forwarded-for is believed.
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
    )


class _Server(uvicorn.Server):
    """Announces itself once it can be reached and stopped."""

    def __init__(self, config: uvicorn.Config, announcement: str) -> None:
        super().__init__(config)
        self._announcement = announcement

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            print(self._announcement, flush=True)


def _listen(host: str, port: int) -> socket.socket:
    """Raises OSError with a message that names the address."""
    with _naming(host, port):
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        return listener


@contextmanager
def _metrics_server(config: RouterConfig, registry: CollectorRegistry) -> Iterator[int]:
    """Serves /metrics from a thread of its own; gives the port."""
    with _naming(config.prometheus_host, config.prometheus_port):
        server, thread = start_http_server(config.prometheus_port, config.prometheus_host, registry)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def _naming(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(f"cannot listen on {bracketed(host)}:{port}: {error.strerror}") from error


def _announcement(config: RouterConfig, port: int, metrics_port: int, gossip_port: int | None) -> str:
    gossip = "" if config.gossip is None else f"; gossip on {bracketed(config.gossip.host)}:{gossip_port}"
    return (
        f"warmroute {__version__}: http://{bracketed(config.host)}:{port}, policy {config.policy}, "
        f"{len(config.worker_urls)} workers; "
        f"metrics on http://{bracketed(config.prometheus_host)}:{metrics_port}/metrics{gossip}"
    )
