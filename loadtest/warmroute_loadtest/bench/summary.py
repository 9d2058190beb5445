"""The figures of a run. Latencies and tokens are those of good answers; everything is seconds."""

import re
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..percentile import percentile
from .record import Answer, Run

LATE = 0.010
"""Seconds from which on a send is late."""
TOLERATED = 0.01
"""The share of late sends that says nothing yet of the generator."""


class Latency(NamedTuple):
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class WorkerFigures(NamedTuple):
    worker: str
    requests: int
    share: float
    """Of all requests."""
    hit_rate: float | None
    ttft_p50: float | None


class Failure(NamedTuple):
    requests: int
    status: int
    error: str
    """As the first request of this kind had it: others may differ in their numbers."""


class Summary(NamedTuple):
    requests: int
    good: int
    failures: list[Failure]
    """One for each kind, the most frequent first."""
    requests_per_s: float
    """Good ones."""
    prompt_tokens_per_s: float
    completion_tokens_per_s: float
    hit_rate: float | None
    predicted: float | None
    """What the router thought to be cached, as a share of the prompt tokens that the engines counted."""
    prediction_error: float | None
    """Mean over the requests of |predicted − cached| tokens, as a share of the prompt."""
    ttft: Latency | None
    e2e: Latency | None
    itl: Latency | None
    workers: list[WorkerFigures]
    """By name."""
    skew: float
    """Requests of the busiest worker over the mean of all that had any."""
    late: float
    """The share of sends that were."""
    latest: float


def summarise(run: Run) -> Summary:
    good = [answer for answer in run.answers if answer.good]
    workers = _workers(good)
    lateness = [answer.late for answer in run.answers]
    per_s = 1 / run.duration if run.duration else 0.0
    return Summary(
        requests=len(run.answers),
        good=len(good),
        failures=_failures(run.answers),
        requests_per_s=len(good) * per_s,
        prompt_tokens_per_s=sum(answer.prompt_tokens or 0 for answer in good) * per_s,
        completion_tokens_per_s=sum(answer.completion_tokens or 0 for answer in good) * per_s,
        hit_rate=hit_rate(good),
        predicted=_predicted(good),
        prediction_error=_prediction_error(good),
        ttft=_latency([answer.ttft for answer in good if answer.ttft is not None]),
        e2e=_latency([answer.e2e for answer in good if answer.e2e is not None]),
        itl=Latency(**run.itl) if run.itl else None,
        workers=workers,
        skew=max(each.requests for each in workers) * len(workers) / len(good) if workers else 1.0,
        late=sum(late > LATE for late in lateness) / len(lateness) if lateness else 0.0,
        latest=max(lateness, default=0.0),
    )


def hit_rate(answers: Iterable[Answer]) -> float | None:
    """Cached tokens of all prompt tokens, as the engines reported them; None where none reports them.

    Where some do, silence means nothing cached: SGLang says nothing of a zero.
    """
    told = [answer for answer in answers if answer.prompt_tokens is not None]
    if not _reports_cached(told):
        return None
    return _share(sum(answer.cached_tokens or 0 for answer in told), told)


def _reports_cached(answers: Iterable[Answer]) -> bool:
    return any(answer.cached_tokens is not None for answer in answers)


def _failures(answers: Sequence[Answer]) -> list[Failure]:
    kinds: dict[tuple[int, str], list[Answer]] = {}
    for answer in answers:
        if not answer.good:
            kinds.setdefault((answer.status, re.sub(r"\d+", "", answer.error)), []).append(answer)
    failures = [Failure(len(same), same[0].status, same[0].error) for same in kinds.values()]
    return sorted(failures, key=lambda failure: -failure.requests)


def _predicted(answers: Sequence[Answer]) -> float | None:
    told = [answer for answer in answers if answer.matched_tokens is not None and answer.prompt_tokens]
    return _share(sum(answer.matched_tokens or 0 for answer in told), told) if told else None


def _prediction_error(answers: Sequence[Answer]) -> float | None:
    errors = [
        abs(answer.matched_tokens - answer.cached_tokens) / answer.prompt_tokens
        for answer in answers
        if answer.matched_tokens is not None and answer.cached_tokens is not None and answer.prompt_tokens
    ]
    return statistics.fmean(errors) if errors else None


def _share(tokens: int, answers: Sequence[Answer]) -> float:
    total = sum(answer.prompt_tokens or 0 for answer in answers)
    return tokens / total if total else 0.0


def _latency(times: list[float]) -> Latency | None:
    if not times:
        return None
    times.sort()
    p50, p90, p99 = (percentile(times, percent) for percent in (50, 90, 99))
    return Latency(statistics.fmean(times), p50, p90, p99, times[-1])


def _workers(good: Sequence[Answer]) -> list[WorkerFigures]:
    reported = _reports_cached(good)
    by_worker: dict[str, list[Answer]] = {}
    for answer in good:
        by_worker.setdefault(answer.worker, []).append(answer)
    return [
        WorkerFigures(
            worker,
            len(answers),
            len(answers) / len(good),
            hit_rate(answers) if not reported else hit_rate(answers) or 0.0,
            latency.p50 if (latency := _latency([each.ttft for each in answers if each.ttft is not None])) else None,
        )
        for worker, answers in sorted(by_worker.items())
    ]
