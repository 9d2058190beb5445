"""Listening sockets: TCP on every address that hosts have, for one process or several that share the port."""

import errno
import logging
import socket
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from ..config import bracketed

logger = logging.getLogger(__name__)

BACKLOG = 2048
"""Connections that wait to be accepted."""
SOMAXCONN = Path("/proc/sys/net/core/somaxconn")
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""What is wrong with an address of a protocol that this machine does not speak."""
_ATTEMPTS = 20
"""To find a port that is free on every address."""


class _Address(NamedTuple):
    family: socket.AddressFamily
    address: str
    rest: tuple[int, ...]
    """What follows the port: flow and scope of IPv6."""


_Hosts = dict[str, list[_Address]]


def listen(hosts: Sequence[str], port: int, processes: int = 1) -> list[list[socket.socket]]:
    """For each process a listener on every address, all with the same port; 0 takes one that is free.

    Several processes share it by SO_REUSEPORT: the kernel spreads connections over their listeners. Raises OSError
    with a message that names the address.
    """
    resolved = _resolved(hosts, port)
    for attempt in range(_ATTEMPTS):
        try:
            return _listen(resolved, port, processes)
        except OSError as error:
            if port or error.errno != errno.EADDRINUSE or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt raises")


def listen_here(host: str, port: int) -> socket.socket:
    """On one address of a host. Raises OSError as `listen` does."""
    address = _resolved([host], port)[host][0]
    with _naming_host(host, port):
        return _bound(address, port, share=False, only_ipv6=False)


def url_of(listener: socket.socket, *, tls: bool = False) -> str:
    """As people would write it down: `http://127.0.0.1:30000`, `unix:/run/warmroute`."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    return f"{'https' if tls else 'http'}://{bracketed(name[0])}:{name[1]}"


def check_backlog() -> None:
    """The kernel cuts it without a word."""
    try:
        allowed = int(SOMAXCONN.read_text())
    except (OSError, ValueError):
        return
    if allowed < BACKLOG:
        logger.warning(
            "no more than %d connections can wait to be accepted: a burst may be refused; "
            "`sysctl net.core.somaxconn=%d` lets more wait",
            allowed,
            BACKLOG,
        )


def _resolved(hosts: Sequence[str], port: int) -> _Hosts:
    """Each address once."""
    known: set[_Address] = set()
    resolved: _Hosts = {}
    for host in dict.fromkeys(hosts):
        with _naming_host(host, port):
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        addresses = [_Address(family, str(name[0]), tuple(map(int, name[2:]))) for family, _, _, _, name in found]
        resolved[host] = [address for address in dict.fromkeys(addresses) if address not in known]
        known.update(addresses)
    return resolved


def _listen(hosts: _Hosts, port: int, processes: int) -> list[list[socket.socket]]:
    addresses = [address for each in hosts.values() for address in each]
    # Else the wildcard of IPv6 takes IPv4 too, and leaves nothing for an address of that.
    only_ipv6 = any(address.family == socket.AF_INET for address in addresses)
    shares: list[list[socket.socket]] = [[] for _ in range(processes)]
    with ExitStack() as undo:
        for host in hosts:
            missing: OSError | None = None
            for address in hosts[host]:
                try:
                    with _naming_host(host, port):
                        listeners = _bound_for(processes, address, port, only_ipv6)
                except OSError as error:
                    if error.errno not in _NOT_HERE or len(hosts[host]) == 1:
                        raise
                    missing = error
                    continue
                for listener, share in zip(listeners, shares, strict=True):
                    share.append(undo.enter_context(listener))
                port = listeners[0].getsockname()[1]
            if missing is not None and not shares[0]:
                raise missing
        undo.pop_all()
    return shares


def _bound_for(processes: int, address: _Address, port: int, only_ipv6: bool) -> list[socket.socket]:
    if processes == 1:
        return [_bound(address, port, share=False, only_ipv6=only_ipv6)]
    # A socket that shares its port would get along with a stranger's that does so too. One that does not finds it.
    with _bound(address, port, share=False, only_ipv6=only_ipv6, backlog=None) as probe:
        port = probe.getsockname()[1]
    with ExitStack() as undo:
        listeners = [
            undo.enter_context(_bound(address, port, share=True, only_ipv6=only_ipv6)) for _ in range(processes)
        ]
        undo.pop_all()
    return listeners


def _bound(
    address: _Address, port: int, *, share: bool, only_ipv6: bool, backlog: int | None = BACKLOG
) -> socket.socket:
    with ExitStack() as undo:
        listener = undo.enter_context(socket.socket(address.family, socket.SOCK_STREAM))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if share:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if address.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_ipv6)
        listener.bind((address.address, port, *address.rest))
        if backlog is not None:
            listener.listen(backlog)
        undo.pop_all()
    return listener


def _naming_host(host: str, port: int) -> AbstractContextManager[None]:
    return naming(f"{bracketed(host)}:{port}")


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Let an OSError say where the router cannot listen."""
    try:
        yield
    except (OSError, UnicodeError) as error:
        named = OSError(f"cannot listen on {where}: {getattr(error, 'strerror', None) or error}")
        named.errno = getattr(error, "errno", None)
        raise named from error
