"""`warmroute bench`: load on whatever speaks OpenAI's API, and what became of it."""

import asyncio
import gc
import resource
import shlex
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from math import inf

import uvloop

from ..traces import TraceError
from .client import Unreachable
from .flags import load_of, parsed, workload_of
from .record import Run
from .run import GRACE, Bench, Plan

_REPORT_NEEDS = ("jinja2", "plotly")
_REFRESH = 0.5
"""Seconds. A bar that is drawn more often costs sends their time."""


def main(argv: Sequence[str] | None = None) -> int:
    """Send a workload or a trace to servers with OpenAI's API, at the times that are asked for, and measure."""
    args = parsed(argv, main.__doc__)
    try:
        from rich.console import Console

        from .progress import progress
        from .table import print_run
    except ImportError:
        return _fail("needs rich: pip install 'warmroute[loadtest]'")
    if args.html is not None and not all(map(find_spec, _REPORT_NEEDS)):
        return _fail("--html needs jinja2 and plotly: pip install 'warmroute[loadtest]'")
    try:
        plan = _plan(args, sys.argv[1:] if argv is None else argv)
        bench = Bench(plan)
        with progress(bench, len(plan.workload.trace.requests)) as show, _many_connections(), _no_collection():
            run = uvloop.run(_run(bench, show))
        print_run(Console(), run)
        _write(args, run)
    except (TraceError, Unreachable, OSError) as error:
        return _fail(str(error))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    if bench.interrupted:
        return 130
    return 0 if any(answer.good for answer in run.answers) else _fail("no request had a good answer")


def _fail(message: str) -> int:
    print(f"warmroute bench: {message}", file=sys.stderr)
    return 1


def _plan(args: Namespace, argv: Sequence[str]) -> Plan:
    load = load_of(args)
    workload = workload_of(args, load)
    return Plan(
        urls=args.url,
        workload=workload,
        load=load,
        model=args.model,
        endpoint=args.endpoint,
        stream=not args.no_stream,
        ignore_eos=args.ignore_eos,
        api_key=args.api_key or None,
        duration=inf if args.duration is None else args.duration,
        grace=GRACE if args.grace is None else args.grace,
        seed=args.seed,
        label=args.label or f"{workload.trace.name}, {load.title}",
        command=_command(argv, args.api_key),
    )


def _command(argv: Sequence[str], secret: str) -> str:
    shown = [argument.replace(secret, "...") if secret else argument for argument in argv]
    return shlex.join(("warmroute", "bench", *shown))


async def _run(bench: Bench, show: Callable[[], None]) -> Run:
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, bench.interrupt)
    showing = asyncio.create_task(_keep_showing(show))
    try:
        return await bench.run()
    finally:
        showing.cancel()
        with suppress(asyncio.CancelledError):
            await showing
        for number in signals:
            loop.remove_signal_handler(number)


async def _keep_showing(show: Callable[[], None]) -> None:
    while True:
        show()
        await asyncio.sleep(_REFRESH)


def _write(args: Namespace, run: Run) -> None:
    if args.json is not None:
        run.write(args.json)
    if args.html is not None:
        from .report import write_report

        write_report(args.html, [run])


@contextmanager
def _many_connections() -> Iterator[None]:
    """As many as an administrator lets this process have: an open loop has one for each answer that it waits for."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Nothing of a run is garbage in cycles, and looking for it takes longer than the gap between two sends."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
