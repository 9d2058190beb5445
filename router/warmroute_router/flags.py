"""The flags of `warmroute serve`, checked where they are read."""

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path

from . import __version__
from .cli import OneLineParser
from .config import Address, GossipConfig, RouterConfig, normalize_worker_urls, parse_address
from .policies import POLICIES

LOG_LEVELS = ("debug", "info", "warning", "error")
GOSSIP_PORT = 30001
GOSSIP_KEY = "WARMROUTE_GOSSIP_KEY"
"""The environment variable, for whoever does not want the key in a list of processes."""


def parse_config(argv: Sequence[str] | None) -> RouterConfig:
    """Exits with 2, and one line, on a flag that cannot be."""
    parser = OneLineParser(
        prog="warmroute serve", description="The router: a reverse proxy in front of inference workers."
    )
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
    _add_replica_options(parser)
    args = parser.parse_args(argv)
    if args.api_key == "":
        parser.error("argument --api-key: the key is empty")
    try:
        args.worker_urls = normalize_worker_urls(args.worker_urls)
    except ValueError as error:
        parser.error(f"argument --worker-urls: {error}")
    args.gossip = _gossip(parser, args)
    return RouterConfig(**vars(args))


def _add_replica_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("several routers in front of one fleet, and restarts")
    who = group.add_mutually_exclusive_group()
    who.add_argument("--peers", nargs="+", type=_address, metavar="HOST:PORT", help="gossip ports of the others")
    who.add_argument(
        "--peers-dns",
        type=_name,
        metavar="NAME[:PORT]",
        help="a name that resolves to all of them, as that of a headless service",
    )
    group.add_argument("--gossip-host", default="127.0.0.1", help="address for the others (default: %(default)s)")
    group.add_argument(
        "--gossip-port", type=_port, default=GOSSIP_PORT, help="port for the others (default: %(default)s)"
    )
    group.add_argument("--gossip-key", help=f"secret that all of them share (or in the environment, as {GOSSIP_KEY})")
    group.add_argument(
        "--state-file", type=_file, metavar="FILE", help="remember there what the caches hold, across restarts"
    )


def _gossip(parser: ArgumentParser, args: Namespace) -> GossipConfig | None:
    """Takes its flags out of `args`."""
    given = vars(args)
    peers, dns, host, port, key = (
        given.pop(name) for name in ("peers", "peers_dns", "gossip_host", "gossip_port", "gossip_key")
    )
    if key == "":
        parser.error("argument --gossip-key: the key is empty")
    if peers is None and dns is None:
        if key:
            parser.error("argument --gossip-key: whom to talk with is missing: give --peers or --peers-dns")
        return None
    key = key or os.environ.get(GOSSIP_KEY)
    if not key:
        parser.error(f"routers that talk share a secret: give --gossip-key, or set {GOSSIP_KEY}")
    name = (dns[0], dns[1] or port) if dns is not None else None
    return GossipConfig(host=host, port=port, peers=tuple(dict.fromkeys(peers or ())), dns=name, key=key)


def _address(text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def _name(text: str) -> Address:
    """Port 0 where none is given."""
    if ":" in text:
        return _address(text)
    if not text or not text.isascii() or any(not 0 < len(label) < 64 for label in text.rstrip(".").split(".")):
        raise ArgumentTypeError(f"{text!r} is no name of a host")
    return text, 0


def _file(text: str) -> Path:
    path = Path(text)
    if not path.parent.is_dir() or (path.exists() and not path.is_file()):
        raise ArgumentTypeError(f"cannot be written: {text}")
    return path


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise ArgumentTypeError(f"{text!r} is not a port (0 to 65535)")
    return int(text)


def _size(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f"{text!r} is not a number of bytes")
    return int(text)
