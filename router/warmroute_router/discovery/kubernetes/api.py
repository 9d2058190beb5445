"""The two questions to the API: which pods are there, and what happens to them from then on.

Each answer is bounded in time and size, whatever comes. There are libraries that know Kubernetes, but they wait
without end for a watch that has gone silent, and begin another one after a 410 without a list: who went meanwhile
stays.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
import orjson

from ...silence import notice_silence
from .account import Account

PATIENCE = 30.0
"""Seconds for a whole list, and for a watch to begin."""
WATCH = 60.0
"""Seconds after which the API is asked to end a watch."""
SLACK = 10.0
"""Seconds beyond these after which it has gone silent."""
PAGE = 250
"""Pods in one answer."""
MAX_PAGE = 64 * 1024 * 1024
"""Bytes."""
MAX_LINE = 4 * 1024 * 1024
"""Bytes of one event: the API's own limit for an object is less than half of it."""
MAX_PODS = 16384
"""That match; the others are left out."""
MAX_RETRY_AFTER = 60.0
"""Seconds."""
_LONGEST_REASON = 500
"""Characters."""


class Failed(Exception):  # noqa: N818 - says it already
    """A question without a whole answer. The message is one line."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(_line(reason))
        self.retry_after = retry_after
        """Seconds that the API wants to be left alone."""


class Broke(Failed):
    """A watch that had begun: it can go on where it was."""


class Lost(Failed):
    """What has happened since cannot be known: list anew."""


class Expired(Lost):
    """So long ago that the API has forgotten what came then."""


class Event(NamedTuple):
    kind: str
    item: dict[str, Any]


class Listed(NamedTuple):
    items: list[Any]
    version: str
    """From which a watch goes on."""


class PodApi:
    def __init__(self, account: Account, selector: str) -> None:
        self._account = account
        self._selector = selector
        # The bare transport: a client around it would add cookies, redirects and the environment's proxies. Without
        # kept connections a watch has one of its own, made with the newest authority.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._transport = httpx.AsyncHTTPTransport(verify=account.tls, trust_env=False, limits=limits)

    async def list(self) -> Listed:
        """All pods that match, page by page. Raises Failed."""
        items: list[Any] = []
        query = {"limit": str(PAGE)}
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    page = await self._page(query)
                    found, metadata = page.get("items") or [], page.get("metadata") or {}
                    items += found
                    query["continue"] = metadata.get("continue") or ""
                    if not query["continue"] or len(items) > MAX_PODS:
                        return Listed(items[:MAX_PODS], _version(page))
        except TimeoutError:
            raise Failed(f"no whole list within {PATIENCE:g} s") from None
        except (AttributeError, TypeError):
            raise Lost("its list of pods is none") from None

    async def watch(self, version: str, hear: Callable[[Iterable[Event]], None]) -> None:
        """From `version` on, until the API ends it. Raises Failed.

        `hear` is called once the watch has begun, with nothing, and then with each event or several of them.
        """
        seconds = WATCH * random.uniform(0.8, 1.2)
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, round(seconds))),
        }
        async with self._answer(query) as response:
            hear(())
            try:
                async with asyncio.timeout(seconds + SLACK):
                    rest = bytearray()
                    async for piece in response.aiter_raw():
                        rest += piece
                        if b"\n" in piece:
                            *lines, rest = rest.split(b"\n")
                            hear(_event(line) for line in lines if line.strip())
                        if len(rest) > MAX_LINE:
                            raise Lost(f"an event of more than {MAX_LINE} bytes")
            except TimeoutError:
                raise Broke("the watch has gone silent") from None
            except (httpx.HTTPError, OSError) as error:
                raise Broke(f"the watch broke off: {_reason(error)}") from None

    async def close(self) -> None:
        await self._transport.aclose()

    async def _page(self, query: dict[str, str]) -> dict[str, Any]:
        async with self._answer(query) as response:
            try:
                body = bytearray()
                async for piece in response.aiter_raw():
                    body += piece
                    if len(body) > MAX_PAGE:
                        raise Failed(f"{PAGE} pods take more than {MAX_PAGE} bytes")
            except (httpx.HTTPError, OSError) as error:
                raise Failed(f"the list broke off: {_reason(error)}") from None
        return _object(body, "its list of pods")

    @asynccontextmanager
    async def _answer(self, query: dict[str, str]) -> AsyncIterator[httpx.Response]:
        """One of 200."""
        url = f"{self._account.api}/api/v1/namespaces/{self._account.namespace}/pods"
        try:
            headers = {"accept": "application/json", "accept-encoding": "identity", "user-agent": "warmroute"}
            request = httpx.Request(
                "GET",
                httpx.URL(url, params={"labelSelector": self._selector, **query}),
                headers=headers | self._account.headers(),
            )
            async with asyncio.timeout(PATIENCE):
                response = await self._transport.handle_async_request(request)
        except TimeoutError:
            raise Failed(f"no answer within {PATIENCE:g} s") from None
        except (httpx.HTTPError, OSError) as error:
            raise Failed(_reason(error)) from None
        try:
            if response.status_code != 200:
                raise await self._refusal(response)
            # A host that is gone says nothing; without this, only the end of the watch's time would tell.
            stream = response.extensions.get("network_stream")
            notice_silence(stream and stream.get_extra_info("socket"), idle=10, interval=5, count=3, unread=25)
            yield response
        finally:
            await response.aclose()

    async def _refusal(self, response: httpx.Response) -> Failed:
        status, said = response.status_code, ""
        try:
            async with asyncio.timeout(PATIENCE):
                async for piece in response.aiter_raw():  # the first one is enough to say why
                    said = str(_object(piece, "it").get("message") or "")
                    break
        except (httpx.HTTPError, OSError, TimeoutError, Lost):
            said = ""
        if status == 410:
            return Expired(said)
        if status == 403:
            return Failed(
                f"403 Forbidden: the router's service account needs a Role in namespace {self._account.namespace} "
                f"with the verbs list and watch on pods, and a RoleBinding to it ({said or 'without a reason'})"
            )
        if status == 401:
            return Failed("401 Unauthorized: the token of the router's service account is not accepted")
        wait = response.headers.get("retry-after", "")
        return Failed(
            f"it answered {status} {said}",
            min(float(wait), MAX_RETRY_AFTER) if wait.isascii() and wait.isdecimal() else 0.0,
        )


def _event(line: bytes | bytearray) -> Event:
    """Raises Lost."""
    told = _object(line, "an event")
    kind, item = told.get("type"), told.get("object")
    if not isinstance(kind, str) or not isinstance(item, dict):
        raise Lost("an event that is none")
    if kind == "ERROR":
        said = str(item.get("message") or "")
        raise Expired(said) if item.get("code") == 410 else Lost(f"the watch ended with {item.get('code')} {said}")
    return Event(kind, item)


def version_after(event: Event) -> str:
    """Raises Lost."""
    return _version(event.item)


def _version(told: dict[str, Any]) -> str:
    metadata = told.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if not isinstance(version, str) or not version:
        raise Lost("an answer without a resourceVersion")
    return version


def _object(text: bytes | bytearray, what: str) -> dict[str, Any]:
    try:
        told = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Lost(f"{what} is not JSON: {error}") from None
    if not isinstance(told, dict):
        raise Lost(f"{what} is no JSON object")
    return told


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _line(text: str) -> str:
    """For a log: what others said, in one line that does not go on for ever."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text[:_LONGEST_REASON])
    return " ".join(shown.split())
