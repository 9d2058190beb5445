"""Whether an expression says anything about live data: none of its parts may select nothing."""

import re
from collections.abc import Iterator
from math import isnan

from warmroute_loadtest.monitoring.prometheus import Prometheus, QueryError

_STRING = r'"(?:\\.|[^"\\])*"' + r"|'(?:\\.|[^'\\])*'"
_BRACES = rf"\{{(?:{_STRING}|[^}}\"'])*\}}"
_FILTERS = re.compile(
    rf"(?P<kept>{_STRING}|{_BRACES})|(?P<compared>[=!<>]=|[<>])(?!\s*bool\b)|\b(?P<word>unless|absent)\b"
)
_SELECTOR = re.compile(
    rf"(?P<skipped>{_STRING})|(?P<selector>(?<![\w:])[a-zA-Z_:][\w:]*(?:{_BRACES})?)"
    r"(?:\[[^\]]*\])?(?P<offset>\s+offset\s+\w+)?"
)
_METRIC = re.compile(r"warmroute_|up\b|\w+:")


def unfiltered(alert: str) -> str:
    """The same with every element that has data on all sides, whatever it compares as: 0 or 1 where it did."""

    def replaced(found: re.Match[str]) -> str:
        if found["compared"]:
            return f"{found['compared']} bool"
        return {"unless": "and", "absent": ""}.get(found["word"], found[0])

    return _FILTERS.sub(replaced, alert)


def selectors(expression: str) -> Iterator[str]:
    """Every series that it asks for, with its labels and its offset."""
    for found in _SELECTOR.finditer(expression):
        if found["selector"] and _METRIC.match(found["selector"]):
            yield found["selector"] + (found["offset"] or "")


async def fault(prometheus: Prometheus, expression: str, labels: frozenset[str] = frozenset()) -> str | None:
    """What is wrong with it, as of now. `labels`: those that all of its result should have."""
    try:
        for selector in selectors(expression):
            if not await prometheus.query(selector):
                return f"{selector} selects nothing"
        found = await prometheus.query(expression)
    except QueryError as error:
        return str(error)
    if not found:
        return "yields nothing"
    if all(isnan(value) for series in found for _, value in series.points):
        return "yields NaN"
    missing = {label for label in labels if any(label not in series.labels for series in found)}
    return f"has no label {', '.join(sorted(missing))}" if missing else None
