"""One request on one worker: the account of it, from the decision to what came of it."""

from collections.abc import Callable

from .blocks import PromptBlocks
from .fleet import Worker
from .tree import PrefixTree
from .usage import Usage


class Placement:
    """One request on one worker: the load that it puts there, taken back exactly once.

    `first_byte` and `release` may be called in any order and any number of times.
    """

    __slots__ = (
        "_clock",
        "_now",
        "_path",
        "_predicted",
        "_prefill",
        "_reading",
        "_trial",
        "_ttft",
        "_waiting_blocks",
        "available",
        "captured",
        "prompt",
        "released",
        "worker",
    )

    def __init__(
        self,
        worker: Worker,
        prompt: PromptBlocks,
        now: Callable[[], float],
        *,
        sent_at: float,
        best: int,
        predicted: int,
        path: list[tuple[int, float]],
    ) -> None:
        """`best` and `predicted`: leading blocks that the best and that this worker are predicted to hold.

        `path`: what the worker had been sent of the prompt before.
        """
        self.worker = worker
        self.prompt = prompt
        tokens, block_tokens = prompt.tokens, prompt.block_tokens
        captured = round(predicted * block_tokens)
        available = captured if best == predicted else round(best * block_tokens)
        self.available = available if available < tokens else tokens
        """Tokens of the prompt that the best worker was predicted to hold."""
        self.captured = captured if captured < tokens else tokens
        """Tokens of the prompt that the chosen worker was predicted to hold."""
        self.released = False
        self._now = now
        self._path = path
        self._predicted = predicted
        # As the request found the worker.
        self._clock = worker.retention.clock
        self._waiting_blocks = worker.backlog.tokens / block_tokens
        self._prefill = worker.backlog.add(tokens - self.captured, sent_at, streamed=prompt.streamed)
        self._ttft: float | None = None
        self._reading: float | None = None
        self._trial = worker.guard.begin()
        worker.in_flight += 1

    def first_byte(self) -> None:
        if self._ttft is None:
            now = self._now()
            self._ttft = now - self._prefill.sent_at
            self.worker.backlog.done(self._prefill, now)

    def release(self) -> None:
        if not self.released:
            self.released = True
            self.first_byte()
            self.worker.in_flight -= 1
            if self._trial:
                self.worker.guard.end_trial()

    def answered(self) -> None:
        """The first byte has come of an answer that is neither a fault nor a decline."""
        self.first_byte()
        self.worker.guard.answered(trial=self._trial)

    def noted(self, reading: float) -> None:
        """The tree says since this reading that the worker was sent the prompt."""
        self._reading = reading

    def retract(self, tree: PrefixTree) -> None:
        """It has not computed the prompt after all."""
        if self._reading is not None:
            tree.retract(self.prompt.hashes, self.worker.index, self._reading, self._path)

    def report(self, usage: Usage | None) -> None:
        """Count what the engine delivered beside what was predicted, and learn from it. At an answer's end, once."""
        if not self.prompt.tokens:
            return
        worker = self.worker
        if usage is not None and usage.leaves_out_zero:
            if usage.cached_tokens is not None:
                worker.silence_is_zero = True
            elif worker.silence_is_zero:
                usage = usage._replace(cached_tokens=0)
        account = worker.accounts.of(self.prompt.model)
        if usage is None or usage.cached_tokens is None:
            account.unreported_requests += 1
            self._time(self._prefill.tokens)
            return
        # In shares of the engine's own count of tokens.
        scale = usage.prompt_tokens / self.prompt.tokens
        captured = round(self.captured * scale)
        account.prompt_tokens += usage.prompt_tokens
        account.available_tokens += round(self.available * scale)
        account.captured_tokens += captured
        account.delivered_tokens += usage.cached_tokens
        account.mispredicted_tokens += abs(captured - usage.cached_tokens)
        if usage.prompt_tokens:
            self._time(usage.prompt_tokens - usage.cached_tokens)
            self._learn(usage.cached_tokens / usage.prompt_tokens)

    def _time(self, computed: int) -> None:
        """Of a request that waited for nobody, the first byte tells how fast the worker is."""
        if self._ttft is not None and self.prompt.streamed and not self._waiting_blocks:
            self.worker.backlog.speed.learn(computed, self._ttft)

    def _learn(self, delivered_share: float) -> None:
        retention = self.worker.retention
        delivered = delivered_share * self.prompt.tokens / self.prompt.block_tokens
        retention.learn(self._path, self._clock, self._predicted, delivered, self._waiting_blocks)
        # The clock had gone on by what was predicted to be new.
        retention.correct(self._predicted - min(delivered, len(self.prompt.hashes)))
