"""The table: a row for each scenario, a column for each router, as Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from ..rivals.routers import Router
from .scenario import Scenario


@dataclass(frozen=True, slots=True)
class Cell:
    ok: bool
    shown: str
    day: str
    """ISO date on which it was measured."""


Results = Mapping[str, Mapping[str, Cell]]
"""By the scenario's name, then by the router's."""


def markdown(themes: Mapping[str, Sequence[Scenario]], routers: Sequence[Router], results: Results) -> str:
    parts = [_score(themes, routers, results)]
    for theme, scenarios in themes.items():
        measured = [scenario for scenario in scenarios if scenario.name in results]
        if measured:
            parts.append(f"### {theme}\n\n" + _table(measured, routers, results))
    return "\n\n".join(parts)


def _score(themes: Mapping[str, Sequence[Scenario]], routers: Sequence[Router], results: Results) -> str:
    """How many rows each router has right."""
    rows = [results[each.name] for scenarios in themes.values() for each in scenarios if each.name in results]
    right = (f"{router.title} {sum(row[router.name].ok for row in rows if router.name in row)}" for router in routers)
    return f"Right in {len(rows)} rows: {', '.join(right)}."


def _table(scenarios: Sequence[Scenario], routers: Sequence[Router], results: Results) -> str:
    lines = [_line("fault", "right", *(router.title for router in routers)), _line(*["---"] * (2 + len(routers)))]
    for each in scenarios:
        row = results[each.name]
        cells = (_shown(row.get(router.name)) for router in routers)
        lines.append(_line(f"`{each.name}`: {each.fault} ({each.source})", each.right, *cells))
    return "\n".join(lines)


def _line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _shown(cell: Cell | None) -> str:
    if cell is None:
        return "not run"
    return f"{'✓' if cell.ok else '✗'} {cell.shown}"


def days(results: Results) -> str:
    """When it was measured: a day, or the first and the last."""
    known = sorted({cell.day for row in results.values() for cell in row.values()})
    return known[0] if len(known) == 1 else f"{known[0]} to {known[-1]}"


def today() -> str:
    return date.today().isoformat()
