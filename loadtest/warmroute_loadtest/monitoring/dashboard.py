"""The dashboard as Grafana reads it: its panels, and its expressions with the variables replaced."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .prometheus import Prometheus

RATE_INTERVAL = "10s"
"""Of what is scraped every second."""
_LABEL_VALUES = re.compile(r"label_values\((?P<selector>.*), *(?P<label>\w+)\)")
_SPECIAL = re.compile(r"[\\$^*{}\[\]'+?.()|]")


class Target(NamedTuple):
    expression: str
    legend: str
    letter: str


class Panel(NamedTuple):
    title: str
    kind: str
    targets: list[Target]
    raw: dict[str, Any]
    """What else the JSON says of it."""


def load(path: Path) -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return dashboard


def panels(dashboard: dict[str, Any]) -> Iterator[Panel]:
    """From the top to the bottom; the titles of sections are panels without targets."""
    for raw in dashboard["panels"]:
        yield _panel(raw)
        yield from map(_panel, raw.get("panels", ()))  # of a section that is folded


def _panel(raw: dict[str, Any]) -> Panel:
    targets = [Target(each["expr"], each["legendFormat"], each["refId"]) for each in raw.get("targets", ())]
    return Panel(raw["title"], raw["type"], targets, raw)


class Variables:
    """Everything is chosen in each: what Grafana puts in their place then."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = {"__rate_interval": RATE_INTERVAL} | dict(values or {})

    def replace(self, expression: str) -> str:
        """Raises KeyError on a variable that there is not."""
        return re.sub(r"\$(\w+)|\$\{(\w+)\}", lambda found: self._values[found[1] or found[2]], expression)

    async def resolve(self, dashboard: dict[str, Any], prometheus: Prometheus) -> None:
        """Those that ask the data source. Raises LookupError where one finds no values."""
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                values = await self._values_of(variable["query"]["query"], prometheus)
                if not values:
                    raise LookupError(f"variable {variable['name']}: {variable['query']['query']} finds nothing")
                every = "(" + "|".join(map(_escaped, values)) + ")"
                self._values[variable["name"]] = variable["allValue"] or every

    async def _values_of(self, query: str, prometheus: Prometheus) -> list[str]:
        found = _LABEL_VALUES.fullmatch(query)
        assert found is not None, f"only label_values(SELECTOR, LABEL) is known, not {query}"
        return await prometheus.label_values(self.replace(found["selector"]), found["label"])


def _escaped(value: str) -> str:
    r"""For a regular expression within a string of PromQL: `\\.` is a dot."""
    return _SPECIAL.sub(lambda found: "\\" * 4 if found[0] == "\\" else "\\" * 2 + found[0], value)
