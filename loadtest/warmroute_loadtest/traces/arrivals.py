"""When requests arrive, where a trace says it coarsely or not at all."""

import heapq
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count, pairwise

from .request import TraceRequest

THINK_S = 10.0
"""In a conversation without times: how long its user reads and writes before the next turn."""
ANSWER_TOKENS_PER_S = 50.0
"""In a conversation without times: how fast an answer is taken to have come."""
SEED = 20251129


def next_turn(arrival: float, output_tokens: int, think_s: float = THINK_S) -> float:
    """When the turn comes that follows on one with this arrival and this answer.

    A trace has to fix that before anybody has served it, so an answer takes its length and nothing else.
    """
    return arrival + output_tokens / ANSWER_TOKENS_PER_S + think_s


def poisson(per_s: float, seed: int = SEED) -> Iterator[float]:
    """The times of a Poisson process without end. The first event is the start, 0.0."""
    draw = random.Random(seed)
    now = 0.0
    while True:
        yield now
        now += draw.expovariate(per_s)


def spread(stamps: Sequence[float], widest: float = math.inf) -> list[float]:
    """Times that were rounded down to a common tick, laid out again: as seconds from the earliest.

    Each group of n equal stamps is laid evenly over the gap to the next distinct stamp (at most `widest`), in the
    order given: at 0, 1/n, 2/n ... of the gap. The last group has no gap of its own and takes the one before.
    """
    size = Counter(stamps)
    distinct = sorted(size)
    gaps = [min(later - earlier, widest) for earlier, later in pairwise(distinct)]
    gap = dict(zip(distinct, [*gaps, gaps[-1] if gaps else 0.0], strict=True)) if distinct else {}
    placed: Counter[float] = Counter()
    times = []
    for stamp in stamps:
        times.append(stamp - distinct[0] + gap[stamp] * placed[stamp] / size[stamp])
        placed[stamp] += 1
    return times


def start_sessions(
    sessions: Iterable[Sequence[TraceRequest]], per_s: float, seed: int = SEED
) -> Iterator[TraceRequest]:
    """Sessions, each with arrivals from its own start, as one stream in the order of arrival.

    They start one after the other as a Poisson process. A session is read no sooner than it starts, so that whoever
    wants the first requests only does not read the whole file.
    """
    waiting: list[tuple[float, int, TraceRequest]] = []
    order = count()
    for start, session in zip(poisson(per_s, seed), sessions, strict=False):
        while waiting and waiting[0][0] <= start:
            yield heapq.heappop(waiting)[2]
        for request in session:
            arrival = start + request.arrival
            heapq.heappush(waiting, (arrival, next(order), replace(request, arrival=arrival)))
    while waiting:
        yield heapq.heappop(waiting)[2]
