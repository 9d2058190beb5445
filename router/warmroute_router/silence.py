"""Has the kernel notice that the other side of a connection is gone, machine and all: nobody else would."""

import socket
from contextlib import suppress


def notice_silence(connection: socket.socket | None, *, idle: int, interval: int, count: int, unread: float) -> None:
    """TCP only. After `idle` seconds of silence come `count` probes, `interval` seconds apart.

    `unread`: seconds that sent bytes may stay unacknowledged, or the other side's window closed; the probes end by
    then as well (TCP_USER_TIMEOUT, which Linux has).
    """
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    options = {
        "TCP_KEEPIDLE": idle,
        "TCP_KEEPINTVL": interval,
        "TCP_KEEPCNT": count,
        "TCP_USER_TIMEOUT": int(unread * 1000),
    }
    with suppress(OSError):  # where the other side has left already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
