"""The data path's door, a bare ASGI callable: the body is read, and the exchange with a worker begun."""

from collections import Counter

from .admission.admission import Admission
from .body import Bodies
from .errors import ClientLeft, RequestError, send_error
from .exchange import CLIENT_LEFT, Exchange
from .fan_out import PATHS as FOR_ALL
from .fan_out import FanOut
from .retries import Retries
from .routing import Routing
from .types import Receive, Scope, Sender


class Proxy:
    def __init__(
        self,
        routing: Routing,
        retries: Retries,
        admission: Admission | None,
        max_payload_size: int,
        *,
        total_timeout: float | None = None,
        usage_injection: bool = True,
    ) -> None:
        """admission: None where all requests are let in."""
        self.bodies = Bodies(max_payload_size)
        self.admission = admission
        self.refused: Counter[int] = Counter()
        """Requests that got their answer from the router itself, by status."""
        self._routing = routing
        self._fan_out = FanOut(routing, self.bodies)
        self._retries = retries
        self._total_timeout = total_timeout
        self._usage_injection = usage_injection

    async def __call__(self, scope: Scope, receive: Receive, send: Sender) -> None:
        try:
            if scope["path"] in FOR_ALL:
                await self._fan_out(scope, receive, send)
                return
            if self.admission is not None:
                self.admission.check()
            body = await self.bodies.read(scope, receive)
            exchange = Exchange(
                self._routing,
                self._retries,
                self.admission,
                scope,
                body,
                total_timeout=self._total_timeout,
                usage_injection=self._usage_injection,
            )
            try:
                await exchange.run(send)
            finally:
                self.bodies.release(body)
        except RequestError as error:
            self.refused[error.status] += 1
            await send_error(send, error)
        except ClientLeft:
            self.refused[CLIENT_LEFT] += 1
