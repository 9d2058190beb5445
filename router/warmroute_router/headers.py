"""Which headers cross the proxy, and what it adds (RFC 9110, section 7.6)."""

import random
import re
from typing import Protocol

from .types import Headers, Scope

# They describe one connection, not the message. `host` is set anew for the worker, `content-length` for the
# buffered body; `expect: 100-continue` has been answered by then.
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_ID = re.compile(rb"[!-~]{1,200}")
"""ASCII without spaces and control characters."""
_WITHOUT_BODY = frozenset({204, 304})
"""A 304 may tell the length of what it does not send; the server below would wait for those bytes."""
_SET_BY_US = frozenset({b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-request-id"})
_NEEDED = _FRAMING | {b"host"}
"""Of a request, whatever its `connection` says."""
_SPECIAL = _HOP_BY_HOP | _SET_BY_US | _FRAMING | {b"host", b"expect"}
"""Of a request: what is not passed on as it came."""


def request_id(headers: Headers) -> bytes:
    """The client's own, where it can go into headers and logs as it is."""
    for name, value in headers:
        if name == b"x-request-id" and _ID.fullmatch(value):
            return value
    return b"%032x" % random.getrandbits(128)  # not a secret: no system call for each


def request_headers(scope: Scope, body_length: int, request_id: bytes) -> list[bytes]:
    """The lines of a request's head, all but the request line and `host`, ready to be sent to a worker.

    Every end-to-end header passes as it came, in its order, also twice where it came twice.
    """
    received: Headers = scope["headers"]
    named = _named_by_connection(received) - _NEEDED
    if named:
        received = [(name, value) for name, value in received if name not in named]
    forwarded_for: list[bytes] = []
    host = forwarded_host = b""
    has_proto = False
    has_length = body_length > 0
    lines: list[bytes] = []
    for name, value in received:
        if name not in _SPECIAL:
            lines.append(name + b": " + value)
        elif name == b"host":
            host = value
        elif name in _FRAMING:
            has_length = True
        elif name == b"x-forwarded-for":
            forwarded_for.append(value)
        elif name == b"x-forwarded-host":
            forwarded_host = value
        elif name == b"x-forwarded-proto":
            has_proto = True
            lines.append(b"x-forwarded-proto: " + value)
    if has_length:
        lines.append(b"content-length: %d" % body_length)
    client = scope.get("client")
    if client:
        forwarded_for.append(client[0].encode("ascii"))
    if forwarded_for:
        lines.append(b"x-forwarded-for: " + b", ".join(forwarded_for))
    if forwarded_host or host:
        lines.append(b"x-forwarded-host: " + (forwarded_host or host))
    if not has_proto:
        lines.append(b"x-forwarded-proto: " + scope["scheme"].encode("ascii"))
    lines.append(b"x-request-id: " + request_id)
    return lines


class Target(Protocol):
    """Where a request goes."""

    @property
    def host_header(self) -> bytes: ...
    @property
    def path_prefix(self) -> bytes:
        """What the worker's URL has behind its host."""


def request_head(scope: Scope, lines: list[bytes], target: Target, key: str | None) -> bytes:
    """The whole head, with the `lines` of `request_headers`; `key` is the worker's own, instead of the client's."""
    path, query = scope["raw_path"], scope["query_string"]
    if path != b"*":  # of OPTIONS: the server itself
        path = target.path_prefix + path
    if query:
        path += b"?" + query
    if key is not None:
        lines = [line for line in lines if not line.startswith((b"authorization:", b"x-api-key:"))]
        lines.append(b"authorization: Bearer " + key.encode("ascii"))
    request_line = b"%b %b HTTP/1.1" % (scope["method"].encode("ascii"), path)
    return b"\r\n".join((request_line, b"host: " + target.host_header, *lines, b"", b""))


def response_headers(status: int, received: Headers, added: Headers) -> Headers:
    """A worker's headers without the hop-by-hop ones, then those of `added` that the worker has not set.

    Names come and go in lower case.
    """
    dropped = _HOP_BY_HOP | {b"content-length"} if status in _WITHOUT_BODY else _HOP_BY_HOP
    names = {name for name, _ in received}
    if not names.isdisjoint(dropped):
        dropped = dropped | _named_by_connection(received)
        received = [(name, value) for name, value in received if name not in dropped]
        names -= dropped
    if not names.isdisjoint(name for name, _ in added):
        added = [(name, value) for name, value in added if name not in names]
    return received + added


def _named_by_connection(headers: Headers) -> frozenset[bytes] | set[bytes]:
    values = [value for name, value in headers if name == b"connection"]
    if not values:
        return frozenset()
    return {token.strip().lower() for value in values for token in value.split(b",")}
