"""What is said at the start: why it cannot be, or where the router is now."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from . import __version__
from .config import RouterConfig, bracketed
from .serving.listen import url_of
from .serving.listeners import Listeners


class CannotStart(Exception):  # noqa: N818 - says it already
    """Something that people can change; the message is one line."""


@contextmanager
def starting() -> Iterator[None]:
    """Turns what ports, files and addresses say into CannotStart."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise CannotStart(str(error)) from error


def announcement(config: RouterConfig, listeners: Sequence[Listeners], workers: int, metrics_url: str) -> str:
    """One line. Its first word that begins with `http` is a URL of the router."""
    tls = config.tls is not None
    where = ", ".join(url_of(listener, tls=tls) for listener in listeners[0].public)
    processes = f", {config.processes} processes" if config.processes > 1 else ""
    parts = [
        f"warmroute {__version__}: {where}, policy {config.policy}, {workers} workers{processes}",
        f"metrics on {metrics_url}",
    ]
    if config.gossip is not None:
        ports = [each.gossip.getsockname()[1] for each in listeners if each.gossip is not None]
        parts.append("gossip on " + ", ".join(f"{bracketed(config.gossip.host)}:{port}" for port in ports))
    if listeners[0].admin is not None:
        parts.append(f"admin on {url_of(listeners[0].admin, tls=tls)}")
    return "; ".join(parts)
