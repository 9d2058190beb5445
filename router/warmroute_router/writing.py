"""A head and a body in one packet, where that is worth its price."""

import asyncio

_JOINED = 64 * 1024
"""Bytes of a body up to which it costs less to copy it behind its head than to pass two pieces to the kernel."""


def write_together(transport: asyncio.Transport, head: bytes, body: bytes | bytearray) -> None:
    if len(body) <= _JOINED:
        transport.write(head + body)
    else:
        transport.writelines((head, body))
