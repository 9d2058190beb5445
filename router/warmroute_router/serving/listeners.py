"""All that one router process listens on, opened by the process that starts first."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from ..config import RouterConfig
from .listen import listen, listen_here
from .unix_socket import listening_at

_LOOPBACK = "127.0.0.1"

Numbers = tuple[tuple[int, ...], int | None, int | None]
"""File descriptors of `Listeners`, in its order."""


class Listeners(NamedTuple):
    public: tuple[socket.socket, ...]
    admin: socket.socket | None = None
    gossip: socket.socket | None = None

    @property
    def all(self) -> tuple[socket.socket, ...]:
        return tuple(listener for listener in (*self.public, self.admin, self.gossip) if listener is not None)

    @property
    def numbers(self) -> Numbers:
        """Their file descriptors, for another process."""
        return (
            tuple(listener.fileno() for listener in self.public),
            None if self.admin is None else self.admin.fileno(),
            None if self.gossip is None else self.gossip.fileno(),
        )

    @classmethod
    def of(cls, numbers: Numbers) -> "Listeners":
        """In the process that got these file descriptors."""
        public, admin, gossip = numbers
        return cls(
            tuple(socket.socket(fileno=number) for number in public),
            None if admin is None else socket.socket(fileno=admin),
            None if gossip is None else socket.socket(fileno=gossip),
        )


@contextmanager
def opened(config: RouterConfig) -> Iterator[list[Listeners]]:
    """For each process of the router; the admin port is the first one's. Raises OSError that names the address.

    A Unix socket cannot be shared by the kernel: all processes accept from the same one.
    """
    with ExitStack() as stack:
        shares = listen(config.hosts, config.port, config.processes)
        for share in shares:
            for listener in share:
                stack.enter_context(listener)
        if config.unix_socket is not None:
            unix = stack.enter_context(listening_at(config.unix_socket))
            for share in shares:
                share.append(unix)
        admin = None
        if config.admin.port is not None:
            admin = stack.enter_context(listen_here(config.admin.host, config.admin.port))
        gossip = [_gossip(config, number) for number in range(config.processes)]
        for each in gossip:
            if each is not None:
                stack.enter_context(each)
        yield [
            Listeners(tuple(share), admin if number == 0 else None, gossip[number])
            for number, share in enumerate(shares)
        ]


def _gossip(config: RouterConfig, number: int) -> socket.socket | None:
    """Processes of one router are each other's replicas, whether or not it has any elsewhere."""
    if config.gossip is not None:
        port = config.gossip.port
        return listen_here(config.gossip.host, port + number if port else 0)
    return listen_here(_LOOPBACK, 0) if config.processes > 1 else None
