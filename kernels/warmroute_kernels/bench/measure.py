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

OUT_OF_MEMORY = "out of memory"


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

    @property
    def faulty(self) -> bool:
        """That a GPU is too small for a case is not our fault."""
        return self.ours and self.note not in ("", OUT_OF_MEMORY)

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
    """Rows as they come. What is wrong is noted, and not timed; what fails costs its own row only."""
    for case in cases:
        yield from _of_case(case, device, timer, peers)


def _of_case(case: Case, device: torch.device, timer: Timer, peers: Sequence[Peer]) -> Iterator[Row]:
    try:
        problem = problem_of(case, device)
        truth = truth_of(problem)
        contenders = ours.contenders(problem)
    except Exception as error:  # of a compiler, or of the GPU: the other cases' figures are still wanted
        yield _failed(case, ours.OURS, error)
        return
    for contender in contenders:
        yield _row(problem, contender, truth, timer)
    for peer in peers:
        if not peer.installed:
            continue
        try:
            their = peer.contender(problem)
        except Exception as error:  # whatever another package does
            yield _failed(case, peer.name, error)
            continue
        if their is not None:
            yield _row(problem, their, truth, timer)


def _row(problem: Problem, contender: Contender, truth: Truth, timer: Timer) -> Row:
    case, name, chosen = problem.case, contender.name, contender.chosen
    try:
        contender.run()
        error = truth.error_of(contender.output())
        if not error <= truth.tolerance:
            note = f"wrong: relative error {error:.2g}, at most {truth.tolerance:.2g} is allowed"
            return Row(case, name, Time(None, None), error, note, chosen)
        return Row(case, name, timer(contender.run), error, "", chosen)
    except Exception as error:  # as above
        return _failed(case, name, error, chosen)


def _failed(case: Case, contender: str, error: Exception, chosen: bool = True) -> Row:
    note = f"failed: {type(error).__name__}: {error}".splitlines()[0][:200]
    if isinstance(error, torch.OutOfMemoryError):
        note = OUT_OF_MEMORY
    return Row(case, contender, Time(None, None), None, note, chosen)


def _share(reached: float | None, most: float | None) -> float | None:
    return reached / most if reached and most else None
