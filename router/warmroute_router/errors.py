"""What can go wrong on a request's way, and the one place that turns it into an HTTP answer.

RequestError             answered in the OpenAI error shape, with its status
UpstreamError            the worker did not do its part
  +-- ConnectFailed      no connection: nothing has been sent, another worker may be tried
  +-- ConnectionLost     it broke off, or answered with something that is not HTTP
"""

from typing import Any

import orjson

from .types import Headers, Send


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


class UpstreamError(Exception):
    pass


class ConnectFailed(UpstreamError):  # noqa: N818 - named for what happened
    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused
        """Nobody listens there: the worker's process is gone, and its cache with it."""


class ConnectionLost(UpstreamError):  # noqa: N818
    pass


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


def no_worker() -> RequestError:
    return RequestError(
        503,
        "No worker is up. The router probes them all the time: try again in a moment.",
        type="service_unavailable",
        code="no_worker_available",
        headers=[(b"retry-after", b"1")],
    )


def worker_failed(detail: str) -> RequestError:
    return RequestError(502, f"The worker failed: {detail}.", type="upstream_error", code="worker_failed")


async def send_error(send: Send, error: RequestError) -> None:
    body = error.body
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        *error.headers,
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
