"""The product's own processes, started as a user starts them, and ended with whoever started them."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

_PATIENCE = 10.0
"""Seconds that a process has to end by itself."""


class StartError(Exception):
    """A process ended before it announced itself; what it said about that is on stderr already."""


class Processes:
    """Children that run until `stop`, or until the `with` block ends."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[str]] = []

    def start(self, module: str, *arguments: str) -> str:
        """Run `python -m MODULE ARGUMENTS`; returns the first line that it prints, its announcement.

        Raises StartError where it ends instead.
        """
        process = self.spawn(module, *arguments)
        return self.announcement(process)

    def spawn(self, module: str, *arguments: str) -> subprocess.Popen[str]:
        """Start without waiting for the announcement, so that several can load at the same time."""
        with _uninterrupted():
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdout=subprocess.PIPE,
                text=True,
                # Ctrl-C is for the parent alone, which ends its children in order.
                start_new_session=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
            self._running.append(process)
        return process

    def announcement(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None, "stdout is a pipe"
        line = process.stdout.readline().strip()
        if not line:
            raise StartError(f"a process ended with exit code {process.wait()}: {process.args!r}")
        return line

    def stop(self, processes: Sequence[subprocess.Popen[str]] | None = None) -> None:
        """Last started, first stopped: who uses others goes before them. Interrupted, it ends them by force."""
        ending = list(reversed(self._running if processes is None else processes))
        try:
            for process in ending:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_PATIENCE)
                process.kill()  # which is nothing to one that has ended
        finally:
            for process in ending:
                process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()
                self._running.remove(process)


@contextmanager
def processes() -> Iterator[Processes]:
    with ExitStack() as stack:
        children = Processes()
        stack.callback(children.stop)
        yield children


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Signals wait: an exception within Popen would lose a child that runs already."""
    if threading.current_thread() is not threading.main_thread():  # only there do signals raise
        yield
        return
    came: list[int] = []
    handlers: dict[int, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            if callable(signal.getsignal(number)):
                handlers[number] = signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
        for each in came:
            signal.raise_signal(each)


def url_in(announcement: str) -> str:
    """The first URL of an announcement line."""
    return next(word.rstrip(",;") for word in announcement.split() if word.startswith("http://"))
