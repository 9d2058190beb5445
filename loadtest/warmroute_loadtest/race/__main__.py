"""`make race`: this router beside others and a direct connection, in one run on one machine.

`scripts/rivals` installs the others first; who is not installed is left out. What was measured is kept in
`.rivals/race.json` as it comes, and not measured again: a race that was broken off goes on where it was.
"""

import contextlib
import sys
from argparse import Namespace
from collections.abc import Sequence

import uvloop
from warmroute_router.cli import OneLineParser

from ..processes import StartError
from ..rivals.program import RIVALS
from . import cache, latency, memory, real, throughput
from .contenders import NAMES, PATHS, POLICIES, Setting, pinned
from .page import write_docs
from .results import Results

PARTS = {part.PART: part for part in (throughput, latency, memory, cache, real)}
PINNED = (throughput.PART, latency.PART, memory.PART)
KEPT = RIVALS / "race.json"
QUICK = 0.2
"""Of all durations and numbers, with --quick."""


def main(argv: Sequence[str] | None = None) -> int:
    args = _parse(argv)
    results = Results(None if args.quick else KEPT)
    for missing in {each.program.name for each in (*PATHS, *POLICIES) if each.program and not each.installed}:
        print(f"{missing} is not installed: run scripts/rivals", file=sys.stderr)
    try:
        for name in args.parts:
            _race(name, args, results)
        if args.write_docs:
            write_docs({name: PARTS[name].markdown for name in args.parts}, results)
    except (StartError, OSError, ValueError) as error:
        print(f"race: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parse(argv: Sequence[str] | None) -> Namespace:
    parser = OneLineParser(prog="race", description=__doc__)
    option = parser.add_argument
    option("--parts", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    option("--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=f"of {', '.join(NAMES)}")
    option("--repetitions", type=int, default=3, help="of which the median counts (default: %(default)s)")
    option("--quick", action="store_true", help="once, in a fifth of the time, and nothing kept")
    option("--again", action="store_true", help="measure what is kept already, too")
    option("--write-docs", action="store_true", help="put what is kept of these parts into docs/benchmarks.md")
    args = parser.parse_args(argv)
    args.parts = args.parts or list(PARTS)
    if args.repetitions < 1:
        parser.error("argument --repetitions: must be at least 1")
    if args.quick and args.write_docs:
        parser.error("argument --write-docs: what --quick measures is not for the docs")
    return args


def _race(name: str, args: Namespace, results: Results) -> None:
    if args.again:
        for contender in args.only:
            results.forget(name, contender)
    with pinned() if name in PINNED else contextlib.nullcontext(()) as cpus:
        repetitions, scale = (1, QUICK) if args.quick else (args.repetitions, 1.0)
        setting = Setting(only=args.only, repetitions=repetitions, scale=scale, cpus=cpus)
        uvloop.run(PARTS[name].race(setting, results))
    print(f"{name}\n\n{PARTS[name].markdown(results)}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
