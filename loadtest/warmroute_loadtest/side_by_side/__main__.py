"""The table of faults: each scenario, on each router, and what came out.

`scripts/rivals` installs the others first; a router that is not installed is left out. What was measured is kept in
`.rivals/side-by-side.json`, so that a row can be run again by itself.
"""

import argparse
import asyncio
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson
import uvloop

from ..markers import write_between_markers
from ..rivals.program import RIVALS
from ..rivals.routers import SGLANG_ROUTER, SMG, WARMROUTE, Router
from ..rivals.running import StartError
from .changes import CHANGES
from .clients import CLIENTS
from .dead_workers import DEAD_WORKERS
from .fidelity import FIDELITY
from .http_oddities import HTTP_ODDITIES
from .overload import OVERLOAD
from .scenario import Outcome, Scenario
from .table import Cell, days, markdown, today
from .wrong_answers import WRONG_ANSWERS

THEMES: Mapping[str, Sequence[Scenario]] = {
    "Workers that die and come back": DEAD_WORKERS,
    "Workers that answer wrongly": WRONG_ANSWERS,
    "Overload and balance": OVERLOAD,
    "Clients that leave, stall or send much": CLIENTS,
    "Odd requests": HTTP_ODDITIES,
    "What crosses, and what is told": FIDELITY,
    "Changes while it runs": CHANGES,
}
ROUTERS = {router.name: router for router in (SGLANG_ROUTER, SMG, WARMROUTE)}
KEPT = RIVALS / "side-by-side.json"
PAGE = Path(__file__).parents[3] / "docs/reliability.md"
MARKER = "side-by-side"
MOST = 300.0
"""Seconds that one scenario may take on one router."""


def main(argv: Sequence[str] | None = None) -> int:
    args = _parse(argv)
    results = _load()
    routers = [ROUTERS[name] for name in args.routers if ROUTERS[name].installed]
    for missing in set(args.routers) - {router.name for router in routers}:
        print(f"{missing} is not installed: run scripts/rivals", file=sys.stderr)
    for scenario in _chosen(args.only):
        for router in routers:
            cell = uvloop.run(_run(scenario, router))
            results = _load()
            results.setdefault(scenario.name, {})[router.name] = cell
            _save(results)
    if not results:
        sys.exit("nothing has been measured yet")
    if args.markdown:
        print(markdown(THEMES, list(ROUTERS.values()), results))
    if args.write_docs:
        write_between_markers(PAGE, MARKER, _section(results))
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="side_by_side", description=__doc__)
    parser.add_argument("--routers", nargs="+", choices=ROUTERS, default=list(ROUTERS), help="default: all")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="scenarios; none to show what was measured before")
    parser.add_argument("--markdown", action="store_true", help="print the table")
    parser.add_argument("--write-docs", action="store_true", help="put it into docs/reliability.md")
    return parser.parse_args(argv)


def _chosen(names: Sequence[str] | None) -> list[Scenario]:
    known = {each.name: each for scenarios in THEMES.values() for each in scenarios}
    if names is None:
        return list(known.values())
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"no scenario is named {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in names]


async def _run(scenario: Scenario, router: Router) -> Cell:
    started = time.monotonic()
    try:
        async with asyncio.timeout(MOST):
            outcome = await scenario.run(router)
    except StartError as error:
        print(error, file=sys.stderr)
        outcome = Outcome(False, "did not start")
    except TimeoutError:
        outcome = Outcome(False, f"did not end within {MOST:.0f} s")
    took = time.monotonic() - started
    mark = "✓" if outcome.ok else "✗"
    print(f"{scenario.name:<32} {router.name:<14} {mark} {outcome.shown}  [{took:.1f} s]", flush=True)
    return Cell(outcome.ok, outcome.shown, today())


def _load() -> dict[str, dict[str, Cell]]:
    if not KEPT.exists():
        return {}
    kept = orjson.loads(KEPT.read_bytes())
    return {name: {router: Cell(**cell) for router, cell in row.items()} for name, row in kept.items()}


def _save(results: dict[str, dict[str, Cell]]) -> None:
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2))


def _section(results: dict[str, dict[str, Cell]]) -> str:
    machine = (
        f"{os.cpu_count()} CPU cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    )
    intro = (
        f"Measured {days(results)} by `python -m warmroute_loadtest.side_by_side` on {machine}:\n"
        "mock workers, and one router process at a time, with its default flags and those that the row names.\n"
        "`scripts/rivals` installs the other routers. Each figure is of one run, the row's last, on a machine that\n"
        "was not idle: times and memory vary a little. ✓ says that what was measured is what *right* asks for.\n\n"
        "Do not read the sums as a ranking. The rows are what users of the other routers complained of, and what\n"
        "this router was built against; the limits in *right* (10 s, 50 MB, ...) are ours; some were set or made\n"
        'more lenient, after a first run. "Issue 4" is this project\'s own list of requirements, not a complaint.'
    )
    return f"{intro}\n\n{markdown(THEMES, list(ROUTERS.values()), results)}"


if __name__ == "__main__":
    sys.exit(main())
