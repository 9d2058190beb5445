"""Parts of a page in docs/ that a program writes, each between two markers of its name."""

from pathlib import Path


def write_between_markers(page: Path, name: str, text: str) -> None:
    """Raises ValueError where the page does not have both markers, in their order."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, begins, rest = page.read_text().partition(begin)
    _, ends, after = rest.partition(end)
    if not begins or not ends:
        raise ValueError(f"{page} has no {begin} ... {end}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")
