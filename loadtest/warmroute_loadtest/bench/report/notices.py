"""What spoils a run or a comparison, said before any figure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..summary import LATE, TOLERATED
from .shown import Shown
from .units import count, percent, seconds, tick

FIRST_REASONS = 3
LONGEST_REASON = 160


@dataclass(frozen=True, slots=True)
class Notice:
    title: str
    text: str
    grave: bool = True
    """Something went wrong; otherwise it is only to be known."""


def notices(shown: Sequence[Shown]) -> list[Notice]:
    """The grave ones first."""
    found = []
    for one in shown:
        prefix = f"{one.label}: " if len(shown) > 1 else ""
        found += [Notice(prefix + own.title, own.text, own.grave) for own in _of_run(one)]
    if len(shown) > 1:
        found += _of_both(*shown)
    return sorted(found, key=lambda notice: not notice.grave)


def reasons(one: Shown) -> list[tuple[str, int]]:
    """Why requests failed, and how often, the most frequent first."""
    said = []
    for failure in one.summary.failures:
        status = str(failure.status) if failure.status else "no answer"
        reason = f"{status}: {failure.error}" if failure.error else status
        said.append((_shorten(reason), failure.requests))
    return said


def _shorten(reason: str) -> str:
    return reason if len(reason) <= LONGEST_REASON else f"{reason[: LONGEST_REASON - 1]}…"


def _of_run(one: Shown) -> Iterator[Notice]:
    told = one.summary
    if not told.requests:
        yield Notice("No requests", "This run sent nothing, so there is nothing to measure.")
    if failed := told.requests - told.good:
        yield Notice(
            "Failures",
            f"{count(failed)} of {count(told.requests)} requests ({percent(failed / told.requests)}) got no good "
            f"answer: {_first_reasons(one)}. Latencies and hit rates are of the others only.",
        )
    if told.late > TOLERATED:
        yield Notice(
            "Late sends",
            f"The load generator fell behind: {percent(told.late)} of the requests were sent more than {tick(LATE)} "
            f"after they were due, at worst {seconds(told.latest)}. Times count from when a request was due, so "
            "these waits are in them, but the servers saw another load than was asked for.",
        )
    if told.good and told.hit_rate is None:
        yield Notice(
            "Hit rate not reported",
            "No answer told its cached tokens. vLLM tells them with --enable-prompt-tokens-details, "
            "SGLang with --enable-cache-report.",
            grave=False,
        )
    if one.run.load.get("kind") == "concurrency":
        yield Notice(
            "Closed loop",
            "A client asks again only when it has its answer, so slow answers lower the load by themselves, "
            "and waits look shorter than they would to clients who come when they like.",
            grave=False,
        )


def _first_reasons(one: Shown) -> str:
    found = reasons(one)
    said = [f"{count(times)} × {reason}" for reason, times in found[:FIRST_REASONS]]
    rest = sum(times for _, times in found[FIRST_REASONS:])
    return "; ".join([*said, *([f"{count(rest)} for other reasons"] if rest else [])])


def _of_both(first: Shown, second: Shown) -> Iterator[Notice]:
    differences = [
        f"{name} ({', '.join(parts)})"
        for name, parts in (
            ("model", _differences({"name": first.run.model}, {"name": second.run.model})),
            ("workload", _differences(first.run.workload, second.run.workload)),
            ("load", _differences(first.run.load, second.run.load)),
        )
        if parts
    ]
    if differences:
        yield Notice("Not the same test", f"The runs differ in their {'; '.join(differences)}. Compare with care.")
    fleets = [len(one.summary.workers) for one in (first, second)]
    if fleets[0] != fleets[1]:
        yield Notice(
            "Not as many workers",
            f"{count(fleets[0])} answered in the first run, {count(fleets[1])} in the second. "
            "The skew knows only of workers that answered.",
        )


def _differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    return [
        f"{key} {first.get(key, 'none')} → {second.get(key, 'none')}"
        for key in first | second
        if key != "seed"
        and first.get(key) != second.get(key)  # another seed finds cold caches: that is what it is for
    ]
