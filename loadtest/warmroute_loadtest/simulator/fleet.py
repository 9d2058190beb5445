"""The event loop: a trace's requests through the router's own routing to a fleet of worker models.

The router's side is `warmroute_router.routing.Routing` itself, with its tree, its loads and its accounts; only the
bytes are missing. Time is a number, and the loop goes from one moment at which something happens to the next.
"""

import heapq
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

from warmroute_router.blocks import PromptBlocks
from warmroute_router.fleet import Fleet, State
from warmroute_router.routing import Placement, Routing
from warmroute_router.tree import PrefixTree
from warmroute_router.usage import Usage
from xxhash import xxh3_64_intdigest

from ..traces import Trace, TraceRequest
from .policies import SimPolicy
from .spec import FleetSpec, SimulationError
from .worker import Happened, Happening, Job, WorkerModel, blocks_needed

Progress = Callable[[], None]
"""Called whenever a request has ended."""


@dataclass(slots=True)
class Answer:
    """What became of one request."""

    worker: int
    arrival: float
    input_tokens: int
    prompt_blocks: int
    predicted_blocks: int
    cached_blocks: int = -1
    first_byte: float = -1.0
    end: float = -1.0

    @property
    def ttft(self) -> float:
        return self.first_byte - self.arrival


class SimulatedFleet:
    """One run of one trace. The trace's blocks are the fleet's: see `spec.coarsened`."""

    def __init__(self, trace: Trace, policy: SimPolicy, spec: FleetSpec, progress: Progress = lambda: None) -> None:
        _check_fit(trace, spec)
        self._trace = trace
        self._policy = policy
        self._progress = progress
        self._speed = spec.speed
        self.workers = [
            WorkerModel(spec.blocks, trace.block_tokens, spec.prefill_rate, spec.tpot) for _ in range(spec.workers)
        ]
        self.fleet = Fleet(tuple(f"http://worker-{index}" for index in range(spec.workers)))
        for worker in self.fleet.workers:
            worker.state = State.READY
            worker.retention.start_at(spec.blocks)  # as the router reads it from an engine's metrics
        tree = PrefixTree(spec.tree_bound(trace.block_tokens))
        self._routing = Routing(self.fleet, tree, "simulated", policy)
        self._placements: dict[int, Placement] = {}
        self._alarms: list[tuple[float, int]] = []
        """When each worker is to be woken; entries that its `next_at` no longer agrees with are void."""
        self.answers: list[Answer] = []

    def run(self) -> list[Answer]:
        """The answers, in the order of the requests."""
        for number, request in enumerate(self._trace.requests):
            arrival = request.arrival / self._speed
            self._run_until(arrival)
            self._dispatch(number, request, arrival)
        self._run_until(inf)
        return self.answers

    def _run_until(self, end: float) -> None:
        """Let everything happen up to `end`, and at it, so that who arrives then finds it done."""
        while self._alarms and self._alarms[0][0] <= end:
            now, index = heapq.heappop(self._alarms)
            worker = self.workers[index]
            if now != worker.next_at:
                continue
            for happened in worker.wake(now):
                self._tell(happened, now)
            self._set_alarm(index)

    def _dispatch(self, number: int, request: TraceRequest, now: float) -> None:
        prompt = prompt_of(number, request, self._trace.block_tokens)
        placement = self._routing.place(prompt)
        assert placement is not None, "every simulated worker is ready"
        index = placement.worker.index
        self._policy.dispatched(prompt, placement.worker, now)
        self._placements[number] = placement
        predicted = placement.captured // self._trace.block_tokens
        self.answers.append(Answer(index, now, request.input_tokens, len(request.block_ids), predicted))
        job = Job(number, request.block_ids, request.input_tokens, request.output_tokens)
        self.workers[index].submit(job, now)
        self._set_alarm(index)

    def _set_alarm(self, index: int) -> None:
        next_at = self.workers[index].next_at
        if next_at < inf:
            heapq.heappush(self._alarms, (next_at, index))

    def _tell(self, happened: Happened, now: float) -> None:
        job = happened.job
        answer, placement = self.answers[job.number], self._placements[job.number]
        if happened.what is Happening.FIRST_BYTE:
            answer.first_byte = now
            answer.cached_blocks = job.cached_blocks
            placement.first_byte()
            self._policy.first_byte(placement.prompt, placement.worker, now)
            return
        answer.end = now
        del self._placements[job.number]
        # In the order of the proxy: what the engine says of the prompt comes with its last bytes.
        cached_tokens = job.cached_blocks * self._trace.block_tokens
        placement.report(Usage(job.input_tokens, cached_tokens))
        placement.release()
        self._policy.ended(placement.prompt, placement.worker, now)
        self._progress()


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


def _check_fit(trace: Trace, spec: FleetSpec) -> None:
    needs = (blocks_needed(r.input_tokens, r.output_tokens, trace.block_tokens) for r in trace.requests)
    most = max(needs, default=0)
    if most > spec.blocks:
        raise SimulationError(
            f"{trace.name}: a request needs {most} blocks of {trace.block_tokens} tokens, "
            f"and a worker has {spec.blocks}"
        )
