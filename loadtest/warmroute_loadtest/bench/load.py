"""When requests are due: at a rate, at a rate that changes, at the trace's own times, or so many at a time."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import count
from math import inf, sqrt
from typing import Any, Literal, TypeAlias

from ..traces.arrivals import poisson

Arrivals: TypeAlias = Literal["poisson", "constant"]
_OTHER_DRAW = 1 << 32
"""What a workload draws from the same seed must have nothing to do with when it comes."""


@dataclass(frozen=True, slots=True)
class Rate:
    rate: float
    """Requests a second (of conversations: their starts); inf for all of them at once."""
    arrivals: Arrivals = "poisson"

    def after(self, events: float) -> float:
        """The time at which so many requests are expected to have come."""
        return events / self.rate

    def record(self) -> dict[str, Any]:
        """JSON knows no infinity."""
        return {"kind": "at_once"} if self.rate == inf else {"kind": self.arrivals, "rate": self.rate}

    @property
    def title(self) -> str:
        return "all at once" if self.rate == inf else f"{self.rate:g}/s {self.arrivals}"


@dataclass(frozen=True, slots=True)
class Ramp:
    """From one rate to another in a straight line."""

    start: float
    end: float
    duration: float
    arrivals: Arrivals = "poisson"

    def after(self, events: float) -> float:
        """Solves `start * t + (end - start) * t² / (2 * duration) = events`; inf where so many never come."""
        squared = self.start**2 + 2 * (self.end - self.start) / self.duration * events
        if squared < 0:
            return inf
        slope = self.start + sqrt(squared)
        return 2 * events / slope if events else 0.0

    def record(self) -> dict[str, Any]:
        return {"kind": "ramp", **asdict(self)}

    @property
    def title(self) -> str:
        return f"{self.start:g} to {self.end:g}/s {self.arrivals}"


@dataclass(frozen=True, slots=True)
class OwnTimes:
    """Those of the trace, `speed` times as fast."""

    speed: float = 1.0

    def record(self) -> dict[str, Any]:
        return {"kind": "trace", "speed": self.speed}

    @property
    def title(self) -> str:
        return "own times" if self.speed == 1 else f"own times × {self.speed:g}"


@dataclass(frozen=True, slots=True)
class Concurrency:
    """A closed loop: so many at a time, each next one when one has ended. All other loads wait for nothing."""

    requests: int

    def record(self) -> dict[str, Any]:
        return {"kind": "concurrency", "concurrency": self.requests}

    @property
    def title(self) -> str:
        return f"{self.requests} at a time"


Timetable: TypeAlias = Rate | Ramp | OwnTimes
Load: TypeAlias = Timetable | Concurrency


def due_times(load: Timetable, own: Iterable[float], seed: int) -> Iterator[float]:
    """Seconds from the start, in order; the first is 0. `own`: the trace's arrivals; of a rate there is no end."""
    if isinstance(load, OwnTimes):
        return (arrival / load.speed for arrival in own)
    return map(load.after, _events(load.arrivals, seed))


def _events(arrivals: Arrivals, seed: int) -> Iterator[float]:
    """Times at a rate of one a second."""
    return iter(count()) if arrivals == "constant" else poisson(1.0, seed + _OTHER_DRAW)
