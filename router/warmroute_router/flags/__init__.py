"""The flags of `warmroute serve`, checked where they are read."""

import os
from argparse import Namespace
from collections.abc import Sequence

from .. import __version__
from ..cli import OneLineParser
from ..config import (
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
from .discovery import discovery_config
from .foreign import add_foreign_flags
from .options import ADMIN_API_KEY, API_KEY, GOSSIP_KEY, WORKER_API_KEY, add_options


def parse_config(argv: Sequence[str] | None) -> RouterConfig:
    """Exits with 2, and one line, on a flag that cannot be."""
    parser = OneLineParser(
        prog="warmroute serve", description="The router: a reverse proxy in front of inference workers."
    )
    parser.add_argument("--version", action="version", version=f"warmroute {__version__}")
    add_options(parser)
    add_foreign_flags(parser)
    args = parser.parse_args(argv)
    try:
        return _config(args)
    except ValueError as error:
        parser.error(str(error))


def _config(args: Namespace) -> RouterConfig:
    """Raises ValueError on flags that do not go together."""
    _check_workers(args)
    return RouterConfig(
        worker_urls=tuple(args.worker_urls),
        worker_dns=tuple(args.worker_dns),
        workers_file=args.workers_file,
        kubernetes=discovery_config(args),
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
        engine_stats_interval=args.engine_stats_interval,
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
    found = args.worker_urls or args.worker_dns or args.workers_file or args.service_discovery
    if not (found or managed or os.environ.get(ADMIN_API_KEY)):
        raise ValueError(
            "no workers: give --worker-urls, --worker-dns, --workers-file or --service-discovery; or --admin-port or "
            "--admin-api-key, to add them while it runs"
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
    if args.peers_dns and args.processes > 1:
        raise ValueError("--peers-dns finds one router per address: with --processes, give --peers with all ports")
    dns = args.peers_dns and (args.peers_dns[0], args.peers_dns[1] or args.gossip_port)
    peers = tuple(dict.fromkeys(args.peers or ()))
    return GossipConfig(host=args.gossip_host, port=args.gossip_port, peers=peers, dns=dns, key=key)
