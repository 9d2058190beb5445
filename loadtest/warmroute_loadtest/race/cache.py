"""(d) Hit rate and TTFT by workload: mock workers with LRU caches and an engine's pace, as `warmroute bench` sees it.

All routers run at the same time, each with a fleet of its own, and get the same requests at the same times: so they
meet the same moments of the machine. That is fair as long as it has time to spare, since the workers only wait: what
it spent is measured as `busy`, and how late requests were sent as `late`. A burst is too much for that: there, the
routers run in turns.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from math import inf
from pathlib import Path
from typing import NamedTuple

from ..bench.load import Rate
from ..bench.record import Run
from ..bench.run import Bench, Plan
from ..bench.workload import Workload as Asked
from ..bench.workload import made_workload
from ..processes import Processes, processes, url_in
from ..traces import Trace
from .contenders import POLICIES, Contender, Lane, Setting, failures_told, lanes
from .fleet import Fleet
from .outcome import BASE, outcome, over_base, table
from .results import Results

PART = "cache"
BLOCK_TOKENS = 16
LONGEST = 180.0
"""Seconds after which a run sends nothing more."""
GRACE = 60.0
_BURST = "all at once"
LOADS = {"below saturation": 0.6, "above saturation": 1.3, _BURST: inf}
"""Of what the fleet could prefill if no prompt block were ever computed twice."""


class Workload(NamedTuple):
    name: str
    spec: str
    """As the simulator and `warmroute bench` write it."""
    size: int
    """Requests, or chats."""
    prefill_rate: float
    """Tokens/s of one worker. Slow, so that requests are few and the machine's own time hardly counts."""
    kv_tokens: int
    """Of one worker. Where there is much to share, it fits the fleet, but not one worker."""
    workers: int = 4
    loads: Sequence[str] = ("below saturation", "above saturation")
    in_turns: Collection[str] = ()
    """Contenders that run one after the other, and no others: where requests come too fast for all at once."""


WORKLOADS = (
    # The shape of the LMSYS blog: eight workers, caches that hold everything, and all requests at once.
    Workload(
        "gsp, 64 groups, as in the blog",
        "generated_shared_prefix",
        1024,
        3000,
        400_000,
        workers=8,
        loads=(_BURST,),
        in_turns=("warmroute", BASE, "sglang-router", "smg", "vllm-router"),
    ),
    Workload("gsp, 64 groups", "generated_shared_prefix", 400, 2400, 65_536),
    Workload("one hot group", "shared_prompt?question_tokens=256&output_tokens=128", 400, 1200, 65_536),
    Workload("Zipf groups", "zipf?output_tokens=128", 400, 3000, 81_920),
    Workload(
        "agents",
        "multi_turn?turns=10&system_prompts=2&system_tokens=12288&question_tokens=1024&output_tokens=128&think_s=1",
        50,
        6000,
        262_144,
    ),
    Workload("nothing shared", "unique?output_tokens=128", 400, 4800, 65_536),
)
TPOT = 0.002
STREAM_INTERVAL = 64


async def race(setting: Setting, results: Results) -> None:
    for workload in WORKLOADS:
        entrants = [
            each for each in setting.chosen(POLICIES) if not workload.in_turns or each.name in workload.in_turns
        ]
        pending = [
            (load, repetition, missing)
            for repetition in range(setting.repetitions)
            for load in workload.loads
            if (
                missing := [
                    it for it in entrants if not results.has(PART, _case(workload, load), it.name, repetition)
                ]
            )
        ]
        with processes() if pending else nullcontext() as children:
            fleets = start_fleets(children, workload, entrants) if children else {}
            for load, repetition, missing in pending:
                for heat in [[each] for each in missing] if workload.in_turns else [missing]:
                    placed = {each: fleets[each] for each in heat}
                    measures = await run(workload, LOADS[load], placed, setting.scale, repetition)
                    for name, measure in measures.items():
                        results.add(PART, _case(workload, load), name, measure)


def _case(workload: Workload, load: str) -> str:
    return f"{workload.name}, {load}"


def start_fleets(
    children: Processes, workload: Workload, contenders: Sequence[Contender]
) -> Mapping[Contender, Fleet]:
    options = {
        "--blocks": workload.kv_tokens // BLOCK_TOKENS,
        "--block-tokens": BLOCK_TOKENS,
        "--prefill-rate": workload.prefill_rate,
        "--tpot": TPOT,
        "--stream-interval": STREAM_INTERVAL,
    }
    flags = [str(part) for option in options.items() for part in option]
    started = {
        each: [children.spawn("warmroute_loadtest.mock_worker", *flags) for _ in range(workload.workers)]
        for each in contenders
    }
    return {each: Fleet([url_in(children.announcement(it)) for it in fleet]) for each, fleet in started.items()}


async def run(
    workload: Workload, load: float, placed: Mapping[Contender, Fleet], scale: float, seed: int
) -> dict[str, dict[str, float]]:
    """By contender. load: of the fleet's capacity, or inf."""
    for fleet in placed.values():
        await fleet.reset()
    kind = "starts" if workload.spec.startswith("multi_turn") else "requests"
    asked = made_workload(workload.spec, **{kind: max(4, int(workload.size * scale))}, seed=seed)
    rate = load * workload.workers * workload.prefill_rate / new_tokens(asked.trace)
    if asked.chats:  # a rate is of their starts
        rate /= len(asked.trace.requests) / len({request.session for request in asked.trace.requests})
    async with lanes({contender: fleet.urls for contender, fleet in placed.items()}) as routers:
        before = _processor_time()
        runs = await asyncio.gather(*(_bench(lane, asked, rate, seed) for lane in routers))
        busy = _busy(before, _processor_time())
    fleets = {contender.name: fleet for contender, fleet in placed.items()}
    return {
        lane.name: {**outcome(ran, await fleets[lane.name].served()), "busy": busy}
        for lane, ran in zip(routers, runs, strict=True)
        if ran is not None
    }


async def _bench(lane: Lane, asked: Asked, rate: float, seed: int) -> Run | None:
    plan = Plan(
        urls=[lane.url],
        workload=asked,
        load=Rate(rate),
        model="mock",
        duration=LONGEST,
        grace=GRACE,
        seed=seed,
        label=lane.name,
    )
    run = None
    with failures_told(lane.name):
        run = await Bench(plan).run()
    return run  # noqa: RET504 - the block may have ended early


def new_tokens(trace: Trace) -> float:
    """Of a request, on average, if every block were computed once in the whole run."""
    seen: set[int] = set()
    new = 0
    for request in trace.requests:
        known = next((n for n, block in enumerate(request.block_ids) if block not in seen), len(request.block_ids))
        new += request.input_tokens - known * trace.block_tokens
        seen.update(request.block_ids)
    return new / len(trace.requests)


def _processor_time() -> list[int]:
    """Of all cores, by what for: user, nice, system, idle, waiting for disks, ..."""
    return [int(ticks) for ticks in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]


def _busy(before: Sequence[int], after: Sequence[int]) -> float:
    """The share of the time between."""
    spent = [late - early for late, early in zip(after, before, strict=True)]
    return 1 - (spent[3] + spent[4]) / max(1, sum(spent))


def markdown(results: Results) -> str:
    parts = []
    for case in results.cases(PART):
        names = [each.name for each in POLICIES if results.has(PART, case, each.name, 0)]
        parts.append(f"**{case}**\n\n{table(results, PART, case, names)}")
        if case.endswith(_BURST):
            parts.append(over_base(results, PART, case, names))
    runs = [(case, name) for case in results.cases(PART) for name in results.contenders(PART)]
    busy = max((value for each in runs for value in results.values(PART, *each, "busy")), default=0.0)
    timed = [(case, name) for case, name in runs if not case.endswith(_BURST)]
    late = max((value for each in timed for value in results.values(PART, *each, "late_p99")), default=0.0)
    parts.append(
        f"In the busiest run {busy:.0%} of the processor time was used; in the latest but for the burst, 99 % of the "
        f"requests were sent within {1e3 * late:,.0f} ms of their time."
    )
    return "\n\n".join(parts)
