"""The pace of a mock worker: its model of an engine against one that is coded another way, and the clock on top."""

import asyncio
import time
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.mock import events, mock_worker, series
from warmroute_loadtest.mock_worker.config import MockConfig
from warmroute_loadtest.mock_worker.engine import Engine
from warmroute_loadtest.simulator.worker import Happening, Job, WorkerModel

RATE = 997.0  # odd, so that no two things fall on one moment by accident of round numbers
TPOT = 0.0317
PLENTY = 10**6


@dataclass(eq=False)
class Ask:
    tokens: int
    output: int
    interval: int
    gap: float
    patience: float

    @property
    def goals(self) -> list[int]:
        """Tokens at which something is told."""
        between = range(1 + self.interval, self.output, self.interval) if self.interval else ()
        return [1, *between, max(self.output, 1)]


asks = st.builds(
    Ask,
    tokens=st.integers(0, 60),
    output=st.integers(0, 25),
    interval=st.integers(0, 4),
    gap=st.sampled_from([0.0, 0.0123, 0.0771, 0.531]),
    patience=st.sampled_from([inf, inf, 0.0101, 0.0907, 0.4003]),
)


@dataclass
class NaiveWorker:
    """Without a cache. Every request has its own count of tokens, and all of them are moved at every moment."""

    asks: list[Ask]
    max_running: int
    now: float = 0.0
    queue: list[Ask] = field(default_factory=list)
    prefilling: Ask | None = None
    left_to_prefill: float = 0.0
    decoding: dict[Ask, float] = field(default_factory=dict)
    told: dict[Ask, list[float]] = field(default_factory=dict)

    def run(self) -> list[list[float]]:
        """When each request was told of each of its goals."""
        coming, leaving, arrival = [], [], 0.0
        for ask in self.asks:
            arrival += ask.gap
            coming.append((arrival, ask))
            leaving.append((arrival + ask.patience, ask))
            self.told[ask] = []
        while coming or self.queue or self.prefilling or self.decoding:
            moments = [time for time, _ in (*coming, *leaving) if time >= self.now]
            if self.prefilling:
                moments.append(self.now + self.left_to_prefill / RATE)
            step = TPOT * (1 + (len(self.decoding) - 1) / 64)
            moments += [self.now + (self.goal(ask) - done) * step for ask, done in self.decoding.items()]
            self.move(min(moments), step)
            if self.prefilling and self.left_to_prefill < 1e-9:
                self.decoding[self.prefilling] = 0.0
                self.prefilling = None
            self.admit()
            while coming and coming[0][0] <= self.now:
                self.queue.append(coming.pop(0)[1])
                self.admit()
            for moment, ask in list(leaving):
                if moment <= self.now:
                    leaving.remove((moment, ask))
                    self.leave(ask)
        return [self.told[ask] for ask in self.asks]

    def goal(self, ask: Ask) -> int:
        return ask.goals[len(self.told[ask])]

    def move(self, moment: float, step: float) -> None:
        passed, self.now = moment - self.now, moment
        self.left_to_prefill -= passed * RATE
        for ask in list(self.decoding):
            self.decoding[ask] += passed / step
            while ask in self.decoding and self.decoding[ask] > self.goal(ask) - 1e-9:
                self.told[ask].append(moment)
                if len(self.told[ask]) == len(ask.goals):
                    del self.decoding[ask]

    def admit(self) -> None:
        if self.queue and not self.prefilling and len(self.decoding) < self.max_running:
            self.prefilling = self.queue.pop(0)
            self.left_to_prefill = self.prefilling.tokens

    def leave(self, ask: Ask) -> None:
        if ask in self.queue:
            self.queue.remove(ask)
        self.decoding.pop(ask, None)
        if self.prefilling is ask:
            self.prefilling = None
        self.admit()


class Driven:
    """A model that is driven by time, and all that it told."""

    def __init__(self, model: WorkerModel) -> None:
        self.model = model
        self.told: dict[Job, list[tuple[float, Happening]]] = {}

    def until(self, moment: float) -> None:
        while (due := self.model.next_at) <= moment and due < inf:
            for what, job in self.model.wake(due):
                self.told[job].append((due, what))

    def submit(self, job: Job, moment: float) -> None:
        self.until(moment)
        self.told[job] = []
        self.model.submit(job, moment)

    def abort(self, job: Job, moment: float) -> None:
        self.until(moment)
        if Happening.END not in [what for _, what in self.told[job]]:
            self.model.abort(job, moment)


@settings(max_examples=200)
@given(st.lists(asks, min_size=1, max_size=15), st.integers(1, 6))
def test_tokens_come_when_a_naive_worker_makes_them(asks: list[Ask], max_running: int) -> None:
    driven = Driven(WorkerModel(PLENTY, 10, RATE, TPOT, max_running))
    jobs = [Job(n, (), ask.tokens, ask.output, stream_interval=ask.interval) for n, ask in enumerate(asks)]
    arrival, todo = 0.0, []
    for ask, job in zip(asks, jobs, strict=True):
        arrival += ask.gap
        todo.append((arrival, 0, job.number, driven.submit))
        todo.append((arrival + ask.patience, 1, job.number, driven.abort))
    for moment, _, number, act in sorted(todo, key=lambda entry: entry[:3]):
        if moment < inf:
            act(jobs[number], moment)
            assert driven.model.running <= max_running
    driven.until(1e9)
    for ask, job, expected in zip(asks, jobs, NaiveWorker(asks, max_running).run(), strict=True):
        told = driven.told[job]
        assert [moment for moment, _ in told] == pytest.approx(expected)
        kinds = [Happening.FIRST_BYTE, *[Happening.TOKENS] * (len(ask.goals) - 2), Happening.END]
        assert [what for _, what in told] == kinds[: len(told)]
    assert (driven.model.running, driven.model.waiting, driven.model.cache.in_use) == (0, 0, 0)


def test_who_leaves_during_prefill_leaves_what_was_computed() -> None:
    """Ten tokens take a tenth of a second. The first of five blocks is there; after 0.25, three and a half are."""
    driven = Driven(WorkerModel(100, 10, 100.0, 10.0))
    other, leaving, again = (
        Job(n, ids, 10 * len(ids), 1) for n, ids in enumerate([[1], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]])
    )
    driven.submit(other, 0.0)
    driven.submit(leaving, 1.0)
    driven.abort(leaving, 1.25)
    assert driven.model.computed_tokens == 10 + 25
    driven.submit(again, 2.0)
    assert (other.cached_blocks, leaving.cached_blocks, again.cached_blocks) == (0, 1, 3)
    driven.until(1e9)
    assert driven.model.computed_tokens == 10 + 25 + 20
    assert (driven.model.cache.used, driven.model.cache.in_use) == (5, 0)


def test_who_leaves_in_the_moment_of_coming_takes_nothing_of_anothers() -> None:
    """However the time of its prefill is rounded."""
    for start in (0.1 * n for n in range(1, 200)):
        driven = Driven(WorkerModel(100, 10, 7.0, 1e9))
        first, second = Job(0, [1], 10, 1), Job(1, [1, 2], 29, 1)
        driven.submit(first, 0.0)
        driven.submit(second, start + 2)
        driven.abort(second, start + 2)
        assert driven.model.computed_tokens == 10
        assert (driven.model.cache.pinned, driven.model.cache.used) == (1, 2)


# By the clock


class Told:
    def __init__(self) -> None:
        self.what: list[Happening] = []
        self.ended = asyncio.get_running_loop().create_future()

    def reached(self, what: Happening) -> None:
        self.what.append(what)
        if what is Happening.END:
            self.ended.set_result(None)


@pytest.mark.anyio
async def test_a_late_loop_lets_everything_happen_in_order() -> None:
    """The loop sleeps through all of the first request. The second comes to a worker that has answered that one."""
    engine = Engine(MockConfig(blocks=4, block_tokens=4, prefill_rate=10_000.0, tpot=0.001))
    first, second = Job(1, [1], 4, 3, stream_interval=1), Job(2, [1, 2], 8, 1)
    first_told, second_told = Told(), Told()
    engine.submit(first, first_told)
    time.sleep(0.05)  # noqa: ASYNC251
    engine.submit(second, second_told)
    assert first_told.what == [Happening.FIRST_BYTE, Happening.TOKENS, Happening.END]
    assert second.cached_blocks == 1  # admitted at once: nobody is in its way
    assert second_told.what == []  # and not before it came
    await second_told.ended
    assert (engine.running, engine.waiting) == (0, 0)
    assert engine.totals.cached_tokens == 4


@pytest.mark.anyio
async def test_a_job_that_has_ended_is_not_aborted() -> None:
    """The clock says that it has, before the loop has come to tell."""
    now = [0.0]
    engine = Engine(MockConfig(tpot=1.0), clock=lambda: now[0])
    job, told = Job(1, (), 4, 2), Told()
    engine.submit(job, told)
    now[0] = 2.5
    engine.abort(job)
    assert told.what[-1] is Happening.END
    engine.abort(job)
    assert (engine.running, engine.totals.requests) == (0, 1)


@pytest.mark.anyio
async def test_no_event_of_a_stream_comes_before_its_time() -> None:
    """Prefill of ten tokens: 0.05 s. Then one every 0.02 s: the first comes alone, and the others in threes."""
    prefill, tpot = 0.05, 0.02
    config = MockConfig(prefill_rate=10 / prefill, tpot=tpot, stream_interval=3)
    body = {"prompt": "a" * 40, "max_tokens": 9, "stream": True}
    arrivals: list[float] = []
    async with mock_worker(config) as client:
        started = time.monotonic()
        async with client.stream("POST", "/v1/completions", json=body) as reply:
            lines = []
            async for line in reply.aiter_lines():
                lines.append(line)
                if '"text"' in line:
                    arrivals.append(time.monotonic() - started)
        assert [len(event["choices"][0]["text"]) // 4 for event in events("\n".join(lines) + "\n")] == [1, 3, 3, 2]
    for arrival, tokens in zip(arrivals, (1, 4, 7, 9), strict=True):
        assert arrival >= prefill + tokens * tpot
    assert all(later > earlier for earlier, later in pairwise(arrivals))


@pytest.mark.anyio
async def test_no_more_run_than_may() -> None:
    async with mock_worker(MockConfig(tpot=0.005, max_running=2)) as client:
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(complete(client)) for _ in range(8)]
            await asked[0]
            seen = [await series(client)]
            while not all(task.done() for task in asked):
                seen.append(await series(client))
        # Four pairs, one after the other, of four tokens each, and two together take a 64th more for each.
        assert time.monotonic() - started >= 4 * 4 * 0.005
    running = [values["vllm:num_requests_running"] for values in seen]
    assert max(running) <= 2
    assert {task.result() for task in asked} == {200}


async def complete(client: httpx.AsyncClient) -> int:
    return (await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 4})).status_code
