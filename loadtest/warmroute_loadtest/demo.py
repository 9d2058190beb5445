"""`warmroute demo`: two real model workers behind the router, the same chats twice, round robin and cache aware."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, NoReturn

import orjson
from warmroute_router.cli import OneLineParser

from .processes import Processes, StartError, processes, url_in

if TYPE_CHECKING:
    from rich.console import Console

MODEL = "smollm2-135m"
WORKERS = 2
POOL_TOKENS = 4352
"""KV pool of each worker: the working set of the chats fits both together, but not one."""
POLICIES = ("round_robin", "cache_aware")


def main(argv: Sequence[str] | None = None) -> int:
    """Two real model workers and the router: round robin against cache aware, in a few minutes."""
    parser = OneLineParser(prog="warmroute demo", description=main.__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--keep", action="store_true", help="leave everything running afterwards, until Ctrl-C")
    args = parser.parse_args(argv)
    if args.json is not None and not args.json.parent.is_dir():  # said now, not after some minutes
        parser.error(f"argument --json: no folder {args.json.parent}")
    try:
        from rich.console import Console
    except ImportError:
        return _fail("needs rich: pip install 'warmroute[worker,loadtest]'")
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with processes() as children:
            _run(children, Console(), args.json, args.keep)
    except (StartError, OSError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return 130
    return 0


def _fail(message: str) -> int:
    print(f"warmroute demo: {message}", file=sys.stderr)
    return 1


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _run(children: Processes, console: "Console", json_file: Path | None, keep: bool) -> None:
    from .play import Play
    from .scoreboard import print_scoreboard, summary

    with console.status(f"loading {MODEL} into {WORKERS} workers"):
        workers = _start_workers(children)
    play = asyncio.run(Play.prepare(workers))
    results = {}
    for policy in POLICIES:
        router, url = _start_router(children, policy, workers)
        results[policy] = asyncio.run(play.run(url, policy, console))
        if not (keep and policy == POLICIES[-1]):
            children.stop([router])
    print_scoreboard(console, results, workers)
    working_set = play.working_set(results[POLICIES[-1]])
    console.print(
        f"Working set: {working_set:,} tokens. KV pool of one worker: {POOL_TOKENS:,}, "
        f"of {WORKERS} workers: {WORKERS * POOL_TOKENS:,}. {_fit(working_set)}"
    )
    if json_file is not None:
        json_file.write_bytes(orjson.dumps({policy: summary(turns) for policy, turns in results.items()}))
    if keep:
        _keep(console, url)


def _start_workers(children: Processes) -> list[str]:
    threads = max(1, (os.cpu_count() or 1) // WORKERS)
    options = ("--model", MODEL, "--port", "0", "--threads", str(threads), "--log-level", "warning")
    started = [
        children.spawn("warmroute_worker", *options, "--max-total-tokens", str(POOL_TOKENS)) for _ in range(WORKERS)
    ]
    return [url_in(children.announcement(process)) for process in started]


def _start_router(children: Processes, policy: str, workers: Sequence[str]) -> tuple[Popen[str], str]:
    options = ("--policy", policy, "--port", "0", "--prometheus-port", "0", "--log-level", "warning")
    process = children.spawn("warmroute_router", *options, "--worker-urls", *workers)
    return process, url_in(children.announcement(process))


def _fit(working_set: int) -> str:
    if POOL_TOKENS < working_set <= WORKERS * POOL_TOKENS:
        return "It fits the fleet, but not one worker."
    return "The pools do not fit it as they should: the comparison says little."


def _keep(console: "Console", url: str) -> None:
    question = '"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0'
    body = f'{{"model": "{MODEL}", {question}}}'
    console.print("Everything is left running until Ctrl-C. Try:")
    console.print(f"curl -i {url}/v1/chat/completions -d '{body}'", soft_wrap=True, highlight=False)
    signal.pause()
