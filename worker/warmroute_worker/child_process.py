"""Child processes that do not outlive us, nor leave anything behind when they end."""

import ctypes
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

PATIENCE = 5.0
"""Seconds that what a child has left behind may take to end by itself."""

ONE_GROUP = "WARMROUTE_ONE_GROUP"
"""In the environment of a child that leads a group which is ended as a whole: what it starts stays in it."""

_PR_SET_PDEATHSIG = 1


def ending_with_us() -> Callable[[], None]:
    """For `preexec_fn`: the child gets SIGTERM when this process is gone, even by SIGKILL. On Linux alone.

    The kernel asks for the thread that starts the child: it has to be one that lasts.
    """
    parent = os.getpid()
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # looked up here: little may be done between fork and exec

    def prepare() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was gone before
            os._exit(1)

    return prepare


def clear_group(group: int) -> None:
    """End what is left of the process group of a child that has ended."""
    deadline = time.monotonic() + PATIENCE
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
        while time.monotonic() < deadline:
            with suppress(ChildProcessError):
                os.waitpid(-group, os.WNOHANG)  # process 1 of a container has to bury them
            os.killpg(group, 0)
            time.sleep(0.02)
        os.killpg(group, signal.SIGKILL)


def exit_code(returncode: int) -> int:
    """As shells say it: 128 + n where the signal n has ended a process."""
    return returncode if returncode >= 0 else 128 - returncode


def end_of(returncode: int) -> str:
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    return f"was killed by {signal.Signals(-returncode).name}"
