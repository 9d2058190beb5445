"""Tables as text, and the parts of a page that a program writes."""

from collections.abc import Sequence
from pathlib import Path


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """For a terminal: columns as wide as they have to be, figures to the right."""
    columns = list(zip(head, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    to_the_right = [_is_figures(column[1:]) for column in columns]
    lines = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, to_the_right, strict=True)
        ).rstrip()
        for row in (head, *rows)
    ]
    return "\n".join((lines[0], "  ".join("-" * width for width in widths), *lines[1:]))


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["--:" if _is_figures(column) else "---" for column in zip(*rows, strict=True)] or ["---"] * len(head)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


def write_between_markers(page: Path, name: str, text: str) -> None:
    """Raises ValueError where the page does not have both markers, in their order."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, begins, rest = page.read_text(encoding="utf-8").partition(begin)
    _, ends, after = rest.partition(end)
    if not begins or not ends:
        raise ValueError(f"{page} has no {begin} ... {end}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def _is_figures(cells: Sequence[str]) -> bool:
    return all(not cell or cell[0].isdigit() for cell in cells)
