"""Reading a request's body: whole, since a prompt must be read before it can be routed, and bounded."""

from .errors import ClientLeft, body_lost_in_upgrade, payload_too_large, router_exhausted
from .types import Body, Receive, Scope

_BODIES = 4
"""As many of the largest size may be held at a time."""
_LARGE = 8 * 1024 * 1024
"""Bytes from which on a body grows in place: pieces that are joined at the end are there twice for a moment."""


class Bodies:
    """All that are held just now."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes of one."""
        self.held = 0
        """Bytes."""
        self._limit = limit

    async def read(self, scope: Scope, receive: Receive) -> Body:
        """Its bytes count as held until `release`.

        Raises ClientLeft, and RequestError: 413 over the limit, before it is read where its length is told.
        """
        headers = dict(scope["headers"])
        if int(headers.get(b"content-length", 0)) > self._limit:
            raise payload_too_large(self._limit)
        if b"upgrade" in headers and _has_body(headers):
            raise body_lost_in_upgrade()  # the HTTP parser below stops at such a head
        chunks: list[Body] = []
        size = 0
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeft
                chunk = message.get("body", b"")
                size += len(chunk)
                self._hold(len(chunk), size)
                if size <= _LARGE:
                    chunks.append(chunk)
                else:
                    chunks = [_appended(chunks, chunk)]
                if not message.get("more_body", False):
                    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        except BaseException:
            self.held -= size
            raise

    def release(self, body: Body) -> None:
        self.held -= len(body)

    def _hold(self, more: int, size: int) -> None:
        self.held += more
        if size > self._limit:
            raise payload_too_large(self._limit)
        if self.held > _BODIES * self._limit:
            raise router_exhausted("the bodies of the requests that it has take all the memory they may")


def _has_body(headers: dict[bytes, bytes]) -> bool:
    return headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers


def _appended(chunks: list[Body], chunk: bytes) -> bytearray:
    whole = chunks[0] if len(chunks) == 1 and isinstance(chunks[0], bytearray) else bytearray().join(chunks)
    whole += chunk
    return whole
