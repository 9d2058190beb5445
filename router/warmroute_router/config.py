"""The router's configuration: read once, at the edge, checked there, and passed on as one frozen object."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

_CREDENTIALS = re.compile(r"^(\w+://|)[^/]*@")
_URL_CHARACTERS = re.compile(r"[!-\[\]-~]+")
"""ASCII without spaces, control characters and backslashes."""


Address = tuple[str, int]
"""Host and port."""


@dataclass(frozen=True, slots=True)
class GossipConfig:
    """How this router talks with its replicas."""

    host: str
    """To listen on."""
    port: int
    """0 takes a free one."""
    peers: tuple[Address, ...]
    dns: Address | None
    """A name that stands for all of them, instead of `peers`."""
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker, as a source of workers knows it."""

    url: str
    """Normalised by `normalize_worker_url`; what it is known by."""
    api_key: str | None = field(default=None, repr=False)
    """Sent to it instead of the client's `Authorization`, and with every request of the router's own."""
    server_name: str | None = None
    """The name behind `url`, where that has an address that the name resolved to: for TLS and the `Host` header."""
    identity: str | None = None
    """What tells it from another one at the same URL, as the uid of its pod: another identity is another cache."""
    ready: bool = True
    """Whether its source finds it fit to serve. The router's own probes have to find so as well."""
    models: tuple[str, ...] | None = None
    """The models that it serves; None where it has to be asked."""

    @property
    def host(self) -> str:
        """For the `Host` header."""
        parts = urlsplit(self.url)
        if self.server_name is None:
            return parts.netloc
        return bracketed(self.server_name) + (f":{parts.port}" if parts.port else "")


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """Of the probes. Seconds, and probes in a row."""

    endpoint: str = "/health"
    interval: float = 5.0
    timeout: float = 5.0
    failure_threshold: int = 3
    success_threshold: int = 1


@dataclass(frozen=True, slots=True)
class TimeoutConfig:
    """Of one exchange with a worker, in seconds; None for no limit."""

    connect: float = 5.0
    first_byte: float | None = None
    """From the request being sent to the first byte of the answer's body."""
    idle: float | None = None
    """Between two pieces of the answer."""
    total: float | None = None
    """From the request's last byte to the answer's, with all waiting and all tries."""


@dataclass(frozen=True, slots=True)
class RetryConfig:
    max_retries: int = 3
    """After the first try; 0 for none. Each goes to a worker that has not been tried."""
    initial_backoff: float = 0.05
    """Seconds before the first retry of a request that a worker has declined; of a broken connection, none."""
    max_backoff: float = 5.0
    backoff_multiplier: float = 2.0
    jitter: float = 0.2
    """Share by which a pause is longer or shorter at random."""
    budget: float = 0.2
    """Retries of declined requests, as a share of all requests."""


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    """Of the circuit breaker that each worker has."""

    failure_threshold: int = 5
    """Failures in a row that open it."""
    success_threshold: int = 2
    """Successes in a row that close it again; as many requests at a time are let through for that."""
    timeout: float = 10.0
    """Seconds that it stays open."""
    window: float = 120.0
    """Seconds after which a failure is forgotten."""


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    max_concurrent_requests: int | None = None
    """In flight at a time, from the body's end to the last byte of the answer; None for no limit."""
    max_per_worker: int | None = None
    queue_size: int = 100
    """Requests that may wait for that."""
    queue_timeout: float = 60.0
    """Seconds that one may wait."""
    rate: float | None = None
    """Requests per second, in the long run; a burst may have as many as come in one second."""
    fair_by: str | None = None
    """`api-key`, or the name of a header, lower case: who waits takes turns by it. None: first come, first served."""


@dataclass(frozen=True, slots=True)
class KeyConfig:
    """Keys that clients may show: those given, and those in a file, one a line, which may change."""

    keys: tuple[str, ...] = field(default=(), repr=False)
    file: Path | None = None

    def __bool__(self) -> bool:
        return bool(self.keys or self.file)


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Of one side of a connection: its own certificate and key, and whom it believes."""

    cert: Path | None = None
    key: Path | None = None
    ca: tuple[Path, ...] = ()
    """Beside these nobody is believed; empty for the system's."""


@dataclass(frozen=True, slots=True)
class AdminConfig:
    """Who may change the fleet, where, and to what."""

    keys: KeyConfig = KeyConfig()
    host: str = "127.0.0.1"
    port: int | None = None
    """A port for nothing else; None for the public one. 0 takes a free one."""
    allowed_workers: tuple[str, ...] = ()
    """Patterns of what may be added (`discovery.allow_list`); empty for anything."""


@dataclass(frozen=True, slots=True)
class KubernetesConfig:
    """Which pods are workers, and whom to ask for them."""

    selector: str
    """As the API takes it: `key=value`, with commas in between."""
    port: int
    """Of each pod."""
    namespace: str | None = None
    """None for the one that the router's own pod is in."""
    model_label: str | None = None
    """The label or annotation that says which models a pod serves; None: the workers themselves are asked."""
    api: str | None = None
    """URL of an API that asks for no token, as `kubectl proxy` is; None for that of the cluster around this pod."""


@dataclass(frozen=True, slots=True)
class RouterConfig:
    worker_urls: tuple[str, ...]
    """Normalised by `normalize_worker_url`. May be empty: workers can come later."""
    policy: str
    hosts: tuple[str, ...]
    """Names or addresses to listen on; may be empty where there is a Unix socket."""
    port: int
    """0 takes a free one."""
    prometheus_host: str
    prometheus_port: int
    max_payload_size: int
    """Bytes of one request body."""
    usage_injection: bool
    """Whether usage is asked for on behalf of clients that stream and did not ask."""
    log_level: str
    unix_socket: Path | None = None
    worker_dns: tuple[str, ...] = ()
    """URLs like those of workers, each for as many workers as its name has addresses."""
    workers_file: Path | None = None
    kubernetes: KubernetesConfig | None = None
    """None for a router that looks for no pods."""
    worker_api_key: str | None = field(default=None, repr=False)
    """For every worker that has no key of its own."""
    api_keys: KeyConfig = KeyConfig()
    admin: AdminConfig = AdminConfig()
    tls: TlsConfig | None = None
    """For clients; None for plain HTTP."""
    worker_tls: TlsConfig = TlsConfig()
    health: HealthConfig = HealthConfig()
    engine_stats_interval: float = 10.0
    """Seconds between two looks at each engine's own metrics."""
    timeouts: TimeoutConfig = TimeoutConfig()
    retries: RetryConfig = RetryConfig()
    breaker: BreakerConfig | None = BreakerConfig()
    """None for no circuit breakers."""
    admission: AdmissionConfig = AdmissionConfig()
    shutdown_delay: float = 0.0
    """Seconds after SIGTERM in which the router is not ready, but takes requests."""
    shutdown_grace: float = 180.0
    """Seconds that streams then have to end."""
    processes: int = 1
    gossip: GossipConfig | None = None
    """None for a router that has no replicas."""
    state_file: Path | None = None


def normalize_worker_url(given: str) -> str:
    """An absolute URL without a trailing slash, `http` where no scheme is given.

    Raises ValueError on what is not the URL of an HTTP server.
    """
    shown = _CREDENTIALS.sub(r"\1", given)  # messages end up in logs
    if shown != given:
        raise ValueError(f"worker {shown!r}: a URL with a user or a password is not supported")
    if not _URL_CHARACTERS.fullmatch(given):
        raise ValueError(f"worker {shown!r}: expected a URL like http://host:port")
    try:
        parts = urlsplit(given if "://" in given else f"http://{given}")
        port = parts.port
    except ValueError as error:
        raise ValueError(f"worker {shown!r}: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"worker {shown!r}: the scheme must be http or https")
    if not parts.hostname or port == 0 or parts.query or parts.fragment:
        raise ValueError(f"worker {shown!r}: expected a URL like http://host:port")
    default = {"http": 80, "https": 443}[parts.scheme]
    netloc = bracketed(parts.hostname) + ("" if port in (None, default) else f":{port}")
    return f"{parts.scheme}://{netloc}{parts.path.rstrip('/')}"


def parse_address(given: str) -> Address:
    """`HOST:PORT` or `[IPV6]:PORT`. Raises ValueError."""
    host, _, port = given.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{given!r}: an IPv6 address goes into brackets, as [::1]:30001")
    if (
        not host
        or not (port.isascii() and port.isdecimal())
        or not 0 < int(port) < 65536
        or not _URL_CHARACTERS.fullmatch(host)
    ):
        raise ValueError(f"{given!r} is not HOST:PORT")
    return host, int(port)


def bracketed(host: str) -> str:
    """A host as URLs write it: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host
