"""`warmroute simulate`: what routing policies would do with a trace, on a fleet that need not exist."""

import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import orjson
from warmroute_router.cli import OneLineParser
from warmroute_router.replicas.gossip import FLUSH_INTERVAL

from ..flag_types import count, new_file, positive
from ..traces import FORMATS, Trace, TraceError, load_trace
from . import SIM_POLICIES, FleetSpec, Result, SimulationError, simulate
from .fleet import Progress

LONG_RUN = 5_000
"""Requests times policies from which on a progress bar is worth its line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run traces through a simulated fleet, once with each policy, and compare."""
    args = parsed(argv)
    try:
        from rich.console import Console

        from .table import print_results
    except ImportError:
        return _fail("needs rich: pip install 'warmroute[loadtest]'")
    spec, console, records = spec_of(args), Console(), []
    try:
        for path in args.traces:
            trace = load_trace(path, format=args.format, limit=args.limit, sessions_per_s=args.sessions_per_s)
            results = _run(trace, args.policy, spec)
            print_results(console, trace, spec, results)
            records.append({"trace": trace.name, "results": [result.figures() for result in results]})
        if args.json is not None:
            args.json.write_bytes(orjson.dumps(records, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    except (TraceError, SimulationError, OSError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return 130
    return 0


def _fail(message: str) -> int:
    print(f"warmroute simulate: {message}", file=sys.stderr)
    return 1


def _run(trace: Trace, policies: Sequence[str], spec: FleetSpec) -> list[Result]:
    with _progress(trace, len(policies)) as progress:
        return [simulate(trace, policy, spec, progress) for policy in policies]


@contextmanager
def _progress(trace: Trace, policies: int) -> Iterator[Progress]:
    """A bar for a person who waits; nothing where stderr goes to a file or the run is over at once."""
    total = len(trace.requests) * policies
    if total < LONG_RUN or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(trace.name, total=total)
        yield lambda: bar.advance(task)


def parsed(argv: Sequence[str] | None) -> Namespace:
    parser = _parser()
    args = parser.parse_args(argv)
    if args.restart_cold and args.restart_router_at is None:
        parser.error("--restart-cold says how, and --restart-router-at is missing, which says when")
    return args


def _parser() -> OneLineParser:
    default = FleetSpec()
    parser = OneLineParser(prog="warmroute simulate", description=main.__doc__)
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="a file, or the name of a made trace")
    option = parser.add_argument
    option("--format", choices=("auto", *sorted(FORMATS)), default="auto", help="of the traces (default: by content)")
    option("--workers", type=count, default=default.workers, metavar="N", help="default: %(default)s")
    option("--blocks", type=count, default=default.blocks, metavar="B", help="KV blocks of a worker (%(default)s)")
    option("--block-tokens", type=count, metavar="T", help="a multiple of the trace's (default: the trace's)")
    option(
        "--prefill-rate",
        type=positive,
        default=default.prefill_rate,
        metavar="TOKENS_PER_S",
        help="prompt tokens that a worker computes in a second (default: %(default)g)",
    )
    option("--tpot", type=positive, default=default.tpot, metavar="S", help="seconds per decoded token (%(default)s)")
    option("--speed", type=positive, default=1.0, metavar="X", help="let requests arrive X times as fast")
    option(
        "--sessions-per-s",
        type=positive,
        default=1.0,
        metavar="X",
        help="let X sessions start in a second, where the trace has no times for that (default: 1)",
    )
    option("--limit", type=count, metavar="N", help="only the first N requests of each trace")
    option("--policy", type=_policies, default=("cache_aware", "round_robin"), metavar="A,B", help=_policy_help())
    option("--seed", type=int, default=default.seed, metavar="N", help="of policies that draw (default: %(default)s)")
    option("--slo", type=positive, default=default.slo, metavar="S", help="TTFT that is good enough (%(default)g)")
    option("--json", type=new_file, metavar="FILE", help="write the figures there")
    _add_replicas(parser)
    return parser


def _add_replicas(parser: OneLineParser) -> None:
    default = FleetSpec()
    option = parser.add_argument_group(
        "several routers, and restarts",
        "Gossip and warm starts are this router's: with the policies of others, each knows what it sent itself.",
    ).add_argument
    option(
        "--routers",
        type=count,
        default=default.routers,
        metavar="N",
        help="each request goes to any of them (default: %(default)s)",
    )
    option("--no-gossip", action="store_true", help="the routers do not talk")
    option(
        "--gossip-delay",
        type=positive,
        default=default.gossip_delay,
        metavar="S",
        help=f"from one router to another, once it is sent, every {FLUSH_INTERVAL:g} s (default: %(default)g)",
    )
    option("--restart-router-at", type=positive, metavar="S", help="a new router takes the first one's place")
    option("--restart-cold", action="store_true", help="it starts with nothing, and not with a snapshot")
    option("--restart-worker-at", type=positive, metavar="S", help="the first worker loses its cache and requests")


def _policy_help() -> str:
    return f"any of {', '.join(sorted(SIM_POLICIES))} (default: cache_aware,round_robin)"


def _policies(given: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(given.split(",")))
    for name in names:
        if name not in SIM_POLICIES:
            raise ArgumentTypeError(f"no policy {name!r}: choose from {', '.join(sorted(SIM_POLICIES))}")
    return names


def spec_of(args: Namespace) -> FleetSpec:
    return FleetSpec(
        workers=args.workers,
        blocks=args.blocks,
        block_tokens=args.block_tokens,
        prefill_rate=args.prefill_rate,
        tpot=args.tpot,
        speed=args.speed,
        seed=args.seed,
        slo=args.slo,
        routers=args.routers,
        gossip=not args.no_gossip,
        gossip_delay=args.gossip_delay,
        restart_router_at=args.restart_router_at,
        warm_restart=not args.restart_cold,
        restart_worker_at=args.restart_worker_at,
    )
