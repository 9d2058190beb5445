"""The admin API: `/workers`, where one sees the fleet and changes it while it serves."""

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from xxhash import xxh3_64_hexdigest

from .discovery.allow_list import AllowList
from .discovery.changes import Change, Changes, Kind
from .discovery.membership import MAX_WORKERS, checked_key, checked_url
from .errors import RequestError, answer_error, send_error
from .fleet import Worker
from .keys import KeyRing
from .routing import Routing
from .types import Receive, Scope, Send

PATH = "/workers"
_BELOW = f"{PATH}/"
MAX_BODY = 64 * 1024

_READING = ("GET", "HEAD")
_NEW_WORKER = '{"url": "http://host:port", "api_key": "optional"}'
_NEW_KEY = '{"api_key": "..."}, or null for none of its own'

Handler = Callable[[Request], Awaitable[Response]]


class AdminApi:
    def __init__(
        self,
        routing: Routing,
        changes: Changes,
        allow: AllowList,
        keys: KeyRing | None,
        *,
        own_port: bool,
    ) -> None:
        """`keys`: None where no admin keys are configured. `own_port`: whether it has a port for itself."""
        self._routing = routing
        self._membership = changes.membership
        self._changes = changes
        self._allow = allow
        self._keys = keys
        self._own_port = own_port
        routes = [
            Route(PATH, _Resource({"GET": self._show_all, "POST": self._add})),
            Route(f"{PATH}/{{id}}", _Resource({"GET": self._show, "PUT": self._change, "DELETE": self._remove})),
            Route(f"{PATH}/{{id}}/drain", _Resource({"POST": self._drain})),
        ]
        self._app = Starlette(routes=routes, exception_handlers={RequestError: answer_error, 404: _no_such_path})
        self._app.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._authorize(scope)
            except RequestError as error:
                await send_error(send, error)
                return
        await self._app(scope, receive, send)

    @staticmethod
    def handles(path: str) -> bool:
        return path == PATH or path.startswith(_BELOW)

    @property
    def has_keys(self) -> bool:
        """Whether it asks for keys of its own."""
        return self._keys is not None

    def _authorize(self, scope: Scope) -> None:
        """Raises RequestError."""
        if self._keys is not None:
            if not self._keys.admits(scope["headers"]):
                raise _unauthorized()
        elif scope["method"] in _READING:
            return
        elif not self._own_port:
            raise _forbidden(
                "admin_disabled",
                "Workers cannot be changed here: start the router with --admin-api-key, or with --admin-port for a "
                "port of its own.",
            )
        elif any(name == b"origin" for name, _ in scope["headers"]):
            # Any page that somebody on this machine looks at could send it, and the port asks for no key.
            raise _forbidden(
                "browser_not_allowed",
                "Without an admin key, requests of web pages change nothing: start the router with --admin-api-key, "
                "or leave the `Origin` header out.",
            )

    async def _show_all(self, request: Request) -> Response:
        self._changes.reload_if_changed()
        workers = [self._view(worker) for worker in self._routing.fleet.workers]
        return JSONResponse({"workers": workers, "total": len(workers)})

    async def _show(self, request: Request) -> Response:
        return JSONResponse(self._view(self._worker(request)))

    async def _add(self, request: Request) -> Response:
        fields = await _fields(request, {"url", "api_key"}, _NEW_WORKER)
        if "url" not in fields:
            raise _bad(f"`url` is missing: expected {_NEW_WORKER}.")
        url, key = _checked(checked_url, fields["url"]), _key(fields)
        if not self._allow.admits(url):
            raise _forbidden("worker_not_allowed", f"{url} is not among those that --allowed-workers allows.")
        self._changes.reload_if_changed()
        fleet = self._routing.fleet
        known = fleet.by_url(url) is not None
        if not known and not self._membership.has_room:
            raise _full()
        # Of one that was here before, no key is left behind.
        keyed = [Change(Kind.KEY, url, key)] if key is not None or not known else []
        self._apply(*keyed, Change(Kind.ADDED, url))
        worker = fleet.by_url(url)
        if worker is None:  # another process was quicker with the last place
            raise _full()
        return JSONResponse(self._view(worker), 200 if known else 201)

    async def _change(self, request: Request) -> Response:
        fields = await _fields(request, {"api_key"}, _NEW_KEY)
        if "api_key" not in fields:
            raise _bad(f"`api_key` is missing: expected {_NEW_KEY}.")
        key, worker = _key(fields), self._worker(request)
        self._apply(Change(Kind.KEY, worker.url, key))
        return JSONResponse(self._view(worker))

    async def _remove(self, request: Request) -> Response:
        worker = self._worker(request)
        self._apply(Change(Kind.REMOVED, worker.url))
        return JSONResponse(self._view(worker))

    async def _drain(self, request: Request) -> Response:
        worker = self._worker(request)
        self._apply(Change(Kind.DRAINED, worker.url))
        return JSONResponse(self._view(worker), 202)

    def _worker(self, request: Request) -> Worker:
        self._changes.reload_if_changed()
        wanted = request.path_params["id"]
        for worker in self._routing.fleet.workers:
            if worker_id(worker.url) == wanted:
                return worker
        raise _not_found(f"There is no worker with the id {wanted[:32]!r}: GET {PATH} lists those that there are.")

    def _view(self, worker: Worker) -> dict[str, Any]:
        """What may be shown: of its key only whether there is one."""
        return {
            "id": worker_id(worker.url),
            "url": worker.url,
            "state": worker.state,
            "models": worker.models,
            "in_flight": worker.in_flight,
            "waiting_tokens": worker.waiting_tokens,
            "blocks_held": self._routing.tree.held[worker.index],
            "breaker": worker.guard.state,
            "sources": self._membership.sources_of(worker.url),
            "has_key": worker.spec.api_key is not None,
        }

    def _apply(self, *changes: Change) -> None:
        try:
            self._changes.apply(*changes)
        except OSError as error:
            raise RequestError(
                500,
                f"Nothing has changed, since the router's processes could not be told: {error.strerror}.",
                type="server_error",
                code="change_not_written",
            ) from error


class _Resource:
    """One path: a handler for each method."""

    def __init__(self, handlers: dict[str, Handler]) -> None:
        self._handlers = handlers
        if "GET" in handlers:
            handlers["HEAD"] = handlers["GET"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._handlers.get(scope["method"])
        if handler is None:
            raise _not_allowed(", ".join(self._handlers))
        response = await handler(Request(scope, receive))
        await response(scope, receive, send)


def worker_id(url: str) -> str:
    """The same in every router."""
    return xxh3_64_hexdigest(url.encode())


async def _no_such_path(request: Request, error: Exception) -> Response:
    return await answer_error(request, _not_found(f"There are {PATH}, {PATH}/ID and {PATH}/ID/drain."))


async def _fields(request: Request, known: set[str], expected: str) -> dict[str, Any]:
    """The request's JSON object. Raises RequestError on anything else."""
    try:
        given = orjson.loads(await _body(request))
    except orjson.JSONDecodeError:
        raise _bad(f"The body is not JSON: expected {expected}.") from None
    if not isinstance(given, dict):
        raise _bad(f"The body is not a JSON object: expected {expected}.")
    if unknown := given.keys() - known:
        raise _bad(f"Unknown field {min(unknown)[:32]!r}: expected {expected}.")
    return given


async def _body(request: Request) -> bytes:
    """Never more of it than `MAX_BODY`."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY:
                raise _too_large()
    except ClientDisconnect:
        raise _bad("The body did not come whole.") from None  # nobody is there to read this
    return bytes(body)


def _key(fields: dict[str, Any]) -> str | None:
    given = fields.get("api_key")
    return None if given is None else _checked(checked_key, given)


def _checked(check: Callable[[object], str], given: object) -> str:
    try:
        return check(given)
    except ValueError as error:
        raise _bad(f"{error}.") from None


def _bad(message: str) -> RequestError:
    return RequestError(400, message, type="invalid_request_error", code="invalid_request")


def _unauthorized() -> RequestError:
    return RequestError(
        401,
        "The admin API asks for its own key: send `Authorization: Bearer <admin key>`.",
        type="authentication_error",
        code="invalid_api_key",
        headers=[(b"www-authenticate", b"Bearer")],
    )


def _forbidden(code: str, message: str) -> RequestError:
    return RequestError(403, message, type="permission_error", code=code)


def _not_found(message: str) -> RequestError:
    return RequestError(404, message, type="invalid_request_error", code="not_found")


def _not_allowed(allowed: str) -> RequestError:
    return RequestError(
        405,
        f"This path takes {allowed}.",
        type="invalid_request_error",
        code="method_not_allowed",
        headers=[(b"allow", allowed.encode())],
    )


def _full() -> RequestError:
    return RequestError(
        409,
        f"There are {MAX_WORKERS} workers already, and no more can be: remove some first.",
        type="invalid_request_error",
        code="too_many_workers",
    )


def _too_large() -> RequestError:
    return RequestError(
        413,
        f"The body is larger than {MAX_BODY} bytes.",
        type="invalid_request_error",
        code="payload_too_large",
        headers=[(b"connection", b"close")],
    )
