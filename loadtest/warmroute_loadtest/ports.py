"""Ports for those that have to be told one before they listen."""

import random
import socket
from contextlib import suppress

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
