"""`python -m warmroute_loadtest.monitoring.picture FILE.png`: the dashboard, drawn from a real Prometheus's data.

No Grafana is at hand where this is developed. So these are its panels in its grid, and its expressions, drawn by us.
The one in docs/ went through pngquant then.
"""

import asyncio
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from .board import FILE
from .dashboard import Panel, Variables, load, panels
from .drawing import Line, color_of, lines, spec, written
from .prometheus import ROOT, Prometheus
from .story import Story, told

WIDTH = 1200
UNIT = 21
"""Pixels of one row of the grid; there are 8 between two."""
HEADER = 96
LAST = "Health"
"""Section with which the picture ends: what comes after it is for those who look for something."""


@dataclass(frozen=True)
class Drawn:
    panel: Panel
    lines: list[Line]

    @property
    def unit(self) -> str:
        unit: str = self.panel.raw["fieldConfig"]["defaults"]["unit"]
        return unit

    @property
    def table(self) -> bool:
        legend = self.panel.raw["options"].get("legend", {})
        return bool(legend.get("displayMode") == "table")

    @property
    def text(self) -> str:
        return written(self.lines[0].last, self.unit)

    @property
    def color(self) -> str:
        return color_of(self.lines[0].last, self.panel.raw["fieldConfig"]["defaults"])


def main() -> int:
    parser = ArgumentParser(prog="python -m warmroute_loadtest.monitoring.picture", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE.png")
    target: Path = parser.parse_args().file

    async def read(prometheus: Prometheus, story: Story) -> None:
        drawn = await draw(prometheus, story)
        await asyncio.to_thread(_photograph, page(drawn, story), _height(drawn), target)

    asyncio.run(told(read))
    return 0


async def draw(prometheus: Prometheus, story: Story) -> list[Drawn]:
    dashboard, variables = load(FILE), Variables()
    await variables.resolve(dashboard, prometheus)
    seconds = int(story.end - story.start)
    drawn = []
    for panel in _shown(list(panels(dashboard))):
        found = [
            await prometheus.query_range(variables.replace(target.expression), story.start, story.end, 1)
            for target in panel.targets
        ]
        drawn.append(Drawn(panel, lines(panel, found, story.start, seconds)))
    return drawn


def _height(drawn: Sequence[Drawn]) -> int:
    places = [each.panel.raw["gridPos"] for each in drawn]
    rows: int = max(place["y"] + place["h"] for place in places)
    return HEADER + rows * (UNIT + 8)


def _shown(every: Sequence[Panel]) -> list[Panel]:
    titles = [panel.title if panel.kind == "row" else "" for panel in every]
    after = [place for place, title in enumerate(titles) if title and place > titles.index(LAST)]
    return list(every[: after[0]])


def page(drawn: Sequence[Drawn], story: Story) -> str:
    environment = Environment(
        loader=PackageLoader(__package__, "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["written"] = written
    specs: dict[str, Any] = {
        f"plot{each.panel.raw['id']}": spec(each.panel, each.lines, story.events, story.start)
        for each in drawn
        if each.lines and each.panel.kind not in ("row", "stat")
    }
    return environment.get_template("picture.html").render(
        drawn=drawn,
        events=story.events,
        start=story.start,
        specs=specs,
        width=WIDTH,
        unit=UNIT,
        plotly=Markup(get_plotlyjs()),
    )


def _photograph(html: str, height: int, target: Path) -> None:
    found = subprocess.run([ROOT / "scripts/chromium"], stdout=subprocess.PIPE, text=True, check=True)
    with TemporaryDirectory(ignore_cleanup_errors=True) as name:
        file = Path(name) / "page.html"
        file.write_text(html, encoding="utf-8")
        subprocess.run(
            [
                found.stdout.strip(),
                *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                f"--user-data-dir={name}/profile",
                f"--window-size={WIDTH},{height}",
                "--virtual-time-budget=10000",
                f"--screenshot={target.resolve()}",
                file.as_uri(),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=120,
        )


if __name__ == "__main__":
    sys.exit(main())
