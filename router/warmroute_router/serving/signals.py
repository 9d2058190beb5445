"""SIGTERM and Ctrl-C, as long as there is a loop that they can tell something."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ORDERS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def obeying_signals(stop: Callable[[], None]) -> Iterator[None]:
    """`stop` is called for each. Those that come afterwards are ignored: by then the process is as good as over."""
    loop = asyncio.get_running_loop()
    for number in _ORDERS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in _ORDERS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)


def await_loop() -> None:
    """Until then each ends the process at once. SIGHUP never does: files are watched, nobody has to be told."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def ignore_signals() -> None:
    """For a process that its parent tells when to stop."""
    for number in (*_ORDERS, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
