"""The figures of a run as the report names, groups and writes them. What was not told is None, never 0."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from ..summary import LATE, Latency
from .shown import Shown
from .units import count, per_second, percent, seconds, tick, times


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    value: float | None
    unit: Callable[[float], str] = count
    better: Literal["more", "less", ""] = ""

    @property
    def text(self) -> str:
        return "not reported" if self.value is None else self.unit(self.value)


def figures(one: Shown) -> dict[str, list[Figure]]:
    """By group. Every run has the same groups and names, so that two can be put side by side."""
    told = one.summary
    prompts = told.prompt_tokens_per_s if present(answer.prompt_tokens for answer in one.good) else None
    outputs = told.completion_tokens_per_s if present(answer.completion_tokens for answer in one.good) else None
    failed = told.requests - told.good
    return {
        "Requests": [
            Figure("requests", told.requests),
            Figure("failed", failed, count, "less"),
            Figure("failed, share", failed / told.requests if told.requests else None, percent, "less"),
            Figure("duration", one.run.duration, seconds),
            Figure("answers per second", told.requests_per_s, per_second, "more"),
        ],
        "Tokens": [
            Figure("prompt tokens per second", prompts, per_second),
            Figure("output tokens per second", outputs, per_second, "more"),
        ],
        "Prefix cache": [
            Figure("hit rate", told.hit_rate, percent, "more"),
            Figure("hit rate predicted by the router", told.predicted, percent),
            Figure("prediction error, mean share of a prompt", told.prediction_error, percent, "less"),
        ],
        "Time to first token": _spread("TTFT", told.ttft),
        "End-to-end latency": _spread("E2E", told.e2e),
        "Inter-token latency": _spread("ITL", told.itl),
        "Workers": [
            Figure("workers that answered", len(told.workers)),
            Figure("skew", told.skew if told.workers else None, times, "less"),
        ],
        "Load generator": [
            Figure(f"sent more than {tick(LATE)} late", told.late if told.requests else None, percent, "less"),
            Figure("latest send", told.latest if told.requests else None, seconds, "less"),
        ],
    }


def present(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _spread(name: str, latency: Latency | None) -> list[Figure]:
    values = latency._asdict() if latency else dict.fromkeys(Latency._fields)
    return [Figure(f"{name} {which}", value, seconds, "less") for which, value in values.items()]
