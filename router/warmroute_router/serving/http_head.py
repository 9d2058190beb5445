"""A request's head: how long it may be, and what must not be in it because two servers may read it in two ways."""

import re
from http import HTTPStatus
from urllib.parse import unquote

from ..errors import RequestError
from ..types import Headers

MAX_TARGET = 8 * 1024
"""Bytes of the request line's target."""
MAX_HEAD = 64 * 1024
"""Bytes of a head, and of what a chunked body may have beside its data at a stretch: extensions and trailers."""
MAX_HEADERS = 256

_ORIGIN = re.compile(rb"https?://[^/?#\\]+", re.IGNORECASE)
_SEPARATOR = rb"(?:[/\\;]|%2f|%5c)"
_BAD_PATH = re.compile(
    # Dot segments as any server may read them, backslashes, encoded control characters.
    rb"%b(?:\.|%%2e){1,2}(?:%b|$)|\\|%%[01][0-9a-f]|%%7f" % (_SEPARATOR, _SEPARATOR),
    re.IGNORECASE,
)

# Where there are two of these, two readers may go by different ones.
_ONCE = (b"host", b"authorization", b"content-length", b"transfer-encoding")


def check_head(method: bytes, target: bytes, version: str, headers: Headers) -> bytes:
    """What httptools lets through and two servers may read in two ways. Names are lower case.

    Returns the target in origin-form. Raises RequestError.
    """
    if version not in ("1.1", "1.0"):
        raise _version_not_supported()
    # Nearly all targets are plain: these few looks cost less than a pattern.
    if (
        not target.startswith(b"/")
        or b"/." in target
        or b"%" in target
        or b"\\" in target
        or b"#" in target
        or method == b"CONNECT"
    ):
        target = _origin_form(method, target)
    fields = dict(headers)
    if len(fields) != len(headers):
        names = [name for name, _ in headers]
        for name in _ONCE:
            if names.count(name) > 1:
                raise invalid(f"the header {name.decode()} comes more than once")
    if b"host" not in fields and version == "1.1":
        raise invalid("the header host is missing")
    coding = fields.get(b"transfer-encoding")
    if coding is not None and (version == "1.0" or coding.strip(b" \t").lower() != b"chunked"):
        raise invalid("the only transfer-encoding is chunked, of HTTP/1.1")
    return target


def _origin_form(method: bytes, target: bytes) -> bytes:
    """Raises RequestError. The host of an absolute URL is dropped: it does not say where a request goes here."""
    if target == b"*" and method == b"OPTIONS":
        return target
    origin = _ORIGIN.match(target)
    if origin is not None:
        target = target[origin.end() :]
        target = target if target.startswith(b"/") else b"/" + target
    path = target.partition(b"?")[0]
    if not path.startswith(b"/") or method == b"CONNECT":
        raise _bad_target("it has to begin with / or http://")
    if b"#" in target:
        raise _bad_target("it has a fragment")
    if _BAD_PATH.search(path):
        raise _bad_target("its path has dot segments, backslashes or control characters")
    return target


def path_of(raw_path: bytes) -> str:
    """As ASGI has it. Raises UnicodeDecodeError."""
    path = raw_path.decode("ascii")
    return unquote(path) if "%" in path else path


def _error(status: int, message: str, code: str) -> RequestError:
    return RequestError(status, message, type="invalid_request_error", code=code)


def invalid(detail: str) -> RequestError:
    return _error(400, f"This is not a valid HTTP/1.1 request: {detail}.", "invalid_http")


def _bad_target(detail: str) -> RequestError:
    return _error(400, f"The request's target is not accepted: {detail}.", "bad_target")


def too_slow() -> RequestError:
    return _error(408, "The request did not come in time: send it at once, and faster.", "request_timeout")


def target_too_long() -> RequestError:
    return _error(414, f"The request's target is longer than {MAX_TARGET} bytes.", "target_too_long")


def head_too_large() -> RequestError:
    message = f"The request's head is larger than {MAX_HEAD} bytes or {MAX_HEADERS} headers."
    return _error(431, message, "headers_too_large")


def _version_not_supported() -> RequestError:
    return _error(505, "This router speaks HTTP/1.1 and 1.0.", "http_version_not_supported")


def last_answer(error: RequestError) -> bytes:
    """To a client that has to come again on another connection."""
    body = error.body
    status = b"HTTP/1.1 %d %b" % (error.status, HTTPStatus(error.status).phrase.encode())
    head = (status, b"content-type: application/json", b"content-length: %d" % len(body), b"connection: close")
    return b"\r\n".join((*head, b"", body))
