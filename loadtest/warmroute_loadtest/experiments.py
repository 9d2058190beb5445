"""The tables of `docs/experiments.md`: every policy on every trace and load, each at three speeds.

    python -m warmroute_loadtest.experiments FOLDER_OF_TRACES RESULTS.jsonl > tables.md

Runs what RESULTS does not have yet, on all cores (half an hour on two of them), and prints what it has then. After a
change of a policy, remove its lines there.
"""

import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, replace
from functools import lru_cache
from multiprocessing import Pool
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import orjson

from .simulator import Result, simulate
from .simulator.cli import parsed, spec_of
from .traces import Trace, load_trace

OURS = "cache_aware"
POLICIES = (
    OURS,
    "round_robin",
    "least_load",
    "sglang",
    "smg",
    "vllm_router",
    "llm_d",
    "prefixaware_tuned",
    "loadaware",
    "ray_tuned",
    "aibrix",
    "kubeai_by_session",
    "dynamo",
    "lmetric",
    "lmetric_prompt_only",
)
SPEEDS = (0.9, 1.0, 1.1)
"""Of each row's own: results jump with small changes of anything, so one run says little."""
MEANT = tuple(field.name for field in fields(Result) if field.name not in ("policy", "requests"))
AS_GOOD = 1.0005
"""Ratio of times that is no difference in three digits."""
POINT = 0.01


class Row(NamedTuple):
    name: str
    trace: str
    flags: str
    """Of `warmroute simulate`."""
    tuned: bool = False
    """Whether the policy's constants were chosen looking at it."""


MOONCAKE = "mooncake_conversation_trace.jsonl"
TAU = "taubench_gpt4o_airline_trajectories.json"
CLAUDE = "claude_code_agentic_traces.jsonl.xz"
AGENTS = "--limit 2500 --blocks 32000 --prefill-rate 20000"

ROWS = (
    Row("Mooncake chat, half speed", MOONCAKE, "--speed 0.5"),
    Row("Mooncake chat", MOONCAKE, "", tuned=True),
    Row("Mooncake chat, saturated", MOONCAKE, "--limit 8000 --prefill-rate 5500", tuned=True),
    Row("tau-bench airline, low", TAU, "--workers 4 --blocks 1500 --prefill-rate 8000", tuned=True),
    Row("tau-bench airline, medium", TAU, "--workers 4 --blocks 1000 --prefill-rate 8000 --speed 3"),
    Row("tau-bench airline, small caches", TAU, "--workers 3 --blocks 1000 --prefill-rate 8000 --speed 3"),
    Row("tau-bench airline, saturated", TAU, "--workers 4 --blocks 1000 --prefill-rate 3000 --speed 4", tuned=True),
    Row("multi-turn, low", "synthetic:multi_turn?rate=2&sessions=800", "--blocks 2400", tuned=True),
    Row(
        "multi-turn, small caches, overload", "synthetic:multi_turn?rate=6&sessions=1500", "--blocks 1500", tuned=True
    ),
    Row("multi-turn, another seed", "synthetic:multi_turn?rate=6&sessions=1200&seed=7", "--blocks 1500"),
    Row("RAG", "synthetic:rag", "--blocks 1000 --prefill-rate 6000"),
    Row("few-shot", "synthetic:few_shot", "--blocks 1000 --prefill-rate 6000"),
    Row("shared system prompt", "synthetic:shared_prompt", "--blocks 1000 --prefill-rate 6000"),
    Row("Zipf", "synthetic:zipf?seed=4", "--blocks 600 --prefill-rate 8000"),
    Row("sglang's generated shared prefix", "synthetic:generated_shared_prefix", "--blocks 1000 --prefill-rate 6000"),
    Row("no reuse (control)", "synthetic:unique", "--blocks 1000 --prefill-rate 6000"),
    Row("Claude Code, low", CLAUDE, f"{AGENTS} --speed 0.05", tuned=True),
    Row("Claude Code, medium", CLAUDE, f"{AGENTS} --speed 0.15", tuned=True),
    Row("Claude Code, overload", CLAUDE, f"{AGENTS} --speed 0.5", tuned=True),
    Row("Azure conversation (control)", "azure_2023_conv.csv", "--limit 8000 --blocks 8000"),
    Row("Azure conversation, overload (control)", "azure_2023_conv.csv", "--limit 8000 --blocks 8000 --speed 16"),
    Row("Azure code (control)", "azure_2023_code.csv", "--blocks 8000"),
)


class Run(NamedTuple):
    row: str
    policy: str
    speed: float


def main(argv: Sequence[str]) -> int:
    if len(argv) != 2 or not Path(argv[0]).is_dir():
        print("usage: python -m warmroute_loadtest.experiments FOLDER_OF_TRACES RESULTS.jsonl", file=sys.stderr)
        return 2
    folder, path = Path(argv[0]), Path(argv[1])
    results = dict(_read(path))
    wanted = [Run(row.name, policy, speed) for row in ROWS for speed in SPEEDS for policy in POLICIES]
    missing = [(folder, run) for run in wanted if run not in results]
    with Pool(os.cpu_count()) as pool, path.open("ab") as file:
        for done, (run, result) in enumerate(pool.imap_unordered(_run, missing), 1):
            results[run] = result
            file.write(orjson.dumps({"run": run._asdict(), "result": asdict(result)}) + b"\n")
            file.flush()
            print(f"\r{done}/{len(missing)}", end="", file=sys.stderr)
    print("\n".join([*_summary(results), "", *_tables(results)]))
    return 0


def _read(path: Path) -> Iterable[tuple[Run, Result]]:
    if path.exists():
        for line in path.read_bytes().splitlines():
            record = orjson.loads(line)
            yield Run(**record["run"]), Result(**record["result"])


def _run(job: tuple[Path, Run]) -> tuple[Run, Result]:
    folder, run = job
    row = next(row for row in ROWS if row.name == run.row)
    place = row.trace if row.trace.startswith("synthetic:") else str(folder / row.trace)
    args = parsed([place, *shlex.split(row.flags)])
    spec = replace(spec_of(args), speed=args.speed * run.speed)
    return run, simulate(_trace(place, args.limit), run.policy, spec)


@lru_cache(1)
def _trace(place: str, limit: int | None) -> Trace:
    return load_trace(place, limit=limit)


def _means(results: dict[Run, Result], row: Row) -> dict[str, Result]:
    """By policy, over the speeds."""
    return {policy: _mean([results[Run(row.name, policy, speed)] for speed in SPEEDS]) for policy in POLICIES}


def _mean(results: Sequence[Result]) -> Result:
    figures = {name: fmean(getattr(result, name) for result in results) for name in MEANT}
    return Result(policy=results[0].policy, requests=results[0].requests, **figures)


def _summary(results: dict[Run, Result]) -> list[str]:
    lines = [
        "| trace and load | hit rate, best other | TTFT mean, best other | TTFT p99, best other | prediction error |",
        "| --- | --- | --- | --- | ---: |",
    ]
    for row in ROWS:
        means = _means(results, row)
        ours = means.pop(OURS)
        cells = [
            _cell(ours.hit_rate, *max((each.hit_rate, name) for name, each in means.items())),
            _cell(ours.ttft_mean, *min((each.ttft_mean, name) for name, each in means.items()), times=True),
            _cell(ours.ttft_p99, *min((each.ttft_p99, name) for name, each in means.items()), times=True),
            f"{ours.prediction_error:.1%}",
        ]
        lines.append(f"| {row.name}{' †' if row.tuned else ''} | {' | '.join(cells)} |")
    return lines


def _cell(ours: float, best: float, name: str, *, times: bool = False) -> str:
    shown = [_seconds(value) if times else f"{value:.1%}" for value in (ours, best)]
    good = ours <= best * AS_GOOD if times else ours >= best - POINT
    return f"{'**' + shown[0] + '**' if good else shown[0]} / {shown[1]} {name}"


def _seconds(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.3f}"


def _tables(results: dict[Run, Result]) -> Iterable[str]:
    for row in ROWS:
        means = _means(results, row)
        name = f'"{row.trace}"' if ":" in row.trace else row.trace
        yield f"### {row.name}\n"
        yield f"    warmroute simulate {' '.join(filter(None, (name, row.flags)))} --policy ...\n"
        yield f"Ceiling {means[OURS].ceiling:.1%}.\n"
        yield "| policy | hit rate | TTFT mean | p50 | p90 | p99 | skew |"
        yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
        for policy, figures in sorted(means.items(), key=lambda item: item[1].ttft_mean):
            times = (figures.ttft_mean, figures.ttft_p50, figures.ttft_p90, figures.ttft_p99)
            shown = f"**{policy}**" if policy == OURS else policy
            cells = (f"{figures.hit_rate:.1%}", *map(_seconds, times), f"{figures.skew:.2f}")
            yield f"| {shown} | {' | '.join(cells)} |"
        yield ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
