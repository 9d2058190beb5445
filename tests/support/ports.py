"""Ports for those that have to be told one before they listen."""

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_LOWEST, _HIGHEST = 20_000, 32_000
"""The kernel gives out higher ones by itself: to whoever connects, or asks for any."""
_given: set[int] = set()


def free_port() -> int:
    """On any address of this machine, and never the same twice."""
    while True:
        port = random.randint(_LOWEST, _HIGHEST)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            if port not in _given:
                _given.add(port)
                return port


@contextmanager
def closed_port() -> Iterator[int]:
    """It refuses whoever connects: it is taken, and nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]
