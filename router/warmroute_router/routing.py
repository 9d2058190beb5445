"""From a request to a worker: prompt, blocks, tree, policy."""

import time
from array import array
from collections import Counter
from collections.abc import Callable, Collection

from xxhash import xxh3_64_intdigest

from .blocks import PromptBlocks, hash_blocks
from .calibration import TokenRatio
from .errors import RequestError, all_open, model_missed, model_not_found
from .fleet import Fleet, State, Worker
from .histogram import MICROSECONDS, Histogram
from .placement import Placement
from .policies import FleetView, Policy
from .prompt import Prompt
from .tree import Path, PrefixTree

_NO_HASHES = hash_blocks(b"").hashes
_MEAN_WEIGHT = 0.02
"""Of one request in the running mean of new tokens: the last fifty or so count."""
_RECENT_DECAY = 0.995
"""Of a worker's recent new tokens, with each request to anyone: half of them are from the last 140 requests."""
_LARGE = 1e100
"""Far from where floats end."""


class Routing:
    def __init__(
        self,
        fleet: Fleet,
        tree: PrefixTree,
        policy_name: str,
        policy: Policy,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now`: seconds, from anywhere."""
        self.fleet = fleet
        self.tree = tree
        self.policy_name = policy_name
        self.policy_bytes = policy_name.encode("ascii")
        self.token_ratio = TokenRatio()
        self.decisions: Counter[str] = Counter()
        """By the policy's reason; `no_prompt`: nothing to go by; `no_capacity`: nobody to choose."""
        self.decision_time = Histogram(MICROSECONDS)
        """Of each: reading the prompt, hashing it, finding it in the tree, and choosing."""
        self.placed: Callable[[Placement], None] | None = None
        """Told of each placement."""
        self.has_peers = False
        """Whether other routers are heard of."""
        self.max_per_worker: int | None = None
        """Requests in flight, by all routers."""
        self.now = now
        self._policy = policy
        self._mean_new_tokens = 0.0
        self._recent_unit = 1.0
        self._unread = 0

    def blocks_of(self, prompt: Prompt | None, session: str = "", model: str = "") -> PromptBlocks:
        """A prompt in blocks. Where there is none to be read, an empty one, which goes by load alone.

        `session` is what a header calls the session; otherwise the body's name for it counts.
        `model` is that of a body which is no prompt.
        """
        if prompt is not None:
            name = session or prompt.session
            return hash_blocks(
                prompt.key,
                prompt.namespace,
                tokens_per_byte=self.token_ratio.of(prompt.model),
                session=xxh3_64_intdigest(name.encode()) if name else 0,
                streamed=prompt.streamed,
                model=prompt.model,
            )
        self._unread += 1  # a digest of its own for each, so that ties spread
        return PromptBlocks(_NO_HASHES, self._unread, 0, model=model)

    def place(self, prompt: PromptBlocks, without: Collection[Worker] = ()) -> Placement | None:
        """Choose among the ready workers of its model and reserve there; None where there is none left.

        The prefix counts as there from now on: the next request that shares it may come before the answer.
        """
        now = self.now()
        workers = self.candidates(without, now, prompt.model)
        if not workers:
            return None
        for worker in workers:
            worker.remaining_tokens = worker.backlog.remaining_at(now) if worker.backlog.tokens else 0.0
        path = self.tree.find(prompt.hashes)
        cached, doubtful = path.cached(self.fleet.retentions)
        view = FleetView(workers, cached, self._mean_new_tokens, doubtful, self.has_peers)
        worker, reason = self._policy.choose(prompt, view)
        self.decisions[reason if prompt.tokens else "no_prompt"] += 1
        predicted = best = cached.get(worker.index, 0)
        if cached and (len(cached) > 1 or not predicted):
            # What those have who are full or decline is available, too.
            all_of_them = len(workers) == len(self.fleet.catalogue.serving(prompt.model))
            up = workers if all_of_them else self._ready(prompt.model)
            best = max([cached.get(each.index, 0) for each in up])
        readings = path.readings(worker.index)
        placement = Placement(worker, prompt, self.now, sent_at=now, best=best, predicted=predicted, path=readings)
        reading = self._note(worker, path, readings, predicted, now)
        if reading is not None:
            placement.noted(reading)
        self._count_new(worker, prompt.tokens, prompt.tokens - placement.captured)
        if self.placed is not None:
            self.placed(placement)
        return placement

    def follow(self, worker: Worker, hashes: "array[int]", tokens: int) -> None:
        """Another router has sent this prompt there. As if this one had, but for the load, which it tells itself."""
        path = self.tree.find(hashes)
        predicted = path.cached(self.fleet.retentions).blocks.get(worker.index, 0)
        self._note(worker, path, path.readings(worker.index), predicted, self.now())
        cached = predicted / len(hashes) if hashes else 0.0
        self._count_new(worker, tokens, round(tokens * (1 - cached)))

    def _note(
        self, worker: Worker, path: Path, readings: list[tuple[int, float]], predicted: int, now: float
    ) -> float | None:
        """The prompt of `path`, of which `predicted` blocks are cached there, is on its way to `worker`."""
        if not path.hashes:
            return None
        reading = worker.retention.sent(readings, predicted, len(path.hashes) - predicted, now)
        self.tree.insert(path, worker.index, reading)
        return reading

    def _count_new(self, worker: Worker, tokens: int, new_tokens: int) -> None:
        """Of a prompt of so many tokens; none where it was not understood."""
        if tokens:
            weight = _MEAN_WEIGHT if self._mean_new_tokens else 1.0
            self._mean_new_tokens += weight * (new_tokens - self._mean_new_tokens)
        # All that came before shall weigh less by `_RECENT_DECAY`: the same as letting the new one weigh more.
        self._recent_unit /= _RECENT_DECAY
        # One more for the request itself, so that those that compute nothing are spread as well.
        worker.recent_new_tokens += (new_tokens + 1) * self._recent_unit
        if self._recent_unit > _LARGE:
            for each in self.fleet.workers:
                each.recent_new_tokens /= self._recent_unit
            self._recent_unit = 1.0

    def recent_of(self, worker: Worker) -> float:
        """Its new tokens of late, in tokens of the last request's weight."""
        return worker.recent_new_tokens / self._recent_unit

    def adopt(self, worker: Worker, recent: float) -> None:
        """Begin with what another router knows."""
        worker.recent_new_tokens = max(worker.recent_new_tokens, recent * self._recent_unit)

    def candidates(self, without: Collection[Worker], now: float, model: str = "") -> list[Worker]:
        """Who may be sent a request: up, not kept out by its guard, with room, and not one of these."""
        ready, cap = State.READY, self.max_per_worker
        serving = self.fleet.catalogue.serving(model)
        workers = [worker for worker in serving if worker.state is ready and worker.guard.closed]
        if len(workers) < len(serving):
            up = [worker for worker in serving if worker.state is ready and worker not in without]
            workers = [worker for worker in up if worker.guard.admits(now)]
            # Where nobody else is left, who has declined may do so again, in its own words.
            workers = workers or [worker for worker in up if worker.guard.declines_only()]
        elif without:
            workers = [worker for worker in workers if worker not in without]
        if cap is not None:
            workers = [worker for worker in workers if worker.in_flight < cap]
        return workers

    def has_others(self, tried: Collection[Worker], model: str = "") -> bool:
        """Whether anybody else could answer, now or as soon as there is room."""
        now = self.now()
        return any(worker not in tried and worker.guard.admits(now) for worker in self._ready(model))

    def is_full(self, tried: Collection[Worker], model: str = "") -> bool:
        """Whether only the lack of room keeps a request from being placed."""
        return self.max_per_worker is not None and self.has_others(tried, model)

    def unplaceable(self, model: str) -> RequestError:
        """Why a request for it cannot be placed, which is a decision too."""
        self.decisions["no_capacity"] += 1
        catalogue, now = self.fleet.catalogue, self.now()
        if self.fleet.workers and not catalogue.serving(model):
            return model_missed(model) if catalogue.is_missed(model) else model_not_found(model, catalogue.models)
        waits = [worker.guard.wait(now) for worker in self._ready(model)]
        return all_open(min(waits)) if waits else self.fleet.nobody()

    def _ready(self, model: str) -> list[Worker]:
        return [worker for worker in self.fleet.catalogue.serving(model) if worker.state is State.READY]

    @property
    def has_room(self) -> bool:
        """Whether a request need not wait. Where nobody is up, waiting would not help it."""
        if self.max_per_worker is None:
            return True
        ready = self.fleet.ready()
        return not ready or any(worker.in_flight < self.max_per_worker for worker in ready)

    def unreachable(self, worker: Worker, *, gone: bool) -> None:
        """No connection to a worker. Where its process is `gone`, so is what it had cached."""
        if worker.state in (State.STARTING, State.READY):
            worker.state = State.UNHEALTHY
        if gone:
            self.process_ended(worker)

    def process_ended(self, worker: Worker) -> None:
        """Whatever answers there from now on is another one."""
        self.forget(worker)
        worker.guard.reset()
        worker.silence_is_zero = False

    def forget(self, worker: Worker) -> None:
        """Its cache is empty."""
        self.tree.forget(worker.index)
        worker.retention.emptied()

    def remove(self, worker: Worker) -> None:
        """It is gone for good."""
        if worker.state is not State.GONE:
            self.fleet.remove(worker)
            self.tree.forget(worker.index)
