"""The event loop: a trace's requests through routers to a fleet of worker models."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import NamedTuple

from warmroute_router.blocks import PromptBlocks
from warmroute_router.placement import Placement
from warmroute_router.usage import Usage
from xxhash import xxh3_64_intdigest

from ..traces import Trace, TraceRequest
from .agenda import Agenda
from .replicas import MakePolicy, Replicas
from .router import Router
from .spec import FleetSpec, SimulationError, without_zero
from .worker import Happened, Happening, Job, WorkerModel, blocks_needed

Progress = Callable[[], None]
"""Called whenever a request has ended."""

WORKER_RESTART_S = 30.0
"""Seconds for which a worker that restarts is away."""
_RESTARTED_WORKER = 0


@dataclass(slots=True)
class Answer:
    """What became of one request."""

    arrival: float
    input_tokens: int
    prompt_blocks: int
    worker: int = -1
    """The last that it was sent to; so are the rest."""
    predicted_blocks: int = -1
    cached_blocks: int = -1
    first_byte: float = -1.0
    end: float = -1.0

    @property
    def has_begun(self) -> bool:
        return self.first_byte >= 0

    @property
    def ttft(self) -> float:
        return self.first_byte - self.arrival


class _Sent(NamedTuple):
    """A request on its worker."""

    router: Router
    placement: Placement


class SimulatedFleet:
    """One run of one trace. The trace's blocks are the fleet's: see `spec.coarsened`."""

    def __init__(
        self, trace: Trace, make_policy: MakePolicy, spec: FleetSpec, progress: Progress = lambda: None
    ) -> None:
        _check(trace, spec)
        # Only there, since a name is what breaks ties: runs without a snapshot keep the figures that they always had.
        takes_snapshot = spec.restart_router_at is not None and spec.warm_restart
        self._trace = without_zero(trace) if takes_snapshot else trace
        self._progress = progress
        self._speed = spec.speed
        self._agenda = Agenda()
        self.workers = [
            WorkerModel(spec.blocks, trace.block_tokens, spec.prefill_rate, spec.tpot) for _ in range(spec.workers)
        ]
        self.replicas = Replicas(spec, trace.block_tokens, make_policy, self._agenda)
        self._sent: dict[int, _Sent] = {}
        """By the requests' numbers, for those that have not ended."""
        self.answers: list[Answer] = []
        if spec.restart_worker_at is not None:
            self._agenda.at(spec.restart_worker_at, partial(self._restart_worker, _RESTARTED_WORKER))

    def run(self) -> list[Answer]:
        """The answers, in the order of the requests."""
        for number, request in enumerate(self._trace.requests):
            arrival = request.arrival / self._speed
            self._agenda.run_until(arrival)
            self.answers.append(Answer(arrival, request.input_tokens, len(request.block_ids)))
            self._send(number, self.replicas.pick())
        self._agenda.run_until(inf)
        return self.answers

    def _send(self, number: int, router: Router) -> None:
        request, answer = self._trace.requests[number], self.answers[number]
        placement = router.place(prompt_of(number, request, self._trace.block_tokens))
        self._sent[number] = _Sent(router, placement)
        answer.worker = placement.worker.index
        answer.predicted_blocks = placement.captured // self._trace.block_tokens
        job = Job(number, request.block_ids, request.input_tokens, request.output_tokens)
        self.workers[answer.worker].submit(job, self._agenda.now)
        self._set_alarm(answer.worker)

    def _set_alarm(self, index: int) -> None:
        next_at = self.workers[index].next_at
        if next_at < inf:
            self._agenda.at(next_at, partial(self._wake, index), rank=index)

    def _wake(self, index: int) -> None:
        now, worker = self._agenda.now, self.workers[index]
        if now != worker.next_at:
            return  # something has come in between, and set an alarm of its own
        for happened in worker.wake(now):
            self._tell(happened)
        self._set_alarm(index)

    def _tell(self, happened: Happened) -> None:
        job = happened.job
        answer = self.answers[job.number]
        router, placement = self._sent[job.number]
        if happened.what is Happening.FIRST_BYTE:
            answer.first_byte = self._agenda.now
            answer.cached_blocks = job.cached_blocks
            router.first_byte(placement)
            return
        answer.end = self._agenda.now
        del self._sent[job.number]
        router.ended(placement, Usage(job.input_tokens, job.cached_blocks * self._trace.block_tokens))
        self._progress()

    def _restart_worker(self, index: int) -> None:
        """Its cache is gone, and so are its requests: they are sent again, to others.

        Answers that had begun too. There it is the client who asks again; its time to the first token goes on.
        """
        self.workers[index].restart()
        self.replicas.worker_gone(index)
        lost = [number for number, sent in self._sent.items() if sent.placement.worker.index == index]
        for number in lost:
            router, placement = self._sent[number]
            router.broken(placement, had_first_byte=self.answers[number].has_begun)
        for number in lost:
            self.answers[number].first_byte = -1.0
            self._send(number, self.replicas.heir(self._sent[number].router))
        self._agenda.after(WORKER_RESTART_S, partial(self.replicas.worker_back, index))


def prompt_of(number: int, request: TraceRequest, block_tokens: int) -> PromptBlocks:
    """As the router would see it. A trace does not name the rest that fills no block: it is taken for unique."""
    last = request.block_ids[-1] if request.block_ids else 0
    digest = xxh3_64_intdigest(number.to_bytes(8, "little"), last)
    session = xxh3_64_intdigest(request.session.encode()) if request.session else 0
    return PromptBlocks(request.block_ids, digest, request.input_tokens, block_tokens, session)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Policies draw from the module `random`, as they do when they serve; others get it back untouched."""
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


def _check(trace: Trace, spec: FleetSpec) -> None:
    needs = (blocks_needed(r.input_tokens, r.output_tokens, trace.block_tokens) for r in trace.requests)
    most = max(needs, default=0)
    if most > spec.blocks:
        raise SimulationError(
            f"{trace.name}: a request needs {most} blocks of {trace.block_tokens} tokens, "
            f"and a worker has {spec.blocks}"
        )
    if spec.restart_worker_at is not None and spec.workers == 1:
        raise SimulationError("a lone worker cannot restart: nobody would be left to answer")
