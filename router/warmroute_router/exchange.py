"""One request on its way: placed, sent, tried elsewhere where that may be, and its answer passed on as it comes.

    prompt -> worker -> the same bytes to it -> its answer as it comes -> load released, usage read

Before the first byte of an answer's body everything can be undone, so its head is held until then: engines send
the head of a stream long before they have anything to say. After it nothing is tried again.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from .account import Account
from .admission.admission import Admission
from .errors import (
    ConnectFailed,
    Declined,
    RequestError,
    TimedOut,
    UpstreamError,
    error_body,
    timed_out,
    worker_failed,
)
from .fleet import Worker
from .headers import request_head, request_headers, request_id, response_headers
from .placement import Placement
from .prompt import read_model, read_prompt
from .retries import DECLINING, Retries, is_repeatable
from .routing import Routing
from .types import ENDS_WITH_CLIENT, Body, Headers, Scope, Sender
from .upstream.connection import Connection
from .usage import UsageReader
from .usage_injection import UsageFilter, ask_for_usage

logger = logging.getLogger(__name__)

SESSION_HEADER = b"x-session-id"
CLIENT_LEFT = 499
"""The status that nginx gave to this case; it is counted, never sent."""
FULL_PAUSE = 0.02
"""Seconds until it is looked again whether a worker has room, where somebody was quicker."""


class Exchange:
    """A client that leaves has it cancelled, wherever it is; so has the end of its time."""

    _account: Account
    """Of its model, on the worker that is tried."""

    def __init__(
        self,
        routing: Routing,
        retries: Retries,
        admission: Admission | None,
        scope: Scope,
        body: Body,
        *,
        total_timeout: float | None,
        usage_injection: bool,
    ) -> None:
        self._routing = routing
        self._retries = retries
        self._admission = admission
        self._scope = scope
        self._total_timeout = total_timeout
        self._began = routing.now()
        prompt = read_prompt(scope["path"], body)
        model = read_model(body) if prompt is None and routing.fleet.catalogue.mixed else ""
        self._blocks = routing.blocks_of(prompt, _session(scope["headers"]), model)
        # Of the prompt itself only this is kept: it may be as long as the body.
        self._key_bytes = len(prompt.key) if prompt is not None else 0
        self._asks_for_usage = usage_injection and prompt is not None and prompt.lacks_usage
        self._body = ask_for_usage(body) if self._asks_for_usage else body
        self._repeatable = is_repeatable(scope["method"], scope["path"])
        self._request_id = request_id(scope["headers"])
        self._lines = request_headers(scope, len(self._body), self._request_id)
        self._late: TimedOut | None = None
        """Once the time for all of it is up."""
        self._started = False
        """Whether the client has been sent a status."""
        self._suspect: Worker | None = None
        """Who answered 500, while it is not known whose fault that is: the worker's or the request's."""
        self._reading = routing.now() - self._began
        """Seconds."""

    async def run(self, send: Sender) -> None:
        """Raises RequestError where there is no answer to pass on."""
        # Engines stop generating when their connection closes, so a client that leaves must be seen at once.
        self._scope[ENDS_WITH_CLIENT] = True
        self._retries.earn()
        answering = self._relay(send) if self._admission is None else self._enter(self._admission, send)
        if self._total_timeout is None:
            await answering
        else:
            await self._in_time(answering, self._total_timeout, send)

    async def _in_time(self, answering: Coroutine[Any, Any, None], timeout: float, send: Sender) -> None:  # noqa: ASYNC109
        task = asyncio.current_task()
        assert task is not None

        def time_is_up() -> None:
            self._late = TimedOut("request", timeout)
            task.cancel()

        timer = asyncio.get_running_loop().call_later(timeout, time_is_up)
        try:
            await answering
        except asyncio.CancelledError:
            if self._late is None:
                raise
            task.uncancel()
        finally:
            timer.cancel()
        if self._late is not None:
            if not self._started:
                raise timed_out("request", f"The request took too long: {self._late}.")
            self._break_off(self._late, send)

    async def _enter(self, admission: Admission, send: Sender) -> None:
        await admission.enter(admission.fairness_key(self._scope["headers"]))
        try:
            await self._relay(send)
        finally:
            admission.leave()

    async def _relay(self, send: Sender) -> None:
        tried: list[Worker] = []
        model = self._blocks.model
        while True:
            while (placement := self._place(tried)) is None:
                if not self._routing.is_full(tried, model):
                    raise self._routing.unplaceable(model)
                await asyncio.sleep(FULL_PAUSE)
            worker = placement.worker
            self._account = worker.accounts.of(model)
            tried.append(worker)
            status = CLIENT_LEFT
            try:
                status = await self._send_to(placement, tried, send)
                return
            except RequestError as error:  # the router's own fault
                status = error.status
                placement.retract(self._routing.tree)
                raise
            except UpstreamError as error:
                status = error.status
                again = self._after(error, placement, tried)
                if self._started:
                    self._break_off(error, send)
                    return
                if not again:
                    raise worker_failed(error) from None
                pause = self._retries.pause(error, len(tried))
            except asyncio.CancelledError:
                if self._late is not None:
                    status = self._late.status
                raise
            finally:
                placement.release()
                self._account.requests[status] += 1
            worker.retries += 1
            if pause:
                await asyncio.sleep(pause)

    def _place(self, tried: list[Worker]) -> Placement | None:
        began = self._routing.now()
        placement = self._routing.place(self._blocks, tried)
        if placement is not None:
            self._routing.decision_time.observe(self._routing.now() - began + self._reading)
        return placement

    def _after(self, error: UpstreamError, placement: Placement, tried: list[Worker]) -> bool:
        """Draw the conclusions of a try in vain; returns whether there is to be another one."""
        worker = placement.worker
        logger.warning("worker %s: %s (request %s)", worker.url, error, self._request_id.decode("latin-1"))
        if isinstance(error, Declined):
            return True
        worker.guard.failed(self._routing.now())
        worker.doubted.set()
        self._clear_up()
        if isinstance(error, ConnectFailed):
            self._routing.unreachable(worker, gone=error.refused)
        if self._started:
            return False
        placement.retract(self._routing.tree)
        return self._may_go_on(error, tried)

    def _may_go_on(self, error: UpstreamError, tried: list[Worker]) -> bool:
        return self._routing.has_others(tried, self._blocks.model) and self._retries.allows(
            error, len(tried), repeatable=self._repeatable
        )

    async def _send_to(self, placement: Placement, tried: list[Worker], send: Sender) -> int:
        """Returns the worker's status, once the whole answer has been passed on."""
        worker = placement.worker
        without_body = self._scope["method"] == "HEAD"
        connection = await worker.pool.request(
            request_head(self._scope, self._lines, worker.pool, worker.spec.api_key),
            self._body,
            no_body=without_body,
            repeatable=self._repeatable,
        )
        try:
            status = connection.status
            if status >= 400:
                self._consider(connection, placement, tried)
            self._clear_up()
            first = connection.take() or await connection.read()
            placement.answered() if status < 500 and status != 429 else placement.first_byte()
            usage = UsageReader(connection.headers)
            if usage.streamed:
                self._account.ttft.observe(self._routing.now() - self._began)
            self._start_headers = response_headers(status, connection.headers, self._receipt(placement))
            send.start(status, self._start_headers)
            self._started = True
            await self._pass_body(connection, first, usage, send)
        finally:
            worker.pool.give_back(connection)
        if status < 400:
            worker.guard.completed()
            self._account.duration.observe(self._routing.now() - self._began)
        if status == 200:
            self._settle(placement, usage)
        return status

    def _consider(self, connection: Connection, placement: Placement, tried: list[Worker]) -> None:
        """An error status: what it says of the worker. Raises Declined where another one is to be asked."""
        worker, status = placement.worker, connection.status
        placement.retract(self._routing.tree)
        declined = Declined(status, _retry_after(connection.headers))
        if status in (429, 503):
            worker.guard.declined(self._routing.now(), declined.retry_after)
        elif status in (502, 504):
            worker.guard.failed(self._routing.now())
        elif status == 500:
            # Two in a row: it is the request.
            self._suspect = worker if self._suspect is None else None
        if (status in DECLINING or self._suspect is worker) and self._may_go_on(declined, tried):
            raise declined

    def _clear_up(self) -> None:
        """It was not the request: another worker did not say 500, or none was left to be asked."""
        if self._suspect is not None:
            self._suspect.guard.failed(self._routing.now())
            self._suspect = None

    async def _pass_body(self, connection: Connection, first: bytes, usage: UsageReader, send: Sender) -> None:
        hide = UsageFilter() if self._asks_for_usage and self._streams() else None

        def pass_on(piece: bytes) -> bool:
            usage.feed(piece)
            shown = hide.feed(piece) if hide else piece
            return not shown or send.write(shown)

        # A client that asks for more and more and reads nothing has to wait too.
        await send.drained()
        if not connection.complete:
            pass_on(first)
            first = b""
            await send.drained()
            while not await connection.pour(pass_on):
                await send.drained()
        last = first + connection.take()
        usage.feed(last)
        send.end(hide.feed(last) + hide.flush() if hide else last)

    def _settle(self, placement: Placement, reader: UsageReader) -> None:
        usage = reader.result()
        placement.report(usage)
        if usage is not None:
            self._routing.token_ratio.learn(self._blocks.model, self._key_bytes, usage.prompt_tokens)

    def _streams(self) -> bool:
        """Whether the answer is server-sent events, of a length that is not told beforehand."""
        headers = dict(self._start_headers)
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        return kind == b"text/event-stream" and b"content-length" not in headers

    def _receipt(self, placement: Placement) -> Headers:
        """What the router decided, for whoever reads the answer."""
        return [
            (b"x-request-id", self._request_id),
            (b"x-warmroute-worker", placement.worker.url_bytes),
            (b"x-warmroute-policy", self._routing.policy_bytes),
            (b"x-warmroute-prompt-tokens", b"%d" % placement.prompt.tokens),
            (b"x-warmroute-matched-tokens", b"%d" % placement.captured),
        ]

    def _break_off(self, error: UpstreamError, send: Sender) -> None:
        """After the first byte: an SSE error event, or, in any other answer, a cut connection."""
        if self._streams():
            answer = worker_failed(error)
            event = error_body(str(answer), type=answer.type, code=answer.code)
            # What came last may have been half an event.
            send.end(b"\n\nevent: error\ndata: " + event + b"\n\n")


def _session(headers: Headers) -> str:
    return dict(headers).get(SESSION_HEADER, b"").decode("latin-1")


def _retry_after(headers: Headers) -> float | None:
    """Seconds; the other form, a date, is not read."""
    value = dict(headers).get(b"retry-after", b"")
    return float(value) if value.isdigit() and len(value) < 10 else None
