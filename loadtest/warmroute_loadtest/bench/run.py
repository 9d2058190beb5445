"""The load itself: sends what is due when it is due, and notes what became of it."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from time import perf_counter
from typing import Any

from warmroute_router import __version__

from .client import Client
from .conversation import Conversation
from .exchange import Exchange
from .form import Endpoint, Form
from .gaps import Gaps
from .load import Concurrency, Load, Timetable, due_times
from .record import Answer, Run
from .workload import Workload

GRACE = 30.0
_DIGITS = 6
"""Of a second, in a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    urls: Sequence[str]
    """As `normalize_worker_url` makes them; each request goes to any of them."""
    workload: Workload
    load: Load
    model: str | None = None
    """None: the first that the first server names."""
    endpoint: Endpoint = "chat"
    stream: bool = True
    ignore_eos: bool = False
    api_key: str | None = None
    duration: float = inf
    """Seconds after which nothing more is sent."""
    grace: float = GRACE
    """Seconds after those that answers on their way are waited for. Without a `duration` there is no limit."""
    seed: int = 0
    """Of arrivals, of the choice of a URL, and of all text."""
    label: str = ""
    command: str = ""


class Bench:
    """One run of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.sent = 0
        self.answered = 0
        self.failed = 0
        self.interrupted = False
        self._plan = plan
        self._draw = random.Random(plan.seed)
        self._clients = [Client(url, plan.api_key) for url in plan.urls]
        self._answers: list[tuple[float, int, Answer]] = []
        """Each with the time at which it was due and its number, which order them."""
        self._gaps = Gaps()
        self._start = self._last_end = 0.0
        self._path = b""
        self._running: asyncio.Task[Any] | None = None
        self._loading: asyncio.Task[None] | None = None
        self._why_unfinished = ""

    async def run(self) -> Run:
        """Raises Unreachable where a server cannot be asked at the start; later on that is what the run records."""
        plan = self._plan
        self._running = asyncio.current_task()
        try:
            for client in self._clients:
                await client.connect()
            model = plan.model or await self._clients[0].model()
            form = Form(model, plan.endpoint, stream=plan.stream, ignore_eos=plan.ignore_eos)
            self._path = form.path
            started = datetime.now(UTC)
            await self._load(plan.workload.conversations(form, plan.seed))
        finally:
            for client in self._clients:
                await client.close()
        self._answers.sort(key=lambda entry: entry[:2])
        return Run(
            label=plan.label,
            command=plan.command,
            started=started.isoformat(timespec="seconds"),
            duration=self._duration(),
            version=__version__,
            urls=list(plan.urls),
            model=model,
            workload=plan.workload.record(),
            load=self._load_record(),
            itl=self._gaps.figures(),
            answers=[answer for _, _, answer in self._answers],
        )

    def interrupt(self) -> None:
        """Break off: `run` returns what there is, or, if the load has not begun, is cancelled."""
        self.interrupted = True
        self._why_unfinished = "interrupted"
        if task := self._loading or self._running:
            task.cancel()

    async def _load(self, conversations: Iterator[Conversation]) -> None:
        plan = self._plan
        self._start = self._last_end = perf_counter()
        load = plan.load
        work = (
            self._closed(conversations, load.requests)
            if isinstance(load, Concurrency)
            else self._open(conversations, load)
        )
        self._loading = asyncio.create_task(work)
        try:
            await asyncio.wait([self._loading], timeout=None if plan.duration == inf else plan.duration + plan.grace)
        finally:
            if not self._loading.done():
                self._why_unfinished = self._why_unfinished or f"no answer {plan.grace:g} s after the load's end"
                self._loading.cancel()
                await asyncio.wait([self._loading])
        if not self._loading.cancelled():
            self._loading.result()

    async def _open(self, conversations: Iterator[Conversation], timetable: Timetable) -> None:
        times = due_times(timetable, self._plan.workload.arrivals(), self._plan.seed)
        async with asyncio.TaskGroup() as answers:
            for seconds, conversation in zip(times, conversations, strict=False):
                if seconds >= self._plan.duration:
                    break
                body = conversation.opening()  # made before it is due
                due = self._start + seconds
                await _until(due)
                answers.create_task(self._talk(conversation, body, due))

    async def _closed(self, conversations: Iterator[Conversation], at_a_time: int) -> None:
        async def one_by_one() -> None:
            for conversation in conversations:
                body = conversation.opening()
                now = perf_counter()
                if now - self._start >= self._plan.duration:
                    break
                await self._talk(conversation, body, now)

        async with asyncio.TaskGroup() as clients:
            for _ in range(at_a_time):
                clients.create_task(one_by_one())

    async def _talk(self, conversation: Conversation, body: bytes, due: float) -> None:
        while True:
            exchange = await self._ask(body, conversation.session, due)
            reply = None if exchange.error else conversation.reply("".join(exchange.text))
            if reply is None:
                return
            due = exchange.ended_at + reply.think
            if due - self._start >= self._plan.duration:
                return
            body = reply.body
            await _until(due)

    async def _ask(self, body: bytes, session: str | None, due: float) -> Exchange:
        client = self._clients[0] if len(self._clients) == 1 else self._draw.choice(self._clients)
        exchange = Exchange()
        number = self.sent = self.sent + 1
        late = perf_counter() - due
        try:
            await client.ask(self._path, body, session, exchange)
        except asyncio.CancelledError:
            exchange.fail(self._why_unfinished, perf_counter())
            raise
        finally:
            self._note(number, due, late, client.url, session or "", exchange)
        return exchange

    def _note(self, number: int, due: float, late: float, url: str, session: str, exchange: Exchange) -> None:
        self.answered += 1
        self.failed += bool(exchange.error)
        self._last_end = max(self._last_end, exchange.ended_at)
        self._gaps.add(exchange.gaps)
        self._answers.append((due, number, _answer(due, due - self._start, late, url, session, exchange)))

    def _duration(self) -> float:
        first = self._answers[0][0] if self._answers else self._start
        return round(max(0.0, self._last_end - first), _DIGITS)

    def _load_record(self) -> dict[str, Any]:
        record = self._plan.load.record()
        return record if self._plan.duration == inf else record | {"duration": self._plan.duration}


async def _until(due: float) -> None:
    """Never too early, and others have their turn even where it is too late.

    The loop's timers know milliseconds: what is left of one is spent turning the loop.
    """
    while True:
        await asyncio.sleep(max(0.0, due - perf_counter()))
        if perf_counter() >= due:
            return


def _answer(due: float, from_start: float, late: float, url: str, session: str, exchange: Exchange) -> Answer:
    gaps, headers = exchange.gaps, exchange.headers
    matched = headers.get(b"x-warmroute-matched-tokens", b"")
    answered = exchange.ended_at - due if exchange.status else None
    return Answer(
        due=round(from_start, _DIGITS),
        late=round(late, _DIGITS),
        status=exchange.status,
        error=exchange.error,
        worker=headers.get(b"x-warmroute-worker", b"").decode("latin-1") or url,
        session=session,
        ttft=None if exchange.first_at is None else round(exchange.first_at - due, _DIGITS),
        e2e=None if answered is None else round(answered, _DIGITS),
        itl_mean=round(sum(gaps) / len(gaps), _DIGITS) if gaps else None,
        itl_max=round(max(gaps), _DIGITS) if gaps else None,
        prompt_tokens=exchange.told("prompt_tokens"),
        completion_tokens=exchange.told("completion_tokens"),
        cached_tokens=exchange.told("prompt_tokens_details", "cached_tokens"),
        matched_tokens=int(matched) if matched.isdigit() else None,
    )
