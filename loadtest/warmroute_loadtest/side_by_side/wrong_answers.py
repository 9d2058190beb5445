"""Workers that are there, and answer with an error, with half an answer, or with no answer at all."""

import asyncio
import time

import orjson

from ..chaos.answers import response
from ..chaos.connection import Connection, Request
from ..chaos.faults import GOOD, Fault, Kind
from ..rivals.routers import Router
from .client import lost, tally
from .scenario import Outcome, scenario
from .stage import megabytes, shown_seconds, stage


@scenario(
    fault="a worker dies in the middle of a stream",
    right="an SSE `error` event says so, and the stream ends",
    source="smg #1682",
)
async def dies_mid_stream(router: Router) -> Outcome:
    async with stage(router, workers=1) as at:
        at.workers[0].chunk_interval = 0.05
        at.workers[0].fault = Fault(Kind.RST_MID_STREAM, after=4)
        answer = await at.client.ask(stream=True)
        if answer.has_error_event:
            return Outcome(True, "error event, then the end")
        return Outcome(False, "connection cut" if answer.ending == "cut" else f"{answer}: looks like an end")


@scenario(
    fault="a whole (not streamed) answer is shorter than its Content-Length",
    right="the client can tell that it is not whole, or gets a 502",
    source="issue 4, part 4",
)
async def truncated_answer(router: Router) -> Outcome:
    async with stage(router, workers=1) as at:
        at.workers[0].fault = Fault(Kind.LENGTH_TOO_LONG)
        answer = await at.client.ask()
        noticed = answer.ending == "cut" or (answer.status or 0) >= 500
        return Outcome(noticed, "connection cut" if answer.ending == "cut" else f"{answer}")


@scenario(
    fault="60 bad requests, each answered with 400 by the workers, then a good one",
    right="the 400s are passed on, and the good one is answered: no fault of any worker",
    source="sglang #25811, #26713",
)
async def bad_requests(router: Router) -> Outcome:
    async with stage(router) as at:
        at.all_have(Fault(Kind.STATUS, status=400))
        bad = await at.client.ask_in_turn(60)
        at.all_have(GOOD)
        good = await at.client.ask()
        ok = tally(bad) == "60×400" and good.right
        return Outcome(ok, f"{tally(bad)}; then a good one: {good}")


@scenario(
    fault="1 of 2 engines answers 503 (queue full) to everything, then recovers",
    right="the other one takes the requests, and the first is used again within 10 s",
    source="sglang #39464, smg #2163",
)
async def queue_full_503(router: Router) -> Outcome:
    return await _queue_full(router, 503)


@scenario(
    fault="1 of 2 engines answers 429 (queue full) to everything, then recovers",
    right="the other one takes the requests, and the first is used again within 10 s",
    source="sglang #39464, #13894",
)
async def queue_full_429(router: Router) -> Outcome:
    return await _queue_full(router, 429)


async def _queue_full(router: Router, status: int) -> Outcome:
    """It answers as SGLang's scheduler does."""
    kind = "SERVICE_UNAVAILABLE" if status == 503 else "TOO_MANY_REQUESTS"
    error = {"object": "error", "message": "The request queue is full.", "type": kind, "code": status}
    refusal = response(orjson.dumps(error), b"%d Full" % status, b"retry-after: 1\r\n")

    async def refuse(connection: Connection, request: Request) -> None:
        del request
        await connection.send(refusal)

    async with stage(router) as at:
        full = await at.favourite()
        full.script = refuse
        answers = await at.client.ask_in_turn(60)
        full.script = None
        seen, used = full.prompts, None
        started = time.monotonic()
        while used is None and time.monotonic() - started < 65:
            await at.client.ask_many(8)
            used = time.monotonic() - started if full.prompts > seen else None
            await asyncio.sleep(0.1)
        ok = lost(answers) == 0 and used is not None and used < 10
        return Outcome(ok, f"{lost(answers)} of 60 lost ({tally(answers)}); used again {shown_seconds(used, 65)}")


@scenario(
    fault="all engines are full for a moment: 60 requests get 429 and Retry-After; then there is room",
    right="429 and Retry-After are passed on; the next request is answered at once",
    source="sglang #39464, #13894",
)
async def all_queues_full(router: Router) -> Outcome:
    async with stage(router) as at:
        at.all_have(Fault(Kind.STATUS, status=429))
        refused = [answer for _ in range(6) for answer in await at.client.ask_many(10)]
        at.all_have(GOOD)
        next_one = await at.client.ask()
        hinted = sum("retry-after" in answer.headers for answer in refused)
        ok = all(answer.status == 429 for answer in refused) and hinted == 60 and next_one.right
        return Outcome(ok, f"{tally(refused)}, {hinted} with Retry-After; the next one: {next_one}")


@scenario(
    fault="1 of 2 workers answers 500 to everything; 60 requests",
    right="after a few of them it is left out: at most 10 clients see a 500",
    source="issue 4, part 3",
)
async def internal_errors(router: Router) -> Outcome:
    async with stage(router) as at:
        (await at.favourite()).fault = Fault(Kind.STATUS, status=500)
        answers = await at.client.ask_in_turn(60)
        return Outcome(lost(answers) <= 10, f"{lost(answers)} of 60 lost ({tally(answers)})")


@scenario(
    fault="1 of 2 workers answers with bytes that are not HTTP; 40 requests",
    right="none is lost, and no client sees them",
    source="issue 4, chaos suite",
)
async def garbage(router: Router) -> Outcome:
    async with stage(router) as at:
        (await at.favourite()).fault = Fault(Kind.GARBAGE)
        answers = await at.client.ask_in_turn(40)
        return Outcome(lost(answers) == 0, f"{lost(answers)} of 40 lost ({tally(answers)})")


@scenario(
    fault="a worker sends more than its Content-Length says (10 times), then answers well (20 times)",
    right="what was too much is in nobody's answer: all 20 are right",
    source="issue 4, chaos suite",
)
async def more_than_promised(router: Router) -> Outcome:
    async with stage(router, workers=1) as at:
        at.workers[0].fault = Fault(Kind.LENGTH_TOO_SHORT)
        await at.client.ask_in_turn(10, patience=5)
        at.workers[0].fault = GOOD
        answers = await at.client.ask_in_turn(20)
        return Outcome(lost(answers) == 0, f"{lost(answers)} of 20 wrong ({tally(answers)})")


@scenario(
    fault="a worker refuses (413) before it has read a body of 5 MB",
    right="the client gets the 413",
    source="issue 4, chaos suite",
)
async def refused_early(router: Router) -> Outcome:
    async with stage(router, workers=1) as at:
        at.workers[0].fault = Fault(Kind.EARLY_RESPONSE, status=413)
        answers = [await at.client.ask("x" * 5_000_000) for _ in range(5)]
        return Outcome(tally(answers) == "5×413", tally(answers))


@scenario(
    fault="a worker sends a 100 and a 103 before its answer",
    right="the answer gets through",
    source="issue 4, chaos suite",
)
async def interim_answers(router: Router) -> Outcome:
    async with stage(router, workers=1) as at:
        at.workers[0].fault = Fault(Kind.INTERIM)
        answers = await at.client.ask_in_turn(5)
        return Outcome(lost(answers) == 0, tally(answers))


@scenario(
    fault="a worker answers with a header of 1 MB",
    right="an error that the client can read, and the next good answer within 5 s",
    source="issue 4, part 7",
)
async def huge_answer_header(router: Router) -> Outcome:
    async with stage(router, workers=1) as at:
        at.workers[0].fault = Fault(Kind.HUGE_HEADER)
        answers = await at.client.ask_in_turn(3, patience=10)
        at.workers[0].fault = GOOD
        after = await at.until_served(20)
        ok = all(answer.ending == "complete" and answer.status in (500, 502, 503) for answer in answers)
        ok = ok and after is not None and after < 5
        return Outcome(ok, f"{tally(answers)}; the next good answer {shown_seconds(after, 20)}")


@scenario(
    fault="a worker answers with 1 GB",
    right="it gets through, or is refused, in little memory (50 MB at most)",
    source="issue 4, chaos suite",
)
async def huge_answer(router: Router) -> Outcome:
    size = 1 << 30
    async with stage(router, workers=1) as at:
        await at.client.ask()
        at.workers[0].fault = Fault(Kind.HUGE, size=size)
        before = at.router.rss
        at.router.watch_peak()
        got = await at.client.drain()
        grown = at.router.peak_rss - before
        return Outcome(grown < 50e6, f"{got / 1e9:.2f} GB got through, {megabytes(grown)} more memory")


WRONG_ANSWERS = (
    dies_mid_stream,
    truncated_answer,
    bad_requests,
    queue_full_503,
    queue_full_429,
    all_queues_full,
    internal_errors,
    garbage,
    more_than_promised,
    refused_early,
    interim_answers,
    huge_answer_header,
    huge_answer,
)
