"""The data path: one request from its body to the last byte of the answer.

    body -> prompt -> worker -> the same bytes to it -> its answer as it comes -> load released, usage read

A bare ASGI callable. The body is held (a prompt has to be read whole before it can be routed), the answer never.
"""

import asyncio
import logging
from collections import Counter

from .errors import (
    ConnectFailed,
    ConnectionLost,
    RequestError,
    body_lost_in_upgrade,
    error_body,
    no_worker,
    payload_too_large,
    send_error,
    worker_failed,
)
from .fleet import Worker
from .headers import request_headers, request_id, response_headers
from .prompt import read_prompt
from .routing import Placement, Routing
from .types import Headers, Receive, Scope, Send
from .upstream import Connection
from .usage import Usage, UsageReader
from .usage_injection import UsageFilter, ask_for_usage

logger = logging.getLogger(__name__)

SESSION_HEADER = b"x-session-id"
CLIENT_LEFT = 499
"""The status that nginx gave to this case; it is counted, never sent."""


class ClientLeft(Exception):  # noqa: N818 - not an error
    pass


class Proxy:
    def __init__(self, routing: Routing, max_payload_size: int, *, usage_injection: bool = True) -> None:
        self._routing = routing
        self._usage_injection = usage_injection
        self._max_payload_size = max_payload_size
        self.refused: Counter[int] = Counter()
        """Requests that got their answer from the router itself, by status."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(scope, receive, self._max_payload_size)
            await _Exchange(self._routing, scope, body, usage_injection=self._usage_injection).run(receive, send)
        except RequestError as error:
            self.refused[error.status] += 1
            await send_error(send, error)
        except ClientLeft:
            self.refused[CLIENT_LEFT] += 1


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body. Raises RequestError (413) over `limit` bytes, before it is read where its length is told."""
    headers = dict(scope["headers"])
    if int(headers.get(b"content-length", 0)) > limit:
        raise payload_too_large(limit)
    if b"upgrade" in headers and (headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers):
        raise body_lost_in_upgrade()  # the HTTP parser below stops at such a head
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise payload_too_large(limit)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class _Exchange:
    """One request and its answer. A client that leaves cancels it, wherever it is."""

    def __init__(self, routing: Routing, scope: Scope, body: bytes, *, usage_injection: bool) -> None:
        self._routing = routing
        self._scope = scope
        self._prompt = read_prompt(scope["path"], body)
        self._asks_for_usage = usage_injection and self._prompt is not None and self._prompt.lacks_usage
        self._body = ask_for_usage(body) if self._asks_for_usage else body
        self._request_id = request_id(scope["headers"])
        self._lines = request_headers(scope, len(self._body), self._request_id)
        self._task: asyncio.Task[None] | None = None
        self._client_left = False
        self._started = False
        """Whether the client has been sent a status."""

    async def run(self, receive: Receive, send: Send) -> None:
        self._task = asyncio.current_task()
        watcher = asyncio.create_task(self._watch(receive))
        try:
            await self._relay(send)
        except asyncio.CancelledError:
            if not self._client_left:
                raise
            assert self._task is not None
            self._task.uncancel()
        finally:
            self._task = None
            watcher.cancel()

    async def _watch(self, receive: Receive) -> None:
        """Engines stop generating when their connection closes, so a client that leaves must be seen at once."""
        while (await receive())["type"] != "http.disconnect":
            pass
        if self._task is not None:
            self._client_left = True
            self._task.cancel()

    async def _relay(self, send: Send) -> None:
        prompt = self._routing.blocks_of(self._prompt, _session(self._scope["headers"]))
        refused: set[Worker] = set()
        while placement := self._routing.place(prompt, without=refused):
            worker = placement.worker
            status = CLIENT_LEFT
            try:
                status = await self._send_to(placement, send)
                return
            except ConnectFailed as error:
                # Nothing has been sent: another worker may have the request.
                status = 502
                logger.warning("worker %s: %s", worker.url, error)
                self._routing.unreachable(worker, gone=error.refused)
                refused.add(worker)
            except ConnectionLost as error:
                status = 502
                logger.warning("worker %s: %s (request %s)", worker.url, error, self._request_id.decode("latin-1"))
                await self._break_off(str(error), send)
                return
            finally:
                placement.release()
                worker.requests[status] += 1
        raise no_worker()

    async def _send_to(self, placement: Placement, send: Send) -> int:
        """Returns the worker's status, once the whole answer has been passed on."""
        pool = placement.worker.pool
        method = self._scope["method"]
        connection = await pool.request(self._head(placement.worker), self._body, no_body=method == "HEAD")
        try:
            usage = UsageReader(connection.headers)
            self._start_headers = response_headers(connection.status, connection.headers, self._receipt(placement))
            await send({"type": "http.response.start", "status": connection.status, "headers": self._start_headers})
            self._started = True
            await self._pass_body(connection, placement, usage, send)
        finally:
            pool.give_back(connection)
        if connection.status == 200:
            self._settle(placement, usage.result())
        return connection.status

    async def _pass_body(self, connection: Connection, placement: Placement, usage: UsageReader, send: Send) -> None:
        hide = UsageFilter() if self._asks_for_usage and self._streams() else None
        chunk = await connection.read()
        placement.first_byte()
        while not connection.complete:
            usage.feed(chunk)
            shown = hide.feed(chunk) if hide else chunk
            if shown:
                await send({"type": "http.response.body", "body": shown, "more_body": True})
            chunk = await connection.read()
        usage.feed(chunk)
        last = hide.feed(chunk) + hide.flush() if hide else chunk
        await send({"type": "http.response.body", "body": last})

    def _settle(self, placement: Placement, usage: Usage | None) -> None:
        placement.report(usage)
        if usage is not None and self._prompt is not None:
            self._routing.token_ratio.learn(self._prompt.model, len(self._prompt.key), usage.prompt_tokens)

    def _streams(self) -> bool:
        """Whether the answer is server-sent events, of a length that is not told beforehand."""
        headers = dict(self._start_headers)
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        return kind == b"text/event-stream" and b"content-length" not in headers

    def _head(self, worker: Worker) -> bytes:
        scope = self._scope
        query = scope["query_string"]
        target = worker.pool.path_prefix + scope["raw_path"] + (b"?" + query if query else b"")
        request_line = b"%b %b HTTP/1.1" % (scope["method"].encode("ascii"), target)
        return b"\r\n".join((request_line, b"host: " + worker.pool.host_header, *self._lines, b"", b""))

    def _receipt(self, placement: Placement) -> Headers:
        """What the router decided, for whoever reads the answer."""
        return [
            (b"x-request-id", self._request_id),
            (b"x-warmroute-worker", placement.worker.url.encode("ascii")),
            (b"x-warmroute-policy", self._routing.policy_name.encode("ascii")),
            (b"x-warmroute-prompt-tokens", b"%d" % placement.prompt.tokens),
            (b"x-warmroute-matched-tokens", b"%d" % placement.captured),
        ]

    async def _break_off(self, reason: str, send: Send) -> None:
        """The worker failed under way: a 502, or after the first byte an SSE error event, or a cut connection."""
        if not self._started:
            raise worker_failed(reason)
        if self._streams():
            event = error_body(f"The worker failed: {reason}.", type="upstream_error", code="worker_failed")
            await send({"type": "http.response.body", "body": b"data: " + event + b"\n\n"})


def _session(headers: Headers) -> str:
    return next((value.decode("latin-1") for name, value in headers if name == SESSION_HEADER), "")
