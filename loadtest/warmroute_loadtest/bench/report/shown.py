"""A run as the report shows it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..record import Answer, Run
from ..summary import Summary, summarise


@dataclass(frozen=True, slots=True)
class Shown:
    run: Run
    good: list[Answer]
    summary: Summary
    label: str
    """Not two runs have the same."""
    color: str
    """A name of the style sheet."""


def show(runs: Sequence[Run]) -> list[Shown]:
    assert len(runs) in (1, 2), "a report is of one run, or of two"
    labels = [run.label.strip() or "unnamed run" for run in runs]
    if len(set(labels)) < len(labels):
        labels = [f"{label} ({which})" for label, which in zip(labels, ("first", "second"), strict=True)]
    colors = ["--run-a", "--run-b"][-len(runs) :]
    return [_shown(*one) for one in zip(runs, labels, colors, strict=True)]


def _shown(run: Run, label: str, color: str) -> Shown:
    told = _with_zeros_told(run)
    summary = summarise(run)._replace(workers=summarise(told).workers)
    return Shown(told, [answer for answer in told.answers if answer.good], summary, label, color)


def _with_zeros_told(run: Run) -> Run:
    """Some engines say nothing of a zero: where others of the run's answers tell cached tokens, silence is one.

    A stretch of time or a worker with nothing but zeros has a hit rate of 0 then, and not an unknown one.
    """
    told = [answer.cached_tokens is not None for answer in run.answers]
    if all(told) or not any(told):
        return run
    answers = [
        answer if known or answer.prompt_tokens is None else replace(answer, cached_tokens=0)
        for answer, known in zip(run.answers, told, strict=True)
    ]
    return replace(run, answers=answers)
