"""The flags of `warmroute serve`, checked where they are read.

Names and units are those of the routers that people come from. A group of flags for each part of the configuration;
each has its defaults from there.
"""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from . import __version__
from . import flag_types as types
from .cli import OneLineParser
from .config import (
    AdminConfig,
    AdmissionConfig,
    BreakerConfig,
    GossipConfig,
    HealthConfig,
    KeyConfig,
    RetryConfig,
    RouterConfig,
    TimeoutConfig,
    TlsConfig,
)
from .foreign_flags import add_foreign_flags
from .policies import POLICIES

LOG_LEVELS = ("debug", "info", "warning", "error")
GOSSIP_PORT = 30001
# The environment is for whoever does not want a key in a list of processes.
GOSSIP_KEY = "WARMROUTE_GOSSIP_KEY"
API_KEY = "WARMROUTE_API_KEY"
ADMIN_API_KEY = "WARMROUTE_ADMIN_API_KEY"
WORKER_API_KEY = "WARMROUTE_WORKER_API_KEY"


def parse_config(argv: Sequence[str] | None) -> RouterConfig:
    """Exits with 2, and one line, on a flag that cannot be."""
    parser = OneLineParser(
        prog="warmroute serve", description="The router: a reverse proxy in front of inference workers."
    )
    parser.add_argument("--version", action="version", version=f"warmroute {__version__}")
    _add_workers(parser)
    _add_serving(parser)
    _add_health(parser)
    _add_timeouts(parser)
    _add_retries(parser)
    _add_admission(parser)
    _add_security(parser)
    _add_replicas(parser)
    add_foreign_flags(parser)
    args = parser.parse_args(argv)
    try:
        return _config(parser, args)
    except ValueError as error:
        parser.error(str(error))


def _add_workers(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("workers")
    group.add_argument(
        "--worker-urls", nargs="+", default=[], type=types.worker_url, metavar="URL", help="the inference workers"
    )
    group.add_argument(
        "--worker-dns",
        nargs="+",
        default=[],
        type=types.worker_url,
        metavar="URL",
        help="each address that the URL's name resolves to is a worker; looked up again all the time",
    )
    group.add_argument(
        "--workers-file",
        type=types.readable_file,
        metavar="FILE",
        help="a JSON list of them, read again when it changes",
    )
    group.add_argument(
        "--worker-api-key",
        type=types.secret,
        metavar="KEY",
        help=f"sent to workers instead of the client's own (or in the environment, as {WORKER_API_KEY})",
    )
    group.add_argument("--policy", choices=sorted(POLICIES), default="cache_aware", help="default: %(default)s")
    group.add_argument(
        "--no-usage-injection",
        dest="usage_injection",
        action="store_false",
        help="do not ask engines for the usage of streams whose client did not (the client never sees it)",
    )


def _add_serving(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("serving")
    group.add_argument(
        "--host", dest="hosts", nargs="+", metavar="HOST", help="addresses to listen on (default: 127.0.0.1)"
    )
    group.add_argument("--port", type=types.port, default=30000, help="0 takes a free one (default: %(default)s)")
    group.add_argument(
        "--unix-socket", type=types.socket_path, metavar="PATH", help="to listen on, as well or instead"
    )
    group.add_argument("--prometheus-host", default="127.0.0.1", help="of /metrics (default: %(default)s)")
    group.add_argument("--prometheus-port", type=types.port, default=29000, help="of /metrics (default: %(default)s)")
    group.add_argument(
        "--max-payload-size",
        type=types.size,
        default=512 * 1024 * 1024,
        metavar="BYTES",
        help="largest request body (default: 512 MiB)",
    )
    group.add_argument(
        "--processes", type=types.count, default=1, metavar="N", help="router processes on one port (default: 1)"
    )
    group.add_argument(
        "--shutdown-delay-secs",
        dest="shutdown_delay",
        type=types.number,
        default=0.0,
        help="after SIGTERM, not ready but still serving, so that load balancers see it (default: 0)",
    )
    group.add_argument(
        "--shutdown-grace-period-secs",
        dest="shutdown_grace",
        type=types.number,
        default=180.0,
        help="that streams have to end then (default: 180)",
    )
    group.add_argument("--log-level", choices=LOG_LEVELS, default="info", help="default: %(default)s")


def _add_health(parser: ArgumentParser) -> None:
    group, default = parser.add_argument_group("health of workers"), HealthConfig()
    group.add_argument(
        "--health-check-endpoint", type=types.probe_path, default=default.endpoint, help="default: %(default)s"
    )
    group.add_argument(
        "--health-check-interval-secs", type=types.seconds, default=default.interval, help="default: %(default)s"
    )
    group.add_argument(
        "--health-check-timeout-secs", type=types.seconds, default=default.timeout, help="default: %(default)s"
    )
    group.add_argument(
        "--health-failure-threshold",
        type=types.count,
        default=default.failure_threshold,
        help="failed probes in a row that take a worker out (default: %(default)s)",
    )
    group.add_argument(
        "--health-success-threshold",
        type=types.count,
        default=default.success_threshold,
        help="good ones that bring it back (default: %(default)s)",
    )
    breaker = BreakerConfig()
    group.add_argument(
        "--cb-failure-threshold",
        type=types.count,
        default=breaker.failure_threshold,
        help="broken connections and 5xx in a row that open a worker's circuit breaker (default: %(default)s)",
    )
    group.add_argument(
        "--cb-success-threshold",
        type=types.count,
        default=breaker.success_threshold,
        help="successes that close it (default: %(default)s)",
    )
    group.add_argument(
        "--cb-timeout-duration-secs",
        type=types.seconds,
        default=breaker.timeout,
        help="that it stays open (default: %(default)s)",
    )
    group.add_argument(
        "--cb-window-duration-secs",
        type=types.seconds,
        default=breaker.window,
        help="after which a failure is forgotten (default: %(default)s)",
    )
    group.add_argument("--disable-circuit-breaker", action="store_true")


def _add_timeouts(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("timeouts, in seconds; 0 for none")
    group.add_argument(
        "--connect-timeout-secs", type=types.seconds, default=TimeoutConfig().connect, help="default: %(default)s"
    )
    group.add_argument(
        "--first-byte-timeout-secs",
        type=types.timeout,
        help="from sending a request to the first byte of the answer's body (default: 0)",
    )
    group.add_argument("--idle-timeout-secs", type=types.timeout, help="between two pieces of an answer (default: 0)")
    group.add_argument(
        "--request-timeout-secs", type=types.timeout, help="for all of it, retries included (default: 0)"
    )


def _add_retries(parser: ArgumentParser) -> None:
    group, default = parser.add_argument_group("retries on another worker, before the first byte"), RetryConfig()
    group.add_argument(
        "--retry-max-retries", type=types.whole, default=default.max_retries, help="default: %(default)s"
    )
    group.add_argument(
        "--retry-initial-backoff-ms",
        type=types.milliseconds,
        default=default.initial_backoff,
        help=f"default: {1000 * default.initial_backoff:g}",
    )
    group.add_argument(
        "--retry-max-backoff-ms",
        type=types.milliseconds,
        default=default.max_backoff,
        help=f"default: {1000 * default.max_backoff:g}",
    )
    group.add_argument(
        "--retry-backoff-multiplier",
        type=types.number,
        default=default.backoff_multiplier,
        help="default: %(default)s",
    )
    group.add_argument(
        "--retry-jitter-factor", type=types.number, default=default.jitter, help="default: %(default)s"
    )
    group.add_argument(
        "--retry-budget",
        type=types.number,
        default=default.budget,
        help="share of all requests that may be retried after a 429, 502, 503, 504 or timeout (default: %(default)s)",
    )
    group.add_argument("--disable-retries", action="store_true")


def _add_admission(parser: ArgumentParser) -> None:
    group, default = parser.add_argument_group("admission"), AdmissionConfig()
    group.add_argument(
        "--max-concurrent-requests", type=types.limit, metavar="N", help="in flight at a time; -1 for any (default)"
    )
    group.add_argument(
        "--max-concurrent-requests-per-worker", type=types.limit, metavar="N", help="the same for each (default: any)"
    )
    group.add_argument(
        "--queue-size", type=types.whole, default=default.queue_size, help="that wait for it (default: %(default)s)"
    )
    group.add_argument(
        "--queue-timeout-secs", type=types.seconds, default=default.queue_timeout, help="default: %(default)s"
    )
    group.add_argument(
        "--rate-limit-tokens-per-second",
        type=types.seconds,
        metavar="N",
        help="requests started per second: one takes one token, and the bucket holds N (default: any)",
    )
    group.add_argument(
        "--fair-by",
        type=types.fair_by,
        metavar="api-key|header:NAME",
        help="let those who wait take turns by it (default: first come, first served)",
    )


def _add_security(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("security")
    group.add_argument(
        "--api-key",
        nargs="+",
        action="extend",
        type=types.secret,
        metavar="KEY",
        help=f"that clients must show, any of these (or in the environment, as {API_KEY}; default: none)",
    )
    group.add_argument(
        "--api-key-file",
        type=types.readable_file,
        metavar="FILE",
        help="more of them, one a line; read when it changes",
    )
    group.add_argument(
        "--admin-api-key",
        nargs="+",
        action="extend",
        type=types.secret,
        metavar="KEY",
        help=f"that whoever changes the fleet must show (or in the environment, as {ADMIN_API_KEY})",
    )
    group.add_argument("--admin-api-key-file", type=types.readable_file, metavar="FILE", help="more of them")
    group.add_argument("--admin-host", default="127.0.0.1", help="of --admin-port (default: %(default)s)")
    group.add_argument(
        "--admin-port", type=types.port, metavar="PORT", help="for /workers alone (default: on the public port)"
    )
    group.add_argument(
        "--allowed-workers",
        nargs="+",
        default=[],
        metavar="PATTERN",
        help="what may be added there: [SCHEME://]HOST, with * for any part of a name, or a network (default: any)",
    )
    group.add_argument("--tls-cert-path", type=types.readable_file, metavar="FILE", help="certificate for clients")
    group.add_argument("--tls-key-path", type=types.readable_file, metavar="FILE", help="its key")
    group.add_argument(
        "--ca-cert-paths", nargs="+", default=[], type=types.readable_file, metavar="FILE", help="to know workers by"
    )
    group.add_argument("--client-cert-path", type=types.readable_file, metavar="FILE", help="certificate for workers")
    group.add_argument("--client-key-path", type=types.readable_file, metavar="FILE", help="its key")


def _add_replicas(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("several routers in front of one fleet, and restarts")
    who = group.add_mutually_exclusive_group()
    who.add_argument("--peers", nargs="+", type=types.address, metavar="HOST:PORT", help="gossip ports of the others")
    who.add_argument(
        "--peers-dns",
        type=types.dns_name,
        metavar="NAME[:PORT]",
        help="a name that resolves to all of them, as that of a headless service",
    )
    group.add_argument("--gossip-host", default="127.0.0.1", help="address for the others (default: %(default)s)")
    group.add_argument(
        "--gossip-port", type=types.port, default=GOSSIP_PORT, help="port for the others (default: %(default)s)"
    )
    group.add_argument(
        "--gossip-key",
        type=types.secret,
        help=f"secret that all of them share (or in the environment, as {GOSSIP_KEY})",
    )
    group.add_argument(
        "--state-file",
        type=types.new_file,
        metavar="FILE",
        help="remember there what the caches hold, across restarts",
    )


def _config(parser: ArgumentParser, args: Namespace) -> RouterConfig:
    """Raises ValueError on flags that do not go together."""
    _check_workers(args)
    return RouterConfig(
        worker_urls=tuple(args.worker_urls),
        worker_dns=tuple(args.worker_dns),
        workers_file=args.workers_file,
        worker_api_key=args.worker_api_key or os.environ.get(WORKER_API_KEY) or None,
        policy=args.policy,
        hosts=tuple(args.hosts or (() if args.unix_socket else ("127.0.0.1",))),
        port=args.port,
        unix_socket=args.unix_socket,
        prometheus_host=args.prometheus_host,
        prometheus_port=args.prometheus_port,
        max_payload_size=args.max_payload_size,
        usage_injection=args.usage_injection,
        log_level=args.log_level,
        api_keys=_keys(args.api_key, API_KEY, args.api_key_file),
        admin=AdminConfig(
            keys=_keys(args.admin_api_key, ADMIN_API_KEY, args.admin_api_key_file),
            host=args.admin_host,
            port=args.admin_port,
            allowed_workers=tuple(args.allowed_workers),
        ),
        tls=_pair("--tls-cert-path", "--tls-key-path", args.tls_cert_path, args.tls_key_path),
        worker_tls=_worker_tls(args),
        health=HealthConfig(
            endpoint=args.health_check_endpoint,
            interval=args.health_check_interval_secs,
            timeout=args.health_check_timeout_secs,
            failure_threshold=args.health_failure_threshold,
            success_threshold=args.health_success_threshold,
        ),
        timeouts=TimeoutConfig(
            connect=args.connect_timeout_secs,
            first_byte=args.first_byte_timeout_secs,
            idle=args.idle_timeout_secs,
            total=args.request_timeout_secs,
        ),
        retries=RetryConfig(
            max_retries=0 if args.disable_retries else args.retry_max_retries,
            initial_backoff=args.retry_initial_backoff_ms,
            max_backoff=args.retry_max_backoff_ms,
            backoff_multiplier=args.retry_backoff_multiplier,
            jitter=args.retry_jitter_factor,
            budget=args.retry_budget,
        ),
        breaker=None
        if args.disable_circuit_breaker
        else BreakerConfig(
            failure_threshold=args.cb_failure_threshold,
            success_threshold=args.cb_success_threshold,
            timeout=args.cb_timeout_duration_secs,
            window=args.cb_window_duration_secs,
        ),
        admission=AdmissionConfig(
            max_concurrent_requests=args.max_concurrent_requests,
            max_per_worker=args.max_concurrent_requests_per_worker,
            queue_size=args.queue_size,
            queue_timeout=args.queue_timeout_secs,
            rate=args.rate_limit_tokens_per_second,
            fair_by=args.fair_by,
        ),
        shutdown_delay=args.shutdown_delay,
        shutdown_grace=args.shutdown_grace,
        processes=args.processes,
        gossip=_gossip(args),
        state_file=args.state_file,
    )


def _check_workers(args: Namespace) -> None:
    for flag, urls in (("--worker-urls", args.worker_urls), ("--worker-dns", args.worker_dns)):
        twice = next((url for url in urls if urls.count(url) > 1), None)
        if twice:
            raise ValueError(f"argument {flag}: {twice} is given twice")
    managed = args.admin_api_key or args.admin_api_key_file or args.admin_port is not None
    if not (args.worker_urls or args.worker_dns or args.workers_file or managed or os.environ.get(ADMIN_API_KEY)):
        raise ValueError(
            "no workers: give --worker-urls, --worker-dns or --workers-file; or --admin-port or --admin-api-key, "
            "to add them while it runs"
        )


def _keys(given: list[str] | None, variable: str, file: object) -> KeyConfig:
    """From flags, from a file, and from the environment, where there may be several with spaces between them."""
    from_environment = os.environ.get(variable, "").split()
    return KeyConfig(keys=tuple(dict.fromkeys([*(given or []), *from_environment])), file=file)  # type: ignore[arg-type]


def _pair(cert_flag: str, key_flag: str, cert: object, key: object) -> TlsConfig | None:
    if (cert is None) != (key is None):
        raise ValueError(f"{cert_flag} and {key_flag} go together")
    return None if cert is None else TlsConfig(cert=cert, key=key)  # type: ignore[arg-type]


def _worker_tls(args: Namespace) -> TlsConfig:
    own = _pair("--client-cert-path", "--client-key-path", args.client_cert_path, args.client_key_path)
    cert, key = (own.cert, own.key) if own else (None, None)
    return TlsConfig(cert=cert, key=key, ca=tuple(args.ca_cert_paths))


def _gossip(args: Namespace) -> GossipConfig | None:
    key = args.gossip_key or os.environ.get(GOSSIP_KEY)
    if args.peers is None and args.peers_dns is None:
        if args.gossip_key:
            raise ValueError("argument --gossip-key: whom to talk with is missing: give --peers or --peers-dns")
        return None
    if not key:
        raise ValueError(f"routers that talk share a secret: give --gossip-key, or set {GOSSIP_KEY}")
    dns = args.peers_dns and (args.peers_dns[0], args.peers_dns[1] or args.gossip_port)
    peers = tuple(dict.fromkeys(args.peers or ()))
    return GossipConfig(host=args.gossip_host, port=args.gossip_port, peers=peers, dns=dns, key=key)
