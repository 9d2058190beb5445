"""A listening Unix socket, whose file comes and goes with it."""

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .listen import BACKLOG, naming


@contextmanager
def listening_at(path: Path) -> Iterator[socket.socket]:
    """With the mode that the umask leaves. Raises OSError with a message that names the path."""
    with socket.socket(socket.AF_UNIX) as listener:
        with naming(str(path)):
            _clear(path)
            listener.bind(str(path))
            listener.listen(BACKLOG)
            own = path.stat()
        try:
            yield listener
        finally:
            _remove(path, own)


def _clear(path: Path) -> None:
    """Take away what a killed router has left there. Raises OSError where somebody listens."""
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise OSError(errno.EEXIST, "there is a file that is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # else it would wait where the other's backlog is full
        if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    path.unlink(missing_ok=True)


def _remove(path: Path, own: os.stat_result) -> None:
    """Unless another router has put its own there meanwhile."""
    if path.exists() and os.path.samestat(path.stat(), own):
        path.unlink(missing_ok=True)
