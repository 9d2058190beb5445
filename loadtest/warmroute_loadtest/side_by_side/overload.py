"""More requests than there is room for, and how what there is gets spread over workers."""

import asyncio

from ..rivals.routers import Router
from .client import Answer, lost, tally, unlike
from .scenario import Outcome, scenario
from .stage import Stage, stage, time_until


@scenario(
    fault="--max-concurrent-requests 4, 24 streams of 1 s at once",
    right="4 in flight at the workers at any time, all are served",
    source="sglang #21163, smg #1571, #2053, #2240",
)
async def concurrency_cap(router: Router) -> Outcome:
    async with stage(router, "--max-concurrent-requests", "4", workers=1) as at:
        worker = at.workers[0]
        worker.chunk_interval = 0.1
        answers = await at.client.ask_many(24, stream=True)
        most = worker.max_concurrent
        return Outcome(most == 4 and lost(answers) == 0, f"{most} in flight at most; {tally(answers)}")


@scenario(
    fault="--max-concurrent-requests 4 --queue-size 2, 40 requests of 1 s at once",
    right="4 run, 2 wait, 34 get a 429 with Retry-After at once",
    source="smg #2265, #2247",
)
async def queue_bound(router: Router) -> Outcome:
    async with stage(router, "--max-concurrent-requests", "4", "--queue-size", "2", workers=1) as at:
        at.workers[0].delay = 1.0
        answers = await at.client.ask_many(40)
        refused = [answer for answer in answers if answer.status == 429]
        hinted = sum("retry-after" in answer.headers for answer in refused)
        at_once = all(answer.seconds < 0.9 for answer in refused)
        ok = len(refused) == hinted == 34 and lost(answers) == 34 and at_once
        return Outcome(ok, f"{tally(answers)}; {hinted} with Retry-After")


@scenario(
    fault="--max-concurrent-requests 1 --queue-timeout-secs 20, 5 requests of 1 s at once",
    right="all are served: none has to wait for 20 s",
    source="found with 0.3.2: 408 after 0.3 s",
)
async def queue_patience(router: Router) -> Outcome:
    flags = ("--max-concurrent-requests", "1", "--queue-timeout-secs", "20")
    async with stage(router, *flags, workers=1) as at:
        at.workers[0].delay = 1.0
        answers = await at.client.ask_many(5)
        return Outcome(lost(answers) == 0, tally(answers))


@scenario(
    fault="--max-concurrent-requests 1 --queue-timeout-secs 2, a request behind one of 8 s",
    right="it gets an error after 2 s",
    source="issue 4, part 6",
)
async def queue_timeout(router: Router) -> Outcome:
    flags = ("--max-concurrent-requests", "1", "--queue-timeout-secs", "2")
    async with stage(router, *flags, workers=1) as at:
        at.workers[0].delay = 8.0
        first = asyncio.create_task(at.client.ask())
        await time_until(lambda: at.workers[0].prompts == 1, 5)
        second = await at.client.ask()
        first.cancel()
        ok = (second.status or 0) in (408, 429, 503, 504) and 1.5 < second.seconds < 3
        return Outcome(ok, f"{second} after {second.seconds:.1f} s")


@scenario(
    fault="--max-concurrent-requests 1, 10 requests, a tenth of a second apart, each of 0.3 s",
    right="served in the order in which they came",
    source="smg #2265",
)
async def queue_order(router: Router) -> Outcome:
    async with stage(router, "--max-concurrent-requests", "1", workers=1) as at:
        at.workers[0].delay = 0.3
        ended: list[int] = []

        async def ask(number: int) -> Answer:
            answer = await at.client.ask(unlike(number))
            ended.append(number)
            return answer

        tasks = []
        for number in range(10):
            tasks.append(asyncio.create_task(ask(number)))
            await asyncio.sleep(0.1)
        answers = await asyncio.gather(*tasks)
        served = [number for number in ended if answers[number].right]
        return Outcome(served == list(range(10)), f"{tally(answers)}; order {' '.join(map(str, served))}")


@scenario(
    fault="--max-concurrent-requests 1, 5 clients leave while they wait in the queue",
    right="no worker works for them",
    source="issue 4, part 6",
)
async def leaves_the_queue(router: Router) -> Outcome:
    async with stage(router, "--max-concurrent-requests", "1", workers=1) as at:
        worker = at.workers[0]
        worker.delay = 3.0
        first = asyncio.create_task(at.client.ask())
        await time_until(lambda: worker.prompts == 1, 5)
        await at.client.ask_many(5, patience=1.0)
        worker.delay = 0.2
        await first
        last = await at.client.ask()
        wasted = worker.prompts - 2
        ok = wasted == 0 and last.right
        return Outcome(ok, f"{wasted} of 5 sent to the worker all the same; then a good one: {last}")


@scenario(
    fault="500 requests at the same time, 2 workers, no cap asked for",
    right="all are served",
    source="sglang #13894, production-stack #448",
)
async def five_hundred_at_once(router: Router) -> Outcome:
    async with stage(router) as at:
        for worker in at.workers:
            worker.delay = 1.0
        answers = await at.client.ask_many(500, patience=60)
        return Outcome(lost(answers) == 0, tally(answers))


@scenario(
    fault="--policy power_of_two, 1 of 4 workers takes 4 s, the others 0.05 s; 160 requests by 16 clients",
    right="the slow one gets far less than its fourth (20 at most)",
    source="smg #2146",
)
async def power_of_two_with_a_slow_worker(router: Router) -> Outcome:
    async with stage(router, "--policy", "power_of_two", workers=4) as at:
        for worker in at.workers:
            worker.delay = 0.05
        at.workers[0].delay = 4.0
        await _closed_loop(at, clients=16, requests=160)
        return Outcome(at.prompts[0] <= 20, f"slow one {at.prompts[0]}, others {_spread(at.prompts[1:])}")


async def _closed_loop(at: Stage, *, clients: int, requests: int) -> None:
    numbers = iter(range(requests))

    async def client() -> None:
        for number in numbers:
            await at.client.ask(unlike(number))

    await asyncio.gather(*(client() for _ in range(clients)))


@scenario(
    fault="40 unlike prompts, one after the other, 4 idle workers",
    right="spread: none gets more than half",
    source="sglang #32983, #6164; smg #2096",
)
async def cold_prompts(router: Router) -> Outcome:
    async with stage(router, workers=4) as at:
        answers = await at.client.ask_in_turn(40)
        return Outcome(max(at.prompts) <= 20 and lost(answers) == 0, _spread(at.prompts))


@scenario(
    fault="60 requests of 1 s at once that share a system prompt of 2,000 characters, 4 workers",
    right="spread: none gets more than half",
    source="sglang #34513, #31170, #21199; production-stack #957",
)
async def shared_system_prompt(router: Router) -> Outcome:
    async with stage(router, workers=4) as at:
        system = ("You are a careful assistant who answers in short sentences. " * 34)[:2000]
        await at.client.ask(system)
        for worker in at.workers:
            worker.delay = 1.0
        answers = await asyncio.gather(*(at.client.ask(f"{system} {unlike(n)}") for n in range(60)))
        return Outcome(max(at.prompts) <= 31 and lost(answers) == 0, _spread(at.prompts))


def _spread(prompts: list[int]) -> str:
    return " / ".join(str(count) for count in sorted(prompts, reverse=True))


OVERLOAD = (
    concurrency_cap,
    queue_bound,
    queue_patience,
    queue_timeout,
    queue_order,
    leaves_the_queue,
    five_hundred_at_once,
    power_of_two_with_a_slow_worker,
    cold_prompts,
    shared_system_prompt,
)
