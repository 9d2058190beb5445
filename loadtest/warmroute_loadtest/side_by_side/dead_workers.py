"""Workers that die, hang, come back, or are not there to begin with."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

from ..chaos.connection import Connection, Request
from ..chaos.faults import Fault, Kind
from ..rivals.routers import Router
from .client import Answer, lost, tally, unlike
from .scenario import Outcome, scenario
from .stage import shown_seconds, stage, time_until
from .workers import Worker


@scenario(
    fault="1 of 4 workers is killed (SIGKILL); then 40 requests, also with prompts that it held",
    right="none is lost: a refused connection goes to another worker",
    source="NeMo-RL PR #3613",
)
async def killed_worker(router: Router) -> Outcome:
    async with stage(router, workers=4) as at:
        (await at.favourite()).stop()
        answers = await at.client.ask_in_turn(40)
        return Outcome(lost(answers) == 0, f"{lost(answers)} of 40 lost ({tally(answers)})")


@scenario(
    fault="a worker is killed with requests waiting for their answer, the other one is well",
    right="none is lost: nothing of an answer has been sent yet, so the other worker can have them",
    source="NeMo-RL PR #3613",
)
async def killed_with_requests_waiting(router: Router) -> Outcome:
    return await _killed_while_waiting(router, stream=False)


@scenario(
    fault="the same with streamed requests: the engine has sent the head, and no token yet",
    right="none is lost",
    source="issue 4, part 2",
)
async def killed_with_streams_waiting(router: Router) -> Outcome:
    return await _killed_while_waiting(router, stream=True)


async def _killed_while_waiting(router: Router, *, stream: bool) -> Outcome:
    async def head_first(connection: Connection, request: Request) -> None:
        await connection.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        await connection.hang()

    async with stage(router) as at:
        for worker in at.workers:
            worker.delay = 2.0
        victim = at.workers[0]
        if stream:
            victim.script = head_first
        asking = asyncio.create_task(at.client.ask_many(20, stream=stream))
        await time_until(lambda: sum(at.prompts) == 20, 5)
        caught = victim.concurrent
        victim.stop()
        answers = await asking
        return Outcome(
            lost(answers) == 0, f"{lost(answers)} of {caught} that waited there lost ({tally(answers)} in all)"
        )


@scenario(
    fault="the worker that holds a prompt accepts it and breaks the connection; 3 others are well",
    right="another one answers it; 2 tries at most on the broken one (a kept connection, a new one)",
    source="NeMo-RL PR #3613",
)
async def retries_go_elsewhere(router: Router) -> Outcome:
    async with stage(router, workers=4) as at:
        prompt = unlike(1) * 4
        await at.client.ask(prompt)
        holder = at.busiest
        holder.fault = Fault(Kind.DIE_BEFORE_FIRST_BYTE)
        before = at.prompts
        answer = await at.client.ask(prompt)
        tries = [now - then for now, then in zip(at.prompts, before, strict=True)]
        on_broken = tries.pop(at.workers.index(holder))
        return Outcome(
            answer.right and on_broken <= 2, f"{answer}; tries: {on_broken} on the broken one, {sum(tries)} on others"
        )


@scenario(
    fault="1 of 2 workers hangs (as under SIGSTOP: connects, answers nothing, nor does its /health)",
    right="no request sent 30 s later or more waits for it; those caught there wait for a minute at most",
    source="production-stack #749, sglang #9926",
)
async def hangs(router: Router) -> Outcome:
    patience, watched = 60.0, 45
    async with stage(router) as at:
        hung = await at.favourite()
        hung.fault, hung.health = Fault(Kind.ACCEPT_AND_HANG), "hang"
        started = time.monotonic()
        sent: list[tuple[float, asyncio.Task[Answer]]] = []
        while (now := time.monotonic() - started) < watched:
            prompt = unlike(len(sent))
            sent.append((now, asyncio.create_task(at.client.ask(prompt, patience=patience))))
            await asyncio.sleep(0.5)
        answers = [(when, await task) for when, task in sent]
        late = [answer for when, answer in answers if when > 30]
        caught = [answer for _, answer in answers if answer.seconds > 2 or not answer.right]
        stuck = sum(answer.ending == "timeout" for answer in caught)
        longest = max(answer.seconds for _, answer in answers)
        ok = lost(late) == 0 and stuck == 0
        shown = (
            f"{stuck} still wait after {patience:.0f} s" if stuck else f"all answered, after {longest:.0f} s at most"
        )
        return Outcome(ok, f"{len(caught)} of {len(sent)} caught: {shown}; {lost(caught)} lost")


@scenario(
    fault="1 of 2 workers' host is gone: connecting to it takes for ever; 40 requests, 4 at a time",
    right="none is lost, none takes more than 15 s",
    source="production-stack #749, sglang #9926",
)
async def vanished_host(router: Router) -> Outcome:
    async with stage(router) as at:
        async with _unreachable(await at.favourite()):
            answers = [answer for _ in range(10) for answer in await at.client.ask_many(4)]
        longest = max(answer.seconds for answer in answers)
        ok = lost(answers) == 0 and longest < 15
        return Outcome(ok, f"{lost(answers)} of 40 lost ({tally(answers)}), the longest took {longest:.1f} s")


@asynccontextmanager
async def _unreachable(worker: Worker) -> AsyncIterator[None]:
    """Its port neither accepts nor refuses: a backlog that is full, and that nobody empties."""
    worker.stop()
    await asyncio.sleep(0.1)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", worker.port))
        listener.listen(0)
        with ExitStack() as fillers:
            for _ in range(4):
                filler = fillers.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", worker.port))
            await asyncio.sleep(0.1)
            yield


@scenario(
    fault="a worker closes its idle connection in the instant in which it is used again (200 requests)",
    right="none is lost: sent again on a new connection",
    source="issue 4, part 2; vLLM's and uvicorn's 5 s keep-alive",
)
async def stale_keep_alive(router: Router) -> Outcome:
    async with stage(router, workers=1) as at:
        at.workers[0].fault = Fault(Kind.CLOSE_ON_REUSE)
        answers = await at.client.ask_in_turn(200)
        return Outcome(lost(answers) == 0, f"{lost(answers)} of 200 lost ({tally(answers)})")


@scenario(
    fault="all workers die, 30 requests come, and 10 s later the workers are back",
    right="503 with Retry-After meanwhile, and served again within 10 s of their return",
    source="sglang #7028, #3877, #15611; smg #2247",
)
async def all_down_then_back(router: Router) -> Outcome:
    async with stage(router) as at:
        await at.client.ask_in_turn(4)
        for worker in at.workers:
            worker.stop()
        started = time.monotonic()
        answers = await at.client.ask_in_turn(30)
        await asyncio.sleep(max(0.0, 10 - (time.monotonic() - started)))
        for worker in at.workers:
            await worker.restart()
        back = await at.until_served(90)
        hinted = sum("retry-after" in answer.headers for answer in answers)
        ok = all(answer.status == 503 for answer in answers) and hinted == 30 and back is not None and back < 10
        return Outcome(
            ok, f"{tally(answers)}, {hinted} with Retry-After; served {shown_seconds(back, 90)} of the return"
        )


@scenario(
    fault="the router starts with no worker up; they come 5 s later",
    right="it starts, says 503 meanwhile, and serves within 10 s of their coming",
    source="sglang #2778, #3802, #4208",
)
async def starts_with_no_worker(router: Router) -> Outcome:
    async with stage(router, down=(0, 1)) as at:
        first = await at.client.ask()
        await asyncio.sleep(5)
        for worker in at.workers:
            await worker.restart()
        back = await at.until_served(60)
        ok = first.status == 503 and back is not None and back < 10
        return Outcome(ok, f"{first} meanwhile; served {shown_seconds(back, 60)} of their coming")


@scenario(
    fault="1 of 2 workers is not up when the router starts",
    right="the other one serves at once",
    source="sglang #2796, #12621",
)
async def starts_with_one_of_two(router: Router) -> Outcome:
    async with stage(router, down=(0,)) as at:
        answers = await at.client.ask_in_turn(10)
        return Outcome(lost(answers) == 0, f"{tally(answers)}")


@scenario(
    fault="a worker restarts on its address (gone for 1 s) under 20 requests/s; the other one is well",
    right="none is lost",
    source="sglang #9926, NeMo-RL PR #3613",
)
async def restart_on_the_same_address(router: Router) -> Outcome:
    async with stage(router) as at:
        restarted = await at.favourite()
        for worker in at.workers:
            worker.delay = 0.2
        restarting: asyncio.Task[None] | None = None
        tasks: list[asyncio.Task[Answer]] = []
        for number in range(100):
            tasks.append(asyncio.create_task(at.client.ask(unlike(number))))
            if number == 20:
                restarting = asyncio.create_task(restarted.restart(gone=1.0))
            await asyncio.sleep(0.05)
        answers = await asyncio.gather(*tasks)
        assert restarting is not None
        await restarting
        return Outcome(lost(answers) == 0, f"{lost(answers)} of 100 lost ({tally(answers)})")


@scenario(
    fault="every second probe of one worker's /health fails for 12 s; its answers are fine (probes every 1 s)",
    right="nothing is lost, and its prompts stay with it",
    source="sglang #9198, #22511",
)
async def flapping_health(router: Router) -> Outcome:
    async with stage(router, "--health-check-interval-secs", "1") as at:
        prompt = unlike(1) * 4
        await at.client.ask(prompt)
        holder = at.busiest
        others = next(worker for worker in at.workers if worker is not holder)
        answers: list[Answer] = []
        for number in range(12):
            holder.health = "503" if number % 2 else "up"
            answers += [await at.client.ask(prompt) for _ in range(2)]
            await asyncio.sleep(1)
        strayed = others.prompts
        return Outcome(
            lost(answers) == 0 and strayed <= 2, f"{lost(answers)} of 24 lost; {strayed} sent to the other worker"
        )


DEAD_WORKERS = (
    killed_worker,
    killed_with_requests_waiting,
    killed_with_streams_waiting,
    retries_go_elsewhere,
    hangs,
    vanished_host,
    stale_keep_alive,
    all_down_then_back,
    starts_with_no_worker,
    starts_with_one_of_two,
    restart_on_the_same_address,
    flapping_health,
)
