"""Every case by everybody who can: checked, then timed."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from . import ours
from .cases import Case
from .machine import Machine
from .peers import PEERS, Peer
from .problem import Contender, Problem, problem_of
from .timing import Time, Timer
from .truth import Truth, truth_of


class Row(NamedTuple):
    case: Case
    contender: str
    time: Time
    error: float | None
    """Relative, see `truth`."""
    note: str
    """Why there is no time, where there is none."""
    chosen: bool = True

    @property
    def ours(self) -> bool:
        return self.contender.startswith(ours.OURS)

    def bandwidth(self, seconds: float | None) -> float | None:
        """Bytes/s, of those that the case needs at least."""
        return self.case.cost.bytes / seconds if seconds else None

    def rate(self, seconds: float | None) -> float | None:
        """Operations/s."""
        return self.case.cost.flops / seconds if seconds else None

    def share_of_copy(self, machine: Machine) -> float | None:
        """As a CUDA graph, as is the next."""
        return _share(self.bandwidth(self.time.graph), machine.copy_bandwidth)

    def share_of_matrix(self, machine: Machine) -> float | None:
        return _share(self.rate(self.time.graph), machine.matrix_rate)


def measured(
    cases: Sequence[Case], device: torch.device, timer: Timer, peers: Sequence[Peer] = PEERS
) -> Iterator[Row]:
    """Rows as they come. What is wrong is noted, and not timed; a peer that fails costs its own row only."""
    for case in cases:
        try:
            yield from _of_case(case, device, timer, peers)
        except torch.OutOfMemoryError:
            yield _untimed(case, ours.OURS, "out of memory")


def _of_case(case: Case, device: torch.device, timer: Timer, peers: Sequence[Peer]) -> Iterator[Row]:
    problem = problem_of(case, device)
    truth = truth_of(problem)
    for contender in ours.contenders(problem):
        yield _row(problem, contender, truth, timer)
    for peer in peers:
        if not peer.installed:
            continue
        try:
            their = peer.contender(problem)
            row = None if their is None else _row(problem, their, truth, timer)
        except Exception as error:  # whatever another package does, our figures are still wanted
            row = _untimed(case, peer.name, f"failed: {type(error).__name__}: {error}".splitlines()[0][:200])
        if row is not None:
            yield row


def _row(problem: Problem, contender: Contender, truth: Truth, timer: Timer) -> Row:
    contender.run()
    error = truth.error_of(contender.output())
    if not error <= truth.tolerance:
        note = f"wrong: relative error {error:.2g}, at most {truth.tolerance:.2g} is allowed"
        return Row(problem.case, contender.name, Time(None, None), error, note, contender.chosen)
    return Row(problem.case, contender.name, timer(contender.run), error, "", contender.chosen)


def _untimed(case: Case, contender: str, note: str) -> Row:
    return Row(case, contender, Time(None, None), None, note)


def _share(reached: float | None, most: float | None) -> float | None:
    return reached / most if reached and most else None
