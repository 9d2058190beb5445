"""Requests that are meant for every worker: to abort one, wherever it runs; to empty the caches (SGLang's API)."""

import asyncio

import orjson

from .body import Bodies
from .errors import RequestError, UpstreamError
from .fleet import Worker
from .headers import request_head, request_headers, request_id
from .routing import Routing
from .types import Body, Receive, Scope, Send

ABORT, FLUSH = "/abort_request", "/flush_cache"
PATHS = frozenset({ABORT, FLUSH})
TIMEOUT = 10.0
"""Seconds that each worker has."""


class FanOut:
    def __init__(self, routing: Routing, bodies: Bodies) -> None:
        self._routing = routing
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers with what each worker answered, under the worst of their statuses. Raises RequestError."""
        body = await self._bodies.read(scope, receive)
        try:
            workers = self._routing.fleet.ready()
            if not workers:
                raise self._routing.fleet.nobody()
            lines = request_headers(scope, len(body), request_id(scope["headers"]))
            statuses = await asyncio.gather(*(self._ask(worker, scope, lines, body) for worker in workers))
        finally:
            self._bodies.release(body)
        told = [{"url": worker.url, "status": status} for worker, status in zip(workers, statuses, strict=True)]
        answer = orjson.dumps({"workers": told})
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": max(statuses), "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else answer})

    async def _ask(self, worker: Worker, scope: Scope, lines: list[bytes], body: Body) -> int:
        """The status of its answer; 502 where there is none, 504 where there is none in time."""
        try:
            async with asyncio.timeout(TIMEOUT):
                head = request_head(scope, lines, worker.pool, worker.spec.api_key)
                connection = await worker.pool.request(
                    head, body, no_body=scope["method"] == "HEAD", repeatable=False
                )
                try:
                    while await connection.read():
                        pass
                finally:
                    worker.pool.give_back(connection)
        except TimeoutError:
            return 504
        except RequestError as error:
            return error.status
        except UpstreamError as error:
            return error.status
        if scope["path"] == FLUSH and connection.status < 300:
            self._routing.forget(worker)
        return connection.status
