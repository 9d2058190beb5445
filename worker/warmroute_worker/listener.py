"""A port that is taken and not yet listened on, and the line that says where it is."""

import os
import socket
import sys
from contextlib import ExitStack

from .errors import WorkerError


def bound(host: str, port: int) -> socket.socket:
    """Connections are refused until somebody listens: this process, or a child that binds the port as well.

    port: 0 takes a free one. Raises WorkerError.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with ExitStack() as unless_bound:
            listener = unless_bound.enter_context(socket.socket(family, kind))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            unless_bound.pop_all()
    except UnicodeError as error:  # of the codec that names of hosts go through
        raise WorkerError(f"cannot listen on {host}:{port}: no host can have this name") from error
    except OSError as error:
        raise WorkerError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


def url_of(listener: socket.socket, *, tls: bool = False) -> str:
    host, port = listener.getsockname()[:2]
    bracketed = f"[{host}]" if listener.family is socket.AF_INET6 else host
    return f"{'https' if tls else 'http'}://{bracketed}:{port}"


def announce(name: str, where: str) -> None:
    """On standard output, for whoever started this server. Where nobody reads it any more, it serves all the same."""
    try:
        print(f"warmroute worker: {name} on {where}", flush=True)
    except OSError:
        # What could not be written must not fail once more at the end.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
