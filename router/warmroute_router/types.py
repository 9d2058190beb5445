"""The ASGI protocol and the few aliases that the whole package shares."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

ON_DISCONNECT = "warmroute.on_disconnect"
"""An extension of ASGI, by `serving.http_protocol`: `scope["extensions"][ON_DISCONNECT](callback)` has a client's
leaving told by a call. To wait for that by `receive` would take a task for each request."""

Body: TypeAlias = bytes | bytearray
"""Of a request. Nobody changes it."""
Headers: TypeAlias = list[tuple[bytes, bytes]]
