"""The ASGI protocol and the few aliases that the whole package shares."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

ENDS_WITH_CLIENT = "warmroute.ends_with_client"
"""A key that a request's scope may be given: its task is cancelled then as soon as its client leaves. To wait for
that by `receive` would take a task more for each request."""

Body: TypeAlias = bytes | bytearray
"""Of a request. Nobody changes it."""
Headers: TypeAlias = list[tuple[bytes, bytes]]
