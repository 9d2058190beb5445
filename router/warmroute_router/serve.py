"""`warmroute serve`: flags, configuration, sockets, announcement, serving, drain."""

import logging
import signal
import socket
import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence

import uvicorn
import uvloop
from prometheus_client import start_http_server

from . import __version__
from .app import RouterApp
from .cli import OneLineParser
from .config import RouterConfig, normalize_worker_urls
from .metrics import build_registry
from .policies import POLICIES

LOG_LEVELS = ("debug", "info", "warning", "error")
KEEP_ALIVE = 75
"""Seconds that a client's idle connection stays open: longer than the idle timeout of clients and load balancers."""
GRACE = 30
"""Seconds that streams have to end after SIGTERM."""


def main(argv: Sequence[str] | None = None) -> int:
    """The router: a reverse proxy in front of inference workers."""
    config = parse_config(argv)
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("httpx", "uvicorn.error"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    app = RouterApp(config)
    try:
        listener = _listen(config.host, config.port)
        metrics_server, metrics_thread = start_http_server(
            config.prometheus_port, config.prometheus_host, build_registry(app.routing, app.proxy)
        )
    except OSError as error:
        print(f"warmroute serve: {error}", file=sys.stderr)
        return 1
    _announce(config, listener.getsockname()[1], metrics_server.server_port)
    try:
        uvloop.run(_serve(app, listener))
    except KeyboardInterrupt:
        pass
    finally:
        metrics_server.shutdown()
        metrics_server.server_close()
        metrics_thread.join()
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


async def _serve(app: RouterApp, listener: socket.socket) -> None:
    # uvicorn drains on SIGTERM and raises it anew afterwards: let that end in exit code 0.
    signal.signal(signal.SIGTERM, lambda *_: None)
    await uvicorn.Server(server_config(app)).serve(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    """Raises OSError with a message that names the address."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        return listener
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from error


def _announce(config: RouterConfig, port: int, metrics_port: int) -> None:
    print(
        f"warmroute {__version__}: http://{config.host}:{port}, policy {config.policy}, "
        f"{len(config.worker_urls)} workers; metrics on http://{config.prometheus_host}:{metrics_port}/metrics",
        flush=True,
    )


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise ArgumentTypeError(f"{text!r} is not a port (0 to 65535)")
    return int(text)


def _size(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f"{text!r} is not a number of bytes")
    return int(text)
