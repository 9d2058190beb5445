"""What happens when, from a seed: the troubles of each worker, and what clients do. Pure data.

At any time one worker is the guardian, which has no trouble, and has had none for as long as a router may need to
find that it is well again. So a router that loses a request has no excuse.
"""

import random
from dataclasses import dataclass, replace

from .faults import GOOD, Fault, Health, Kind

RECOVERY = 3.0
"""Seconds without trouble after which a router must know that a worker is well: some probes, and an open breaker."""
PROMPTS = 12
"""Distinct ones, so that what the router learns of them stays small."""

_STATUSES = (400, 404, 422, 429, 500, 502, 503, 504)
_HEALTHS: tuple[Health, ...] = ("503", "hang", "close")
_FLAPS = 5


@dataclass(frozen=True, slots=True)
class Trouble:
    """Of one worker, from `start` to `end`, in seconds since the beginning."""

    worker: int
    start: float
    end: float
    fault: Fault = GOOD
    health: Health = "up"
    killed: bool = False
    """The process is gone, and a new one comes on the same port."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a client that behaves."""

    token: str
    prompt: int
    words: int
    streamed: bool
    chat: bool
    usage: bool
    pause: float
    """Seconds before it."""


@dataclass(frozen=True, slots=True)
class Misdeed:
    """One thing that a client does which does not behave."""

    at: float
    name: str
    """In `rude_clients.MISDEEDS`."""
    call: Call


@dataclass(frozen=True, slots=True)
class Schedule:
    seed: int
    seconds: float
    troubles: tuple[Trouble, ...]
    """In order of their starts; those of one worker do not overlap."""
    misdeeds: tuple[Misdeed, ...]

    def healthy_throughout(self, start: float, end: float, workers: int) -> bool:
        """Whether some worker was well all the time, and known to be."""
        troubled = {
            trouble.worker for trouble in self.troubles if trouble.start < end and trouble.end > start - RECOVERY
        }
        return len(troubled) < workers


def make_schedule(
    seed: int,
    seconds: float,
    workers: int,
    misdeeds: list[str],
    per_second: float,
    *,
    always_one_healthy: bool = True,
) -> Schedule:
    """`misdeeds`: names to choose from, `per_second` of them."""
    rng = random.Random(seed)
    guarded = _guardians(rng, seconds, workers) if always_one_healthy else []
    troubles = [
        trouble
        for worker in range(workers)
        for trouble in _troubles(rng, worker, seconds, [span for who, *span in guarded if who == worker])
    ]
    times = sorted(rng.uniform(0.0, seconds) for _ in range(round(seconds * per_second)))
    chosen = [
        Misdeed(at, rng.choice(misdeeds), make_call(rng, f"x{seed}-{number}")) for number, at in enumerate(times)
    ]
    return Schedule(seed, seconds, tuple(sorted(troubles, key=lambda trouble: trouble.start)), tuple(chosen))


def make_call(rng: random.Random, token: str) -> Call:
    return Call(
        token=token,
        prompt=rng.randrange(PROMPTS),
        words=rng.choice((1, 3, 8, 8, 8, 30)),
        streamed=rng.random() < 0.7,
        chat=rng.random() < 0.7,
        usage=rng.random() < 0.3,
        pause=rng.choice((0.0, rng.uniform(0.0, 0.1))),
    )


def _guardians(rng: random.Random, seconds: float, workers: int) -> list[tuple[int, float, float]]:
    """Who must be well, from when to when: each from `RECOVERY` before its time on."""
    spans: list[tuple[int, float, float]] = []
    start, guardian = 0.0, rng.randrange(workers)
    while start < seconds:
        end = start + rng.uniform(2.0, 6.0)
        spans.append((guardian, start - RECOVERY, end))
        start, guardian = end, (guardian + rng.randrange(1, workers)) % workers if workers > 1 else guardian
    return spans


def _troubles(rng: random.Random, worker: int, seconds: float, guarded: list[list[float]]) -> list[Trouble]:
    """One after the other, with good times between; cut where the worker is guarded."""
    troubles: list[Trouble] = []
    at = rng.uniform(0.0, 2.0)
    while at < seconds:
        end = min(at + rng.uniform(0.3, 4.0), seconds)
        for trouble in _trouble(rng, worker, at, end):
            troubles += _outside(trouble, guarded)
        at = end + rng.uniform(0.2, 2.5)
    return troubles


def _outside(trouble: Trouble, guarded: list[list[float]]) -> list[Trouble]:
    """What is left of it: it ends when the guard begins, and begins when it ends."""
    pieces = [trouble]
    for start, end in guarded:
        pieces = [
            replace(piece, start=left, end=right)
            for piece in pieces
            for left, right in ((piece.start, min(piece.end, start)), (max(piece.start, end), piece.end))
            if left < right
        ]
    return pieces


def _trouble(rng: random.Random, worker: int, start: float, end: float) -> list[Trouble]:
    sort = rng.choices(("fault", "killed", "down", "sick", "flapping"), (10, 2, 1, 1, 1))[0]
    if sort == "killed":
        return [Trouble(worker, start, end, killed=True)]
    if sort == "down":  # a stopped process, or one whose host is gone
        return [Trouble(worker, start, end, Fault(Kind.ACCEPT_AND_HANG), "hang")]
    if sort == "sick":
        return [Trouble(worker, start, end, health=rng.choice(_HEALTHS))]
    if sort == "flapping":
        step = (end - start) / (2 * _FLAPS)
        starts = [start + 2 * step * number for number in range(_FLAPS)]
        return [Trouble(worker, at, at + step, health="503") for at in starts]
    return [Trouble(worker, start, end, _fault(rng))]


def _fault(rng: random.Random) -> Fault:
    kind = rng.choice([kind for kind in Kind if kind is not Kind.NONE])
    status = 413 if kind is Kind.EARLY_RESPONSE else rng.choice(_STATUSES)
    seconds = {Kind.TRICKLE: 0.0005, Kind.SLOW: rng.uniform(0.05, 0.5)}.get(kind, rng.uniform(0.001, 0.05))
    return Fault(kind, status=status, after=rng.randrange(1, 3), seconds=seconds)
