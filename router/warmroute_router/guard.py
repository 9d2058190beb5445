"""What keeps a worker that is up from being chosen: its circuit breaker, and its own word that it is full.

    closed     any request may go there
    open       none may, for a while: too many faults in a row (a broken connection, a 5xx); or it has declined one
               (429, 503), which is back-pressure and no fault
    half-open  a few at a time may, until as many have been answered; the next fault, or decline, opens it again

After a fault the pause is the configured one; after a decline it is what `Retry-After` says, or doubles from half a
second. A worker that declines may still be asked where nobody else is left: its own answer is better than ours.
"""

from enum import StrEnum

from .config import BreakerConfig

DECLINED_PAUSE = 0.5
MAX_DECLINED_PAUSE = 10.0
"""Seconds."""


class Reason(StrEnum):
    FAULTS = "faults"
    DECLINED = "declined"


class Guard:
    def __init__(self, config: BreakerConfig | None) -> None:
        """None: faults open nothing."""
        self.closed = True
        self.opened = 0
        """How many times faults have opened it."""
        self._config = config
        self._reason = Reason.FAULTS
        self._until = 0.0
        self._trials = 0
        """On their way, while half-open."""
        self._answered = 0
        self._faults = 0
        self._first_fault = 0.0
        self._declines = 0

    @property
    def state(self) -> str:
        """For people and metrics: `closed`, or why it is not."""
        return "closed" if self.closed else str(self._reason)

    def admits(self, now: float) -> bool:
        """Whether a request may go there; one that then does says so by `begin`."""
        return self.closed or (now >= self._until and self._trials < self._most_trials())

    def declines_only(self) -> bool:
        return not self.closed and self._reason is Reason.DECLINED

    def wait(self, now: float) -> float:
        """Seconds until it may be tried again."""
        return 0.0 if self.closed else max(self._until - now, 0.0)

    def begin(self) -> bool:
        """Whether the request counts as a trial. Each that does ends by `end_trial`."""
        if self.closed:
            return False
        self._trials += 1
        return True

    def end_trial(self) -> None:
        self._trials -= 1

    def answered(self, *, trial: bool) -> None:
        """The first byte of an answer that is neither a fault nor a decline."""
        if trial and not self.closed:
            self._answered += 1
            if self._answered >= self._most_trials():
                self.closed = True
                self._faults = 0
        self._declines = 0

    def completed(self) -> None:
        """The last byte of it: the faults before it are not in a row with those after it."""
        if self.closed:
            self._faults = 0

    def failed(self, now: float) -> None:
        config = self._config
        if config is None:
            return
        if not self.closed and self._reason is Reason.FAULTS:
            if now >= self._until:
                self._open(Reason.FAULTS, now + config.timeout)
            return
        if not self._faults or now - self._first_fault > config.window:
            self._faults, self._first_fault = 0, now
        self._faults += 1
        if self._faults >= config.failure_threshold:
            self._open(Reason.FAULTS, now + config.timeout)

    def declined(self, now: float, retry_after: float | None) -> None:
        """It has no room. Those that were under way when it first said so say nothing new."""
        if now < self._until and not self.closed:
            return
        pause = min(DECLINED_PAUSE * 2**self._declines, MAX_DECLINED_PAUSE)
        if retry_after is not None:
            pause = min(max(retry_after, DECLINED_PAUSE), MAX_DECLINED_PAUSE)
        self._declines = min(self._declines + 1, 10)
        # A breaker that faults have opened stays one: it was just let through to see.
        reason = self._reason if not self.closed else Reason.DECLINED
        self._open(reason, now + pause)

    def reset(self) -> None:
        """Another process is there."""
        self.closed = True
        self._faults = self._declines = 0

    def _open(self, reason: Reason, until: float) -> None:
        self.opened += reason is Reason.FAULTS
        self.closed = False
        self._reason = reason
        self._until = until
        self._answered = 0

    def _most_trials(self) -> int:
        return self._config.success_threshold if self._config and self._reason is Reason.FAULTS else 1
