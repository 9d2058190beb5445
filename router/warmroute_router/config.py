"""The router's configuration: read once, at the edge, checked there, and passed on as one frozen object."""

from dataclasses import dataclass
from urllib.parse import urlsplit


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
    log_level: str


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
    parts = urlsplit(given if "://" in given else f"http://{given}")
    try:
        port = parts.port
    except ValueError as error:
        raise ValueError(f"worker {given!r}: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"worker {given!r}: the scheme must be http or https")
    if not parts.hostname or parts.query or parts.fragment or not parts.netloc.isascii():
        raise ValueError(f"worker {given!r}: expected a URL like http://host:port")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"worker {parts.hostname!r}: a URL with a user or a password is not supported")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    default = {"http": 80, "https": 443}[parts.scheme]
    netloc = host if port in (None, default) else f"{host}:{port}"
    return f"{parts.scheme}://{netloc}{parts.path.rstrip('/')}"
