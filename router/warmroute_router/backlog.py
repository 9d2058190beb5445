"""What a worker still has to compute: what it was sent and has not answered, less what it must have done meanwhile.

Engines compute prompts about in the order in which they came. That one is done is told by its first byte, but
between two first bytes a long prompt may be all but done: so each worker's prefill speed is measured, on requests
that found it idle, and the time since it began with the oldest prompt counts.
"""

from .calibration import PrefillSpeed


class Prefill:
    """One prompt on its way to its first byte."""

    __slots__ = ("sent_at", "streamed", "tokens")

    def __init__(self, tokens: int, sent_at: float, *, streamed: bool = True) -> None:
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
        self._peers: dict[str, Prefill] = {}
        """The oldest of each peer that has any."""
        self._computed_at = 0.0
        """When it was last known to have finished a prompt."""

    @property
    def oldest(self) -> Prefill | None:
        """Of this router's own."""
        return next(iter(self._own), None)

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

    def of_peer(self, peer: str, more_tokens: int, oldest: Prefill | None, now: float) -> None:
        """It has so many more waiting than before, or fewer where negative; `oldest` is the first of them."""
        self.tokens += more_tokens
        if more_tokens < 0:
            self._computed_at = now
        if oldest is not None:
            self._peers[peer] = oldest
        else:
            self._peers.pop(peer, None)

    def remaining_at(self, now: float) -> float:
        """What is left to be computed of the `tokens`."""
        speed = self.speed.tokens_per_s
        if speed is None:
            return self.tokens
        while head := self._head():
            begun = max(head.sent_at, self._computed_at)
            computed = max(speed * (now - begun), 0.0)
            if computed < head.tokens or head.streamed:
                return self.tokens - min(computed, head.tokens)
            self.done(head, begun + head.tokens / speed)
        return self.tokens

    def _head(self) -> Prefill | None:
        """What the worker is computing, whoever sent it."""
        own = self.oldest
        if not self._peers:
            return own
        return min((own, *self._peers.values()) if own else self._peers.values(), key=_sent_at)


def _sent_at(prefill: Prefill) -> float:
    return prefill.sent_at
