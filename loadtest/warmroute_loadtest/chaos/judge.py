"""What a router may be blamed for: one request's result against what the request met at the workers."""

from collections.abc import Sequence
from enum import StrEnum

from .clients import Outcome, Result
from .faults import AFTER_FIRST_BYTE, KILLED, Fault, Kind


class Verdict(StrEnum):
    ANSWERED = "answered well"
    PASSED_ON = "worker's own 4xx or 500"
    BROKEN = "broken after the first byte"
    NOBODY_WELL = "lost while no worker was well all the time"
    LOST = "lost"
    WRONG = "wrong answer"


BLAMED = frozenset({Verdict.LOST, Verdict.WRONG})
_NOT_RETRIED = frozenset({400, 404, 413, 422})
"""Statuses of a worker that are its answer: another one would say the same, or it may have done something."""
_BROKEN = frozenset({Outcome.ERROR_EVENT, Outcome.CUT, Outcome.TOO_LONG, Outcome.GARBLED})


def judge(result: Result, met: Sequence[Fault], *, worker_was_well: bool) -> Verdict:
    """`met`: the faults that the request met, in order."""
    if result.outcome is Outcome.ANSWERED:
        return Verdict.ANSWERED
    if result.outcome is Outcome.STATUS and _is_workers_own(result, met):
        return Verdict.PASSED_ON
    if result.outcome in _BROKEN and result.began and _may_break(result, met):
        return Verdict.BROKEN
    if result.outcome in (Outcome.MISTAKEN, Outcome.GARBLED):
        return Verdict.WRONG
    return Verdict.LOST if worker_was_well else Verdict.NOBODY_WELL


def _is_workers_own(result: Result, met: Sequence[Fault]) -> bool:
    """Unchanged, and not one for which another worker should have been asked."""
    kinds = (Kind.STATUS, Kind.EARLY_RESPONSE)
    last = met[-1] if met else Fault()
    if result.status == 413:  # comes before the request is read, so nobody has noted it
        return result.code == "mock_413"
    answered = last.kind in kinds and last.status == result.status and result.code == f"mock_{result.status}"
    if result.status == 500:  # of one worker it is that worker's fault; of two, the request's
        return answered and sum(fault.status == 500 for fault in met if fault.kind is Kind.STATUS) > 1
    return answered and result.status in _NOT_RETRIED


def _may_break(result: Result, met: Sequence[Fault]) -> bool:
    last = met[-1] if met else Fault()
    if result.outcome is Outcome.GARBLED:
        return last.kind is Kind.LENGTH_TOO_SHORT  # nobody but the client can know
    if result.outcome is Outcome.TOO_LONG:
        return last.kind is Kind.HUGE
    return last.kind in AFTER_FIRST_BYTE or last == KILLED
