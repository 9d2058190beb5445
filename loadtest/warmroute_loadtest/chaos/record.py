"""What one seed has shown, request by request and second by second."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from .clients import Result
from .faults import Fault
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
    misdeeds: int = 0
    slowest: float = 0.0
    """Seconds, of those that were."""
    retries: float = 0.0
    """By the router's count."""
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
        if verdict is Verdict.ANSWERED:
            self.slowest = max(self.slowest, result.ended - result.started)
            return
        self.outcomes[f"{verdict}: {_described(result)}"] += 1
        if verdict not in BLAMED:
            return
        if sum(self.verdicts[each] for each in BLAMED) <= _MOST_BLAMED:
            kinds = ", ".join(
                f"{fault.kind} {fault.status}" if fault.kind == "status" else fault.kind for fault in met
            )
            took = result.ended - result.started
            self.complaints.append(
                f"{verdict}: request {result.call.token}, {at:.2f} s after the beginning, ended after {took:.2f} s "
                f"with {_described(result)}; it met: {kinds or 'no worker'}"
            )


def _described(result: Result) -> str:
    words = [str(result.outcome), str(result.status) if result.status else "", result.code]
    return " ".join(word for word in words if word)
