"""What can go wrong on a request's way, and the one place that turns it into an HTTP answer.

ClientLeft               nobody is there to be answered
RequestError             answered in the OpenAI error shape, with its status
UpstreamError            the worker did not do its part
  +-- ConnectFailed      no connection: nothing has been sent, another worker may be tried
  |     +-- ConnectTimedOut
  +-- ConnectionLost     it broke off, or answered with something that is not HTTP
  +-- TimedOut           it let us wait for too long
  +-- Declined           it answered that it cannot, and another worker may be tried
"""

from math import ceil
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from .types import Headers, Send

_SHOWN_MODELS = 10
_SHOWN_NAME = 100
"""Characters."""


class RequestError(Exception):
    """An answer that the router gives by itself, in the error shape of OpenAI's API."""

    def __init__(self, status: int, message: str, *, type: str, code: str, headers: Headers | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.code = code
        self.headers: Headers = headers or []

    @property
    def body(self) -> bytes:
        return error_body(str(self), type=self.type, code=self.code)


class ClientLeft(Exception):  # noqa: N818 - not an error
    pass


class UpstreamError(Exception):
    """`status`: what the client gets where nobody else can answer, and what is counted."""

    status = 502


class ConnectFailed(UpstreamError):  # noqa: N818 - named for what happened
    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused
        """Nobody listens there: the worker's process is gone, and its cache with it."""


class ConnectTimedOut(ConnectFailed):
    status = 504
    which = "connect"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no connection within {seconds:g} s (--connect-timeout-secs)")


class ConnectionLost(UpstreamError):  # noqa: N818
    pass


class TimedOut(UpstreamError):  # noqa: N818
    status = 504

    def __init__(self, which: str, seconds: float) -> None:
        """`which`: as in the flag, `--WHICH-timeout-secs`."""
        super().__init__(f"more than {seconds:g} s (--{which}-timeout-secs)")
        self.which = which


class Declined(UpstreamError):  # noqa: N818
    """It answered, but with a status after which another worker may be asked."""

    def __init__(self, status: int, retry_after: float | None) -> None:
        super().__init__(f"it answered {status}")
        self.status = status
        self.retry_after = retry_after
        """Seconds, where the worker says."""


def error_body(message: str, *, type: str, code: str) -> bytes:
    error: dict[str, Any] = {"message": message, "type": type, "param": None, "code": code}
    return orjson.dumps({"error": error})


def unauthorized() -> RequestError:
    return RequestError(
        401,
        "This router asks for its API key: send `Authorization: Bearer <key>`.",
        type="authentication_error",
        code="invalid_api_key",
        headers=[(b"www-authenticate", b"Bearer")],
    )


def admin_elsewhere() -> RequestError:
    return RequestError(
        404,
        "The fleet is not shown here: this router has an --admin-port for it.",
        type="invalid_request_error",
        code="not_found",
    )


def payload_too_large(limit: int) -> RequestError:
    return RequestError(
        413,
        f"The request body is larger than {limit} bytes, the limit set by --max-payload-size.",
        type="invalid_request_error",
        code="payload_too_large",
        # What is left of the body is not worth reading.
        headers=[(b"connection", b"close")],
    )


def body_lost_in_upgrade() -> RequestError:
    return RequestError(
        400,
        "The body of a request with an `Upgrade` header cannot be read. This router speaks HTTP/1.1: leave that "
        "header out (Java's HttpClient: `.version(HTTP_1_1)`; curl: without `--http2`).",
        type="invalid_request_error",
        code="upgrade_not_supported",
        headers=[(b"connection", b"close")],
    )


def no_worker(reason: str | None = None) -> RequestError:
    """`reason`: why there is none at all, where that is known."""
    return _unavailable(
        f"No worker is there: {reason}."
        if reason
        else "No worker is up. The router probes them all the time: try again in a moment.",
        "no_worker_available",
    )


def model_not_found(model: str, served: list[str]) -> RequestError:
    names = ", ".join(f"`{name}`" for name in served[:_SHOWN_MODELS])
    more = ", ..." if len(served) > _SHOWN_MODELS else ""
    return RequestError(
        404,
        f"No worker serves the model `{model[:_SHOWN_NAME]}`. There are {names}{more}.",
        type="invalid_request_error",
        code="model_not_found",
    )


def model_missed(model: str) -> RequestError:
    return _unavailable(
        f"The workers that serve the model `{model[:_SHOWN_NAME]}` are gone. Others may come: try again in a moment.",
        "no_worker_available",
    )


def all_open(seconds: float) -> RequestError:
    return _unavailable(
        "Every worker that is up has failed again and again, and is left alone for a while.",
        "circuit_breakers_open",
        retry_after=seconds,
    )


def draining() -> RequestError:
    return _unavailable("This router is about to stop.", "shutting_down")


def router_exhausted(detail: str) -> RequestError:
    return _unavailable(f"The router itself has run out: {detail}.", "router_exhausted")


def _unavailable(message: str, code: str, retry_after: float = 1.0) -> RequestError:
    seconds = max(ceil(retry_after), 1)
    return RequestError(
        503, message, type="service_unavailable", code=code, headers=[(b"retry-after", b"%d" % seconds)]
    )


def worker_failed(error: UpstreamError) -> RequestError:
    """Nobody else could be asked, or none of those who were could answer."""
    if isinstance(error, TimedOut | ConnectTimedOut):
        return timed_out(error.which, f"The worker took too long: {error}.")
    if isinstance(error, ConnectFailed):
        return no_worker()  # nothing has been sent: it may come again
    return RequestError(502, f"The worker failed: {error}.", type="upstream_error", code="worker_failed")


def timed_out(which: str, message: str) -> RequestError:
    code = which.replace("-", "_") + "_timeout"
    return RequestError(504, message, type="timeout_error", code=code)


async def send_error(send: Send, error: RequestError) -> None:
    body = error.body
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        *error.headers,
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def answer_error(request: Request, error: Exception) -> Response:
    """Starlette's form of it."""
    del request
    assert isinstance(error, RequestError)
    headers = {name.decode(): value.decode() for name, value in error.headers}
    return Response(error.body, error.status, headers, "application/json")
