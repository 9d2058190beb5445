"""The chaos suite's own parts, and a short run of it."""

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.router import until
from warmroute_loadtest.chaos.clients import GoodClient, Outcome, Result, read_result, request_of
from warmroute_loadtest.chaos.connection import Request
from warmroute_loadtest.chaos.fault_worker import FaultWorker
from warmroute_loadtest.chaos.faults import GOOD, KILLED, Fault, Kind
from warmroute_loadtest.chaos.invariants import MOST_GROWTH, check_memory
from warmroute_loadtest.chaos.judge import Verdict, judge
from warmroute_loadtest.chaos.record import Record
from warmroute_loadtest.chaos.replies import Ending, Reply
from warmroute_loadtest.chaos.router_process import Footprint
from warmroute_loadtest.chaos.rude_clients import MISDEEDS, NONSENSE
from warmroute_loadtest.chaos.run import Options, run_seed
from warmroute_loadtest.chaos.schedule import RECOVERY, Call, Schedule, Trouble, make_schedule

PATIENCE = 30.0
"""Seconds; only matters in failure."""
CALL = Call("t-1", prompt=1, words=3, streamed=True, chat=True, usage=False, pause=0.0)
CALLS = [
    replace(CALL, streamed=streamed, chat=chat, usage=usage)
    for streamed, usage in ((True, True), (True, False), (False, True))
    for chat in (True, False)
]


# Schedule


def schedule(seed: int, seconds: float = 30.0, workers: int = 4, *, always_one_healthy: bool = True) -> Schedule:
    return make_schedule(
        seed, seconds, workers, sorted(MISDEEDS), per_second=5.0, always_one_healthy=always_one_healthy
    )


seeds = st.integers(0, 10**6)
few = settings(max_examples=50)


@few
@given(seeds, st.integers(2, 6), st.floats(1.0, 60.0))
def test_some_worker_is_well_at_any_time_and_has_been_for_a_while(seed: int, workers: int, seconds: float) -> None:
    made = schedule(seed, seconds, workers)
    for trouble in made.troubles:
        for moment in (trouble.start, (trouble.start + trouble.end) / 2, trouble.end):
            troubled = {
                other.worker for other in made.troubles if other.start <= moment and other.end > moment - RECOVERY
            }
            assert len(troubled) < workers
            assert made.healthy_throughout(moment, moment, workers)


@few
@given(seeds)
def test_the_troubles_of_one_worker_come_one_after_the_other(seed: int) -> None:
    made = schedule(seed)
    assert all(0.0 <= trouble.start < trouble.end <= made.seconds for trouble in made.troubles)
    for worker in range(4):
        own = [trouble for trouble in made.troubles if trouble.worker == worker]
        assert all(one.end <= next_one.start for one, next_one in pairwise(own))


@few
@given(seeds)
def test_a_seed_is_one_schedule(seed: int) -> None:
    assert schedule(seed) == schedule(seed)
    assert schedule(seed) != schedule(seed + 1)


def test_every_kind_of_trouble_and_every_misdeed_comes_at_some_time() -> None:
    made = schedule(1, seconds=600.0)
    assert {trouble.fault.kind for trouble in made.troubles} == set(Kind)
    assert {trouble.health for trouble in made.troubles} == {"up", "503", "hang", "close"}
    assert any(trouble.killed for trouble in made.troubles)
    assert {misdeed.name for misdeed in made.misdeeds} == set(MISDEEDS)
    assert len(made.misdeeds) == 3000


def test_without_the_guardian_there_are_times_when_nobody_is_well() -> None:
    made = schedule(1, seconds=120.0, workers=2, always_one_healthy=False)
    assert not all(made.healthy_throughout(moment, moment, 2) for moment in range(120))


def test_a_worker_that_has_just_recovered_does_not_count_as_well() -> None:
    made = Schedule(0, 10.0, (Trouble(0, 0.0, 1.0), Trouble(1, 3.0, 9.0)), ())
    assert made.healthy_throughout(0.0, 3.0, workers=2)  # the second one
    assert not made.healthy_throughout(3.0, 3.5, workers=2)
    assert made.healthy_throughout(1.0 + RECOVERY, 9.0, workers=2)  # the first one


# Good clients


@pytest.mark.anyio
@pytest.mark.parametrize("call", CALLS)
async def test_a_good_answer_is_known_as_one_and_its_connection_is_kept(call: Call) -> None:
    async with FaultWorker("w0") as worker:
        client = GoodClient(worker.port)
        for _ in range(2):
            result = await client.ask(call)
            assert (result.outcome, result.status, result.worker) == (Outcome.ANSWERED, 200, "w0")
        client.close()
        assert (worker.connections, worker.requests) == (1, 2)


@pytest.mark.anyio
@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(
    ("fault", "outcome", "began"),
    [
        (Fault(Kind.REFUSE), Outcome.NO_CONNECTION, False),
        (Fault(Kind.ACCEPT_AND_HANG), Outcome.SILENT, False),
        (Fault(Kind.DIE_BEFORE_FIRST_BYTE), Outcome.CUT, False),
        (Fault(Kind.DIE_AFTER_HEAD), Outcome.CUT, False),
        (Fault(Kind.GARBAGE), Outcome.CUT, False),
        (Fault(Kind.STATUS, status=404), Outcome.STATUS, True),
        (Fault(Kind.DIE_MID_STREAM), Outcome.CUT, True),
        (Fault(Kind.RST_MID_STREAM), Outcome.CUT, True),
        (Fault(Kind.STALL), Outcome.SILENT, True),
        (Fault(Kind.BAD_CHUNKING), Outcome.CUT, True),
        (Fault(Kind.LENGTH_TOO_LONG), Outcome.CUT, True),
        (Fault(Kind.LENGTH_TOO_SHORT), Outcome.GARBLED, True),
        (Fault(Kind.HUGE), Outcome.TOO_LONG, True),
        (Fault(Kind.TRICKLE, seconds=0.0), Outcome.ANSWERED, True),
    ],
    ids=lambda value: value.kind if isinstance(value, Fault) else None,
)
async def test_a_client_says_how_an_answer_ended(fault: Fault, outcome: Outcome, began: bool, streamed: bool) -> None:
    async with FaultWorker("w0") as worker:
        worker.fault = fault
        client = GoodClient(worker.port, patience=1.0 if outcome is Outcome.SILENT else PATIENCE)
        result = await client.ask(replace(CALL, streamed=streamed, usage=not streamed))
        client.close()
        assert (result.outcome, result.began) == (outcome, began)
        if outcome is Outcome.STATUS:
            assert (result.status, result.code) == (404, "mock_404")


def reply(body: bytes) -> Reply:
    return Reply(Ending.COMPLETE, 200, {}, bytearray(body))


def event(text: str) -> bytes:
    return b'data: {"choices": [{"delta": {"content": "%b"}}]}\n\n' % text.encode()


@pytest.mark.parametrize(
    ("body", "outcome", "code"),
    [
        (event("id=t-1 worker=w t-1:0 t-1:1 t-1:2 end") + b"data: [DONE]\n\n", Outcome.ANSWERED, ""),
        (event("id=t-2 worker=w t-2:0 t-2:1 t-2:2 end") + b"data: [DONE]\n\n", Outcome.MISTAKEN, ""),
        (event("id=t-1 worker=w t-1:0 t-1:1 end") + b"data: [DONE]\n\n", Outcome.GARBLED, ""),
        (event("id=t-1 worker=w t-1:0 t-2:1 t-1:2 end") + b"data: [DONE]\n\n", Outcome.GARBLED, ""),
        (event("id=t-1 worker=w t-1:0 t-1:1 t-1:2 end"), Outcome.GARBLED, ""),
        (
            event("id=t-1 worker=w t-1:0") + b'\n\nevent: error\ndata: {"error": {"code": "worker_failed"}}\n\n',
            Outcome.ERROR_EVENT,
            "worker_failed",
        ),
        (b'data: {"choices": [], "usage": {"prompt_tokens": 1}}\n\ndata: [DONE]\n\n', Outcome.GARBLED, ""),
        (b"", Outcome.GARBLED, ""),
    ],
)
def test_a_stream_is_read_to_its_last_event(body: bytes, outcome: Outcome, code: str) -> None:
    result = read_result(CALL, reply(body.replace(b'{"error": ', b'{"error":')), 0.0, 1.0)
    assert (result.outcome, result.code) == (outcome, code)


def test_a_request_says_what_its_worker_is_to_answer() -> None:
    head, _, body = request_of(replace(CALL, words=30)).partition(b"\r\n\r\n")
    request = Request(head, body)
    assert (request.token, request.words, request.streamed, request.wants_usage) == ("t-1", 30, True, False)


# Rude clients


async def cancel(task: "asyncio.Task[str | None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.anyio
@pytest.mark.parametrize("name", sorted(MISDEEDS))
async def test_a_misdeed_ends_or_stays_and_then_leaves_nothing(name: str) -> None:
    async with FaultWorker("w0") as worker:
        worker.chunk_interval = 0.001
        task: asyncio.Task[str | None] = asyncio.ensure_future(MISDEEDS[name](worker.port, CALL))
        if name in ("read_a_byte_a_second", "read_nothing", "keep_the_body_back", "drip_the_head", "say_nothing"):
            await until(lambda: worker.open_connections == 1, PATIENCE)
            await asyncio.wait([task], timeout=0.5)
            assert (task.done(), worker.open_connections) == (False, 1)
            await cancel(task)
        else:
            async with asyncio.timeout(PATIENCE):
                assert await task is None
        await until(lambda: not worker.open_connections, PATIENCE)


@pytest.mark.anyio
@pytest.mark.parametrize("name", sorted(MISDEEDS))
async def test_a_misdeed_says_that_it_was_not_let_in(name: str) -> None:
    async with FaultWorker("w0") as worker:
        worker.stop()
        with pytest.raises(ConnectionRefusedError):
            await MISDEEDS[name](worker.port, CALL)


def test_nonsense_is_of_many_kinds() -> None:
    assert len(set(NONSENSE)) == len(NONSENSE) > 20


# Judging


def result(outcome: Outcome, status: int = 200, code: str = "", *, began: bool = True) -> Result:
    return Result(CALL, outcome, 0.0, 1.0, status, code, began)


@pytest.mark.parametrize(
    ("got", "met", "verdict"),
    [
        (result(Outcome.ANSWERED), [Fault(Kind.GARBAGE), GOOD], Verdict.ANSWERED),
        (result(Outcome.STATUS, 400, "mock_400"), [Fault(Kind.STATUS, status=400)], Verdict.PASSED_ON),
        (result(Outcome.STATUS, 413, "mock_413"), [], Verdict.PASSED_ON),
        (result(Outcome.STATUS, 500, "mock_500"), [Fault(Kind.STATUS, status=400)], Verdict.LOST),
        (result(Outcome.STATUS, 400, ""), [Fault(Kind.STATUS, status=400)], Verdict.LOST),
        (result(Outcome.STATUS, 503, "mock_503"), [Fault(Kind.STATUS, status=503)], Verdict.LOST),
        (result(Outcome.STATUS, 429, "mock_429"), [Fault(Kind.STATUS, status=429)], Verdict.LOST),
        (result(Outcome.STATUS, 503, "no_worker_available"), [], Verdict.LOST),
        (result(Outcome.ERROR_EVENT), [Fault(Kind.DIE_MID_STREAM)], Verdict.BROKEN),
        (result(Outcome.ERROR_EVENT), [GOOD, KILLED], Verdict.BROKEN),
        (result(Outcome.CUT), [Fault(Kind.STALL)], Verdict.BROKEN),
        (result(Outcome.CUT, began=False), [Fault(Kind.STALL)], Verdict.LOST),
        (result(Outcome.CUT), [GOOD], Verdict.LOST),
        (result(Outcome.ERROR_EVENT), [Fault(Kind.STALL), GOOD], Verdict.LOST),
        (result(Outcome.GARBLED), [Fault(Kind.LENGTH_TOO_SHORT)], Verdict.BROKEN),
        (result(Outcome.GARBLED), [Fault(Kind.DIE_MID_STREAM)], Verdict.WRONG),
        (result(Outcome.TOO_LONG), [Fault(Kind.HUGE)], Verdict.BROKEN),
        (result(Outcome.MISTAKEN), [Fault(Kind.LENGTH_TOO_SHORT)], Verdict.WRONG),
        (result(Outcome.SILENT), [Fault(Kind.STALL)], Verdict.LOST),
        (result(Outcome.NO_CONNECTION), [], Verdict.LOST),
    ],
)
def test_a_router_is_blamed_for_what_it_could_have_helped(got: Result, met: list[Fault], verdict: Verdict) -> None:
    assert judge(got, met, worker_was_well=True) is verdict
    elsewhere = Verdict.NOBODY_WELL if verdict is Verdict.LOST else verdict
    assert judge(got, met, worker_was_well=False) is elsewhere


def grown(seconds: int, growth: int, steps: int) -> Record:
    """A record whose second half grows in so many steps."""
    record, half = Record(seed=1), seconds // 2
    for second in range(seconds):
        share = max(second - half, 0) * steps // (seconds - 1 - half) / steps
        record.footprints.append(Footprint(10, 1, rss=10**8 + round(growth * share)))
    return record


@pytest.mark.parametrize(
    ("seconds", "growth", "steps", "complaints"),
    [
        (60, MOST_GROWTH, 20, 0),
        (60, MOST_GROWTH + 1, 20, 1),
        (300, MOST_GROWTH + 1, 20, 1),
        (60, MOST_GROWTH + 1, 1, 0),
        (10, MOST_GROWTH + 1, 4, 0),
    ],
)
def test_a_leak_in_a_long_run_is_complained_about(seconds: int, growth: int, steps: int, complaints: int) -> None:
    record = grown(seconds, growth, steps)
    check_memory(record)
    assert len(record.complaints) == complaints


# The whole


@pytest.mark.anyio
async def test_the_router_survives_a_short_run() -> None:
    # A seed that has most kinds of trouble early, a killed worker among them.
    record = await run_seed(385, Options(seconds=9.0, workers=5, clients=12))
    assert record.complaints == []
    assert record.verdicts[Verdict.ANSWERED] > 100
    assert record.verdicts[Verdict.BROKEN] > 0
    assert record.retries > 0
    assert record.misdeeds == 54
