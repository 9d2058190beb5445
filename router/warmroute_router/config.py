"""The router's configuration: read once, at the edge, checked there, and passed on as one frozen object."""

import re
from dataclasses import dataclass
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
    key: str


@dataclass(frozen=True, slots=True)
class RouterConfig:
    worker_urls: tuple[str, ...]
    """Normalised by `normalize_worker_urls`."""
    policy: str
    host: str
    port: int
    """0 takes a free one."""
    prometheus_host: str
    prometheus_port: int
    max_payload_size: int
    """Bytes of one request body."""
    api_key: str | None
    usage_injection: bool
    """Whether usage is asked for on behalf of clients that stream and did not ask."""
    log_level: str
    gossip: GossipConfig | None = None
    """None for a router that has no replicas."""
    state_file: Path | None = None


def normalize_worker_urls(urls: list[str]) -> tuple[str, ...]:
    """Absolute URLs without a trailing slash, `http` where no scheme is given.

    Raises ValueError on one that is not a URL of an HTTP server, and on one that comes twice.
    """
    normalized: list[str] = []
    for given in urls:
        url = _normalize(given)
        if url in normalized:
            raise ValueError(f"worker {given!r} is given twice")
        normalized.append(url)
    if not normalized:
        raise ValueError("no worker: give at least one URL")
    return tuple(normalized)


def _normalize(given: str) -> str:
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
