"""The ASGI protocol and the few aliases that the whole package shares."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

ENDS_WITH_CLIENT = "warmroute.ends_with_client"
"""A key that a request's scope may be given: its task is cancelled then as soon as its client leaves. To wait for
that by `receive` would take a task more for each request."""


Headers: TypeAlias = list[tuple[bytes, bytes]]


class Sender(Protocol):
    """The `send` of our own server. It also takes an answer by calls, which cost less than messages do."""

    def __call__(self, message: Message) -> Awaitable[None]: ...
    def start(self, status: int, headers: Headers) -> None: ...
    def write(self, body: bytes) -> bool:
        """A piece that is not the last. False where the client has not taken what it was sent: wait for `drained`."""

    def end(self, body: bytes) -> None:
        """The last piece."""

    async def drained(self) -> None:
        """Until the client has taken enough; at once where it has."""


App: TypeAlias = Callable[[Scope, Receive, Sender], Awaitable[None]]
"""What our own server serves; any ASGI application is one."""

Body: TypeAlias = bytes | bytearray
"""Of a request. Nobody changes it."""
