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
_NOT_FORWARDED = _HOP_BY_HOP | {b"host", b"content-length", b"expect"}
_ID = re.compile(rb"[!-~]{1,200}")
"""ASCII without spaces and control characters."""
_WITHOUT_BODY = frozenset({204, 304})
"""A 304 may tell the length of what it does not send; the server below would wait for those bytes."""
_SET_BY_US = frozenset({b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-request-id"})


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
    dropped = _NOT_FORWARDED | _named_by_connection(received)
    forwarded_for: list[bytes] = []
    host: bytes | None = None
    forwarded_host: bytes | None = None
    has_length = body_length > 0
    lines: list[bytes] = []
    for name, value in received:
        if name in dropped:
            if name == b"host":
                host = value
            has_length = has_length or name in (b"content-length", b"transfer-encoding")
        elif name not in _SET_BY_US:
            lines.append(name + b": " + value)
        elif name == b"x-forwarded-for":
            forwarded_for.append(value)
        elif name == b"x-forwarded-host":
            forwarded_host = value
        elif name == b"x-forwarded-proto":
            lines.append(b"x-forwarded-proto: " + value)
    if has_length:
        lines.append(b"content-length: %d" % body_length)
    client = scope.get("client")
    if client:
        forwarded_for.append(client[0].encode("ascii"))
    if forwarded_for:
        lines.append(b"x-forwarded-for: " + b", ".join(forwarded_for))
    if forwarded_host or host:
        lines.append(b"x-forwarded-host: " + (forwarded_host or host or b""))
    if not any(line.startswith(b"x-forwarded-proto:") for line in lines):
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
    """A worker's headers without the hop-by-hop ones, then those of `added` that the worker has not set."""
    lowered = [(name.lower(), value) for name, value in received]
    dropped = _HOP_BY_HOP | _named_by_connection(lowered)
    if status in _WITHOUT_BODY:
        dropped = dropped | {b"content-length"}
    kept = [(name, value) for name, value in lowered if name not in dropped]
    present = {name for name, _ in kept}
    return kept + [(name, value) for name, value in added if name not in present]


def _named_by_connection(headers: Headers) -> frozenset[bytes] | set[bytes]:
    for name, _ in headers:
        if name == b"connection":
            break
    else:
        return frozenset()
    return {token.strip().lower() for name, value in headers if name == b"connection" for token in value.split(b",")}
