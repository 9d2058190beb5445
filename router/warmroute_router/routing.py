"""From a request to a worker: prompt, blocks, tree, policy; and the account of what came of it."""

from collections import Counter
from collections.abc import Collection

from .blocks import PromptBlocks, hash_blocks
from .fleet import Fleet, State, Worker
from .policies import FleetView, Policy
from .prompt import read_prompt
from .tree import PrefixTree
from .usage import Usage

_NO_HASHES = hash_blocks(b"").hashes
_MEAN_WEIGHT = 0.02
"""Of one request in the running mean of new tokens: the last fifty or so count."""


class Placement:
    """One request on one worker: the load that it puts there, taken back exactly once.

    `first_byte` and `release` may be called in any order and any number of times.
    """

    __slots__ = ("_waiting", "available", "captured", "prompt", "released", "worker")

    def __init__(self, worker: Worker, prompt: PromptBlocks, available: int, captured: int) -> None:
        self.worker = worker
        self.prompt = prompt
        self.available = available
        """Tokens of the prompt that the best worker was predicted to hold."""
        self.captured = captured
        """Tokens of the prompt that the chosen worker was predicted to hold."""
        self.released = False
        self._waiting = prompt.tokens - captured
        worker.in_flight += 1
        worker.waiting_tokens += self._waiting

    def first_byte(self) -> None:
        self.worker.waiting_tokens -= self._waiting
        self._waiting = 0

    def release(self) -> None:
        if not self.released:
            self.released = True
            self.first_byte()
            self.worker.in_flight -= 1

    def report(self, usage: Usage | None) -> None:
        """Count what the engine delivered beside what was predicted, scaled to the engine's own count of tokens."""
        if not self.prompt.tokens:
            return
        worker = self.worker
        if usage is None or usage.cached_tokens is None:
            worker.unreported_requests += 1
            return
        scale = usage.prompt_tokens / self.prompt.tokens
        worker.prompt_tokens += usage.prompt_tokens
        worker.available_tokens += round(self.available * scale)
        worker.captured_tokens += round(self.captured * scale)
        worker.delivered_tokens += usage.cached_tokens


class Routing:
    def __init__(self, fleet: Fleet, tree: PrefixTree, policy_name: str, policy: Policy) -> None:
        self.fleet = fleet
        self.tree = tree
        self.policy_name = policy_name
        self.decisions: Counter[str] = Counter()
        """By the policy's reason."""
        self._policy = policy
        self._mean_new_tokens = 0.0
        self._unread = 0

    def understand(self, path: str, body: bytes) -> PromptBlocks:
        """The prompt in blocks. Where there is none to be read, an empty one, which goes by load alone."""
        prompt = read_prompt(path, body)
        if prompt is not None:
            return hash_blocks(prompt.key, prompt.namespace)
        self._unread += 1  # a digest of its own for each, so that ties spread
        return PromptBlocks(_NO_HASHES, self._unread, 0)

    def place(self, prompt: PromptBlocks, without: Collection[Worker] = ()) -> Placement | None:
        """Choose among the ready workers and reserve there; None where there is none left.

        The prefix counts as there from now on: the next request that shares it may come before the answer.
        """
        workers = [worker for worker in self.fleet.ready() if worker not in without]
        if not workers:
            return None
        cached = self.tree.match(prompt.hashes)
        view = FleetView(workers, cached, self._mean_new_tokens)
        worker, reason = self._policy.choose(prompt, view)
        self.decisions[reason if prompt.tokens else "no_prompt"] += 1
        best = max((cached.get(candidate.index, 0) for candidate in workers), default=0)
        held = cached.get(worker.index, 0)
        placement = Placement(worker, prompt, best * prompt.block_tokens, held * prompt.block_tokens)
        if prompt.hashes:
            self.tree.insert(prompt.hashes, worker.index)
            new_tokens = prompt.tokens - placement.captured
            weight = _MEAN_WEIGHT if self._mean_new_tokens else 1.0
            self._mean_new_tokens += weight * (new_tokens - self._mean_new_tokens)
        return placement

    def unreachable(self, worker: Worker, *, gone: bool) -> None:
        """No connection to a worker. Where its process is `gone`, so is what it had cached."""
        worker.state = State.UNHEALTHY
        if gone:
            self.tree.forget(worker.index)
