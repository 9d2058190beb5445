"""The flags, a group for each part of the configuration. Names and units are those of the known routers."""

from argparse import ArgumentParser

from ..config import AdmissionConfig, BreakerConfig, HealthConfig, RetryConfig, TimeoutConfig
from ..policies import POLICIES
from . import types
from .discovery import add_discovery

LOG_LEVELS = ("debug", "info", "warning", "error")
GOSSIP_PORT = 30001
# The environment is for whoever does not want a key in a list of processes.
GOSSIP_KEY = "WARMROUTE_GOSSIP_KEY"
API_KEY = "WARMROUTE_API_KEY"
ADMIN_API_KEY = "WARMROUTE_ADMIN_API_KEY"
WORKER_API_KEY = "WARMROUTE_WORKER_API_KEY"


def add_options(parser: ArgumentParser) -> None:
    _add_workers(parser)
    add_discovery(parser)
    _add_serving(parser)
    _add_health(parser)
    _add_timeouts(parser)
    _add_retries(parser)
    _add_admission(parser)
    _add_security(parser)
    _add_replicas(parser)


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
    group.add_argument(
        "--engine-stats-interval",
        type=types.seconds,
        default=10.0,
        metavar="SECONDS",
        help="between two looks at each engine's metrics (default: 10)",
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
