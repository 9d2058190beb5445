"""Requests out of bytes, by httptools: bounded, and refused where two servers could read them in two ways."""

from typing import Any, Protocol

import httptools

from ..errors import RequestError
from ..types import Headers, Scope
from .http_head import (
    MAX_HEAD,
    MAX_HEADERS,
    MAX_TARGET,
    check_head,
    head_too_large,
    invalid,
    path_of,
    target_too_long,
)

IDLE, HEAD, BODY = range(3)


class Receiver(Protocol):
    """Who is told of each request, part by part."""

    def begin(self, scope: Scope, *, keep_alive: bool, expects_continue: bool) -> None:
        """Its head. Raises RequestError where there are too many already."""

    def body(self, body: bytes) -> None: ...
    def end(self) -> None: ...


class RequestParser:
    def __init__(self, receiver: Receiver, scope: dict[str, Any]) -> None:
        """`scope`: what all requests have in common."""
        self.stage = IDLE
        """Which part of a message has begun and not ended yet."""
        self.steps = 0
        """Parts that have begun or ended."""
        self._receiver = receiver
        self._common = scope
        self._url = b""
        self._headers: Headers = []
        self._expects_continue = False
        self._scope: Scope = {}
        """Of the last request."""
        self._fed = 0
        """Bytes of the last read that can belong to a head, or to what a chunked body has beside its data."""
        self._overhead = 0
        """The sum of these, over the reads of one head, or since the last data of a body."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        # What follows a request that closes is not served, and nothing to complain of.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def feed(self, data: bytes) -> bool:
        """False where nobody can say where the next request would begin. Raises RequestError."""
        while data:
            self._fed = len(data)
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                # The parser stops behind such a head, since another protocol could follow. Here it is HTTP.
                fields = dict(self._scope["headers"])
                if b"transfer-encoding" in fields or fields.get(b"content-length", b"0").strip(b" 0\t"):
                    return False  # it has skipped the body
                data = data[upgrade.args[0] :]
                self._begin_anew()
            except httptools.HttpParserError as error:
                cause = error.__context__
                raise cause if isinstance(cause, RequestError) else invalid(f"{error}") from None
        return True

    def check_part(self) -> None:
        """After a read at whose end something is missing. Raises RequestError where it is too long already."""
        self._overhead += self._fed
        if self.stage == HEAD and len(self._url) > MAX_TARGET:
            raise target_too_long()
        if self.stage and (self._overhead > MAX_HEAD or len(self._headers) > MAX_HEADERS):
            raise head_too_large()

    def close(self) -> None:
        """The parser refers back to this: without it, what was read would wait for the garbage collector."""
        del self._parser

    # httptools callbacks

    def on_message_begin(self) -> None:
        self.steps += 1
        self.stage = HEAD
        self._overhead = 0
        self._url = b""
        self._headers = []
        self._expects_continue = False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._check_size()
        parser, headers = self._parser, self._headers
        method, version = parser.get_method(), parser.get_http_version()
        target = check_head(method, self._url, version, headers)
        raw_path, _, query = target.partition(b"?")
        self._scope = scope = self._common.copy()
        scope["http_version"] = version
        scope["method"] = method.decode("ascii")
        scope["path"] = path_of(raw_path)
        scope["raw_path"] = raw_path
        scope["query_string"] = query
        scope["headers"] = headers
        # Without this, trailers of a chunked body would still get into them.
        self._headers = []
        keep_alive = version != "1.0" and parser.should_keep_alive()
        self._receiver.begin(scope, keep_alive=keep_alive, expects_continue=self._expects_continue)
        self.steps += 1
        self.stage = BODY
        self._overhead = 0

    def on_body(self, body: bytes) -> None:
        self._fed = self._overhead = 0
        self._receiver.body(body)

    def on_message_complete(self) -> None:
        self.steps += 1
        self.stage = IDLE
        self._fed = 0
        self._receiver.end()

    def _check_size(self) -> None:
        """Of a whole head. Raises RequestError."""
        if len(self._url) > MAX_TARGET:
            raise target_too_long()
        if len(self._headers) > MAX_HEADERS:
            raise head_too_large()
        # A read that held more than this head tells nothing of its size: then it is counted.
        if not self._fed or self._overhead + self._fed > MAX_HEAD:
            size = len(self._url) + sum(len(name) + len(value) + 4 for name, value in self._headers)
            if size > MAX_HEAD:
                raise head_too_large()
