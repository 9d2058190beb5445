"""What one seed has shown, request by request and second by second."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from .clients import Result
from .faults import Fault, Kind
from .judge import BLAMED, Verdict
from .router_process import Footprint

_MOST_BLAMED = 10
"""That are shown one by one."""


@dataclass(slots=True)
class Record:
    seed: int
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    """Of the requests that were not answered well."""
    met: Counter[Kind] = field(default_factory=Counter)
    """How often a request met which fault, as far as the worker had read whose request it was."""
    misdeeds: int = 0
    slowest: float = 0.0
    """Seconds, of those that were."""
    slowest_story: str = ""
    """Which one that was."""
    retries: float = 0.0
    """By the router's count."""
    tasks: float = 0.0
    """Of the router's event loops before any trouble."""
    footprints: list[Footprint] = field(default_factory=list)
    """One a second; the first from before any trouble."""
    complaints: list[str] = field(default_factory=list)
    """What must not be."""

    @property
    def requests(self) -> int:
        return self.verdicts.total()

    def note(self, result: Result, verdict: Verdict, met: Sequence[Fault], at: float) -> None:
        """`at`: seconds since the beginning."""
        self.verdicts[verdict] += 1
        self.met.update(fault.kind for fault in met)
        took = result.ended - result.started
        story = f"request {result.call.token}, {at:.2f} s after the beginning; it met: {_named(met)}"
        if verdict is Verdict.ANSWERED:
            if took > self.slowest:
                self.slowest, self.slowest_story = took, story
            return
        self.outcomes[f"{verdict}: {_described(result)}"] += 1
        if verdict not in BLAMED:
            return
        if sum(self.verdicts[each] for each in BLAMED) <= _MOST_BLAMED:
            self.complaints.append(f"{verdict}: {story}; it ended after {took:.2f} s with {_described(result)}")


def _named(met: Sequence[Fault]) -> str:
    kinds = [f"{fault.kind} {fault.status}" if fault.kind is Kind.STATUS else str(fault.kind) for fault in met]
    return ", ".join(kinds) or "nothing"


def _described(result: Result) -> str:
    words = [str(result.outcome), str(result.status) if result.status else "", result.code]
    return " ".join(word for word in words if word)
