"""The control plane's client to workers: probes, metrics, lists of models. The data path has its own, `pool`.

Each answer is bounded in time and size, whatever the worker does. No connection is kept, and none is waited for: a
probe shows whether the worker takes one, and a worker that hangs takes no place from another.
"""

import asyncio
import ssl
from typing import NamedTuple

import httpx

from ..config import WorkerSpec

_LONGEST_REASON = 200
"""Characters: of what is no HTTP, the error quotes all that came."""


class Answer(NamedTuple):
    status: int
    body: bytes
    """As it came; nothing is unpacked."""


class Unanswered(Exception):  # noqa: N818 - named for what happened
    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused
        """Nobody listens there: the worker's process is gone, and its cache with it."""


class WorkerClient:
    def __init__(self, tls: ssl.SSLContext) -> None:
        """`tls`: how to speak with workers whose URL is `https`; see `tls.worker_context`."""
        # The bare transport: a client around it would add cookies, redirects and the environment's proxies.
        unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._transport = httpx.AsyncHTTPTransport(verify=tls, trust_env=False, limits=unlimited)

    async def get(
        self,
        spec: WorkerSpec,
        path: str,
        *,
        timeout: float,  # noqa: ASYNC109 - bounds all of it, and has an error of its own
        limit: int = 1024 * 1024,
        authorization: str | None = None,
    ) -> Answer:
        """Raises Unanswered where no whole answer of at most `limit` bytes came within `timeout` seconds.

        `authorization` is a client's header, for a worker that has no key of its own.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self._exchange(_request(spec, path, authorization), limit)
        except TimeoutError:
            raise Unanswered(f"no answer within {timeout:g} s") from None
        except (httpx.LocalProtocolError, httpx.InvalidURL, ValueError):
            # Which of them is wrong the error may say by showing it, and a key shall not be shown.
            raise Unanswered("no request can be made with its URL, name and key") from None
        except (httpx.HTTPError, OSError) as error:
            reason = str(error)[:_LONGEST_REASON] or type(error).__name__
            raise Unanswered(reason, refused=isinstance(error, httpx.ConnectError) and _refused(error)) from error

    async def close(self) -> None:
        await self._transport.aclose()

    async def _exchange(self, request: httpx.Request, limit: int) -> Answer:
        response = await self._transport.handle_async_request(request)
        try:
            body = bytearray()
            async for piece in response.aiter_raw():
                body += piece
                if len(body) > limit:
                    raise Unanswered(f"the answer is longer than {limit} bytes")
            return Answer(response.status_code, bytes(body))
        finally:
            await response.aclose()


def _request(spec: WorkerSpec, path: str, authorization: str | None) -> httpx.Request:
    headers = {"accept-encoding": "identity", "connection": "close", "user-agent": "warmroute"}
    extensions = {}
    key = f"Bearer {spec.api_key}" if spec.api_key else authorization
    if key:
        headers["authorization"] = key
    if spec.server_name:
        headers["host"] = spec.host
        extensions["sni_hostname"] = spec.server_name
    return httpx.Request("GET", spec.url + path, headers=headers, extensions=extensions)


def _refused(error: BaseException | None) -> bool:
    """Whether nobody listens there, by what is behind the client's own error."""
    while error is not None:
        if isinstance(error, ConnectionRefusedError):
            return True
        if isinstance(error, BaseExceptionGroup):
            return any(_refused(each) for each in error.exceptions)
        error = error.__cause__ or error.__context__
    return False
