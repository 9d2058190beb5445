"""Workers that are taken out, and a router that is told to stop, while answers stream."""

import asyncio
import time

import httpx

from ..rivals.routers import Router
from .client import lost, tally, unlike
from .scenario import Outcome, scenario
from .stage import stage, time_until


@scenario(
    fault="SIGTERM while 4 streams of 4 s run",
    right="the streams end well, and the router exits with 0 soon after",
    source="smg #1491, #1745",
)
async def sigterm_while_streaming(router: Router) -> Outcome:
    async with stage(router, workers=1) as at:
        at.workers[0].chunk_interval = 0.4
        asking = asyncio.create_task(at.client.ask_many(4, stream=True))
        await time_until(lambda: at.prompts == [4], 5)
        await asyncio.sleep(0.8)
        at.router.terminate()
        answers = await asking
        ended = time.monotonic()
        code = await _exit_code(at.router.process, 15)
        took = time.monotonic() - ended
        ok = lost(answers) == 0 and code == 0
        shown = f"exit code {code} after {took:.1f} s" if code is not None else "still there after 15 s"
        return Outcome(ok, f"{tally(answers)}; {shown}")


async def _exit_code(process: asyncio.subprocess.Process, patience: float) -> int | None:
    try:
        return await asyncio.wait_for(process.wait(), patience)
    except TimeoutError:
        return None


@scenario(
    fault="DELETE /workers/{id} while 4 streams of 4 s run on it",
    right="they end well; what comes later goes to the other worker",
    source="smg #1491, #1745; production-stack (no drain)",
)
async def remove_while_streaming(router: Router) -> Outcome:
    async with stage(router, *router.admin_flags, key=router.admin_key) as at:
        for worker in at.workers:
            worker.chunk_interval = 0.4
        prompt = unlike(1) * 4
        asking = [asyncio.create_task(at.client.ask(prompt, stream=True)) for _ in range(4)]
        await time_until(lambda: sum(at.prompts) == 4, 5)
        await asyncio.sleep(0.8)
        leaving = at.busiest
        on_it = leaving.prompts
        status = await _delete(at.client.http, at.router.url, leaving.url)
        await asyncio.sleep(0.5)
        later = await asyncio.gather(*(at.client.ask(prompt) for _ in range(6)))
        answers = await asyncio.gather(*asking)
        strayed = leaving.prompts - on_it
        ok = status < 300 and lost(answers) == 0 and lost(later) == 0 and strayed == 0
        return Outcome(
            ok, f"{status}; streams {tally(answers)}; later ones {tally(later)}, {strayed} to the removed one"
        )


async def _delete(http: httpx.AsyncClient, router_url: str, worker_url: str) -> int:
    workers = (await http.get(f"{router_url}/workers")).json()["workers"]
    number = next(worker.get("id") for worker in workers if worker["url"] == worker_url)
    return (await http.delete(f"{router_url}/workers/{number}")).status_code


@scenario(
    fault="POST /workers with a worker that is not there, while 20 requests/s come for 5 s",
    right="nothing of it is felt",
    source="sglang #2796, #12621",
)
async def add_a_dead_worker(router: Router) -> Outcome:
    async with stage(router, *router.admin_flags, key=router.admin_key) as at:
        tasks = []
        for number in range(100):
            if number == 10:
                dead = {"url": "http://127.0.0.1:9"}
                added = await at.client.http.post(f"{at.router.url}/workers", json=dead)
            tasks.append(asyncio.create_task(at.client.ask(unlike(number))))
            await asyncio.sleep(0.05)
        answers = await asyncio.gather(*tasks)
        slow = sum(answer.seconds > 1 for answer in answers)
        ok = added.status_code < 300 and lost(answers) == 0 and slow == 0
        return Outcome(ok, f"{added.status_code}; {tally(answers)}, {slow} took more than 1 s")


CHANGES = (
    sigterm_while_streaming,
    remove_while_streaming,
    add_a_dead_worker,
)
