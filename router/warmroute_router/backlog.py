"""What a worker still has to compute: what it was sent and has not answered, less what it must have done meanwhile.

Engines compute prompts about in the order in which they came. That one is done is told by its first byte, but
between two first bytes a long prompt may be all but done: so each worker's prefill speed is measured, on requests
that found it idle, and the time since it began with the oldest prompt counts.
"""

from .calibration import PrefillSpeed


class Prefill:
    """One prompt on its way to its first byte."""

    __slots__ = ("sent_at", "streamed", "tokens")

    def __init__(self, tokens: int, sent_at: float, *, streamed: bool) -> None:
        self.tokens = tokens
        """Those that the worker had to compute, by prediction."""
        self.sent_at = sent_at
        """Seconds, on the clock of whoever asks."""
        self.streamed = streamed
        """Whether its first byte tells when it is computed. An answer that comes whole is decoded by then as well."""


class Backlog:
    """Of one worker, by this router and its peers."""

    def __init__(self) -> None:
        self.speed = PrefillSpeed()
        self.tokens = 0
        """Sent and not answered."""
        self._own: dict[Prefill, None] = {}
        """In the order in which they were sent."""
        self._computed_at = 0.0
        """When it was last known to have finished a prompt."""

    def add(self, tokens: int, now: float, *, streamed: bool) -> Prefill:
        prefill = Prefill(tokens, now, streamed=streamed)
        self._own[prefill] = None
        self.tokens += tokens
        return prefill

    def done(self, prefill: Prefill, now: float) -> None:
        """May be called again, and for what was taken for done before."""
        if prefill in self._own:
            del self._own[prefill]
            self.tokens -= prefill.tokens
            self._computed_at = now

    def of_peers(self, tokens: int, now: float) -> None:
        """Peers have so many more waiting than before, or fewer where negative."""
        self.tokens += tokens
        if tokens < 0:
            self._computed_at = now

    def remaining_at(self, now: float) -> float:
        """What is left to be computed of the `tokens`."""
        speed = self.speed.tokens_per_s
        while self._own and speed is not None:
            head = next(iter(self._own))
            begun = max(head.sent_at, self._computed_at)
            computed = speed * (now - begun)
            if computed < head.tokens or head.streamed:
                return self.tokens - min(computed, head.tokens)
            self.done(head, begun + head.tokens / speed)
        return self.tokens
