"""(e) A small version of (d) on real workers: SmolLM2-135M on this machine's cores, one router after the other."""

import os

from ..bench.load import Concurrency
from ..bench.run import Bench, Plan
from ..bench.workload import made_workload
from ..processes import processes, url_in
from .contenders import POLICIES, Contender, Setting, failures_told, lanes
from .fleet import Fleet
from .outcome import BASE, outcome, table
from .results import Measure, Results

PART = "real"
MODEL = "smollm2-135m"
WORKERS = 2
POOL_TOKENS = 4352
"""KV pool of each worker: what the chats have in all fits both together, but not one."""
CHATS = "multi_turn?turns=4&system_prompts=6&system_tokens=512&question_tokens=32&output_tokens=16&think_s=0"
SESSIONS = 12
CONCURRENCY = 4
CASE = f"chats of 4 turns on 6 system prompts, {CONCURRENCY} at a time"
ENTRANTS = ("warmroute", BASE, "sglang-router", "sglang-router-tuned")


async def race(setting: Setting, results: Results) -> None:
    contenders = [each for each in setting.chosen(POLICIES) if each.name in ENTRANTS]
    pending = [
        (repetition, each)
        for repetition in range(setting.repetitions)
        for each in contenders
        if not results.has(PART, CASE, each.name, repetition)
    ]
    if not pending:
        return
    threads = max(1, (os.cpu_count() or 1) // WORKERS)
    options = ("--model", MODEL, "--port", "0", "--threads", str(threads), "--log-level", "warning")
    with processes() as children:
        started = [
            children.spawn("warmroute_worker", *options, "--max-total-tokens", str(POOL_TOKENS))
            for _ in range(WORKERS)
        ]
        fleet = Fleet([url_in(children.announcement(process)) for process in started])
        for repetition, contender in pending:
            for name, measure in (await _run(contender, fleet, setting.scale, repetition)).items():
                results.add(PART, CASE, name, measure)


async def _run(contender: Contender, fleet: Fleet, scale: float, seed: int) -> dict[str, Measure]:
    await fleet.reset()
    asked = made_workload(CHATS, starts=max(1, int(SESSIONS * scale)), seed=seed)
    async with lanes({contender: fleet.urls}) as routers:
        measures = {}
        for lane in routers:
            plan = Plan(urls=[lane.url], workload=asked, load=Concurrency(CONCURRENCY), model=MODEL, seed=seed)
            with failures_told(lane.name):
                measures[lane.name] = outcome(await Bench(plan).run(), await fleet.served())
    return measures


def markdown(results: Results) -> str:
    return "\n\n".join(
        f"**{case}**\n\n{table(results, PART, case, [name for name in ENTRANTS if name in results.contenders(PART)])}"
        for case in results.cases(PART)
    )
