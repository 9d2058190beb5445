"""`warmroute serve`: flags, configuration, sockets, announcement, serving, drain."""

import logging
import signal
import socket
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvicorn
import uvloop
from prometheus_client import CollectorRegistry, start_http_server

from . import __version__
from .app import RouterApp
from .cli import OneLineParser
from .config import RouterConfig, bracketed, normalize_worker_urls
from .metrics import build_registry
from .policies import POLICIES

LOG_LEVELS = ("debug", "info", "warning", "error")
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
    app = RouterApp(config)
    listener = _listen(config.host, config.port)
    with _metrics_server(config, build_registry(app.routing, app.proxy)) as metrics_port:
        announcement = _announcement(config, listener.getsockname()[1], metrics_port)
        uvloop.run(_Server(server_config(app), announcement).serve(sockets=[listener]))
    return 0


def parse_config(argv: Sequence[str] | None) -> RouterConfig:
    """Exits with 2, and one line, on a flag that cannot be."""
    parser = OneLineParser(prog="warmroute serve", description=main.__doc__)
    parser.add_argument("--version", action="version", version=f"warmroute {__version__}")
    parser.add_argument("--worker-urls", nargs="+", required=True, metavar="URL", help="the inference workers")
    parser.add_argument("--policy", choices=sorted(POLICIES), default="cache_aware", help="default: %(default)s")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=_port, default=30000, help="0 takes a free one (default: %(default)s)")
    parser.add_argument("--prometheus-host", default="127.0.0.1", help="of /metrics (default: %(default)s)")
    parser.add_argument("--prometheus-port", type=_port, default=29000, help="of /metrics (default: %(default)s)")
    parser.add_argument(
        "--max-payload-size",
        type=_size,
        default=512 * 1024 * 1024,
        metavar="BYTES",
        help="largest request body (default: 512 MiB)",
    )
    parser.add_argument("--api-key", help="ask every client for `Authorization: Bearer KEY` (default: no key)")
    parser.add_argument(
        "--no-usage-injection",
        dest="usage_injection",
        action="store_false",
        help="do not ask engines for the usage of streams whose client did not (the client never sees it)",
    )
    parser.add_argument("--log-level", choices=LOG_LEVELS, default="info", help="default: %(default)s")
    args = parser.parse_args(argv)
    if args.api_key == "":
        parser.error("argument --api-key: the key is empty")
    try:
        args.worker_urls = normalize_worker_urls(args.worker_urls)
    except ValueError as error:
        parser.error(f"argument --worker-urls: {error}")
    return RouterConfig(**vars(args))


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


def _announcement(config: RouterConfig, port: int, metrics_port: int) -> str:
    return (
        f"warmroute {__version__}: http://{bracketed(config.host)}:{port}, policy {config.policy}, "
        f"{len(config.worker_urls)} workers; "
        f"metrics on http://{bracketed(config.prometheus_host)}:{metrics_port}/metrics"
    )


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise ArgumentTypeError(f"{text!r} is not a port (0 to 65535)")
    return int(text)


def _size(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f"{text!r} is not a number of bytes")
    return int(text)
