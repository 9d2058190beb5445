"""What the plots show of many requests in few points: bins over time, and distributions by 200 ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from ...percentile import percentile
from ..record import Answer, Run
from ..summary import hit_rate
from .figures import present
from .units import round_up

LEAST_BINS, MOST_BINS = 12, 100
SHORTEST_BIN = 0.001
REQUESTS_PER_BIN = 25
"""Fewer, and a bin's p99 is only its slowest request."""
RANKS = 200
HEAT_CELLS = 6000


@dataclass(frozen=True, slots=True)
class Bin:
    """The requests that were due in one stretch of time."""

    middle: float
    """Seconds from the run's start."""
    ttft_p50: float | None
    ttft_p99: float | None
    hit_rate: float | None
    failed: int


def bin_width(runs: Sequence[Run]) -> float:
    """Seconds: one round width for all runs, so that their bins mean the same."""
    exact = [_last_due(run) / min(max(len(run.answers) / REQUESTS_PER_BIN, LEAST_BINS), MOST_BINS) for run in runs]
    return round_up(max(*exact, SHORTEST_BIN))


def bins(run: Run, width: float) -> list[Bin]:
    due: list[list[Answer]] = [[] for _ in range(int(_last_due(run) / width) + 1)]
    for answer in run.answers:
        due[int(answer.due / width)].append(answer)
    return [_bin((number + 0.5) * width, answers) for number, answers in enumerate(due)]


def distribution(values: Sequence[float]) -> list[tuple[float, float]]:
    """(value, its rank as a share of all) at evenly spread ranks, the first and the last included."""
    ordered = sorted(values)
    points = min(len(ordered), RANKS)
    ranks = sorted({1, *(ceil(len(ordered) * point / points) for point in range(1, points + 1))} if ordered else ())
    return [(ordered[rank - 1], rank / len(ordered)) for rank in ranks]


def nearly_done(runs: Sequence[Run]) -> float:
    """Seconds until 99 % of the answers had come: a few that never end must not push all others to the edge."""
    ends = [sorted(answer.due + answer.e2e for answer in run.answers if answer.e2e is not None) for run in runs]
    return max((percentile(own, 99) for own in ends if own), default=0.0)


def heat_width(rows: int, end: float) -> float:
    """Seconds: a round width of one stretch of time, so that the cells stay few."""
    return round_up(max(end / min(HEAT_CELLS // max(rows, 1), MOST_BINS), SHORTEST_BIN))


def in_flight(run: Run, names: Sequence[str], width: float, end: float) -> list[list[float]]:
    """A row per worker: the mean number of requests that it had at once, in each stretch of time up to the end."""
    columns = ceil(end / width)
    rows = {name: [0.0] * columns for name in names}
    for answer in run.answers:
        row = rows.get(answer.worker)
        if row is None or answer.e2e is None:
            continue
        sent, done = answer.due + answer.late, answer.due + answer.e2e
        for column in range(int(sent / width), min(ceil(done / width), columns)):
            overlap = min(done, (column + 1) * width) - max(sent, column * width)
            row[column] += max(overlap, 0.0) / width
    return [rows[name] for name in names]


def _bin(middle: float, answers: Sequence[Answer]) -> Bin:
    good = [answer for answer in answers if answer.good]
    ttft = sorted(present(answer.ttft for answer in good))
    return Bin(
        middle=middle,
        ttft_p50=percentile(ttft, 50) if ttft else None,
        ttft_p99=percentile(ttft, 99) if ttft else None,
        hit_rate=hit_rate(good),
        failed=len(answers) - len(good),
    )


def _last_due(run: Run) -> float:
    return max((answer.due for answer in run.answers), default=0.0)
