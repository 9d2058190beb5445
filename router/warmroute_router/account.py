"""What has come of one model's requests on one worker. Nothing is decided by it: it is for metrics."""

from collections import Counter

from .histogram import SECONDS, Histogram

UNKNOWN = "unknown"
"""The model of a worker that lists none."""
MAX_MODELS = 32
"""Of one worker that have an account of their own; the others count as the first one."""


class Account:
    __slots__ = (
        "available_tokens",
        "captured_tokens",
        "delivered_tokens",
        "duration",
        "mispredicted_tokens",
        "prompt_tokens",
        "requests",
        "ttft",
        "unreported_requests",
    )

    def __init__(self) -> None:
        self.requests: Counter[int] = Counter()
        """Ended tries by status; 499 where the client left, 502 where the worker failed."""
        self.prompt_tokens = 0
        """Of the replies that said how many of them came from the cache; so are the next four."""
        self.available_tokens = 0
        self.captured_tokens = 0
        self.delivered_tokens = 0
        self.mispredicted_tokens = 0
        """Captured by prediction and not delivered, or the other way."""
        self.unreported_requests = 0
        """Replies to understood prompts that said nothing of cached tokens: unknown, not zero."""
        self.ttft = Histogram(SECONDS)
        """Of streamed answers: from the request's last byte to the answer's first."""
        self.duration = Histogram(SECONDS)
        """Of answered requests: from the request's last byte to the answer's."""


class Accounts:
    """One worker's, by model. Clients make up names, so only what the worker itself lists has one."""

    def __init__(self) -> None:
        self._by_model: dict[str, Account] = {}
        self._fallback = UNKNOWN

    def of(self, model: str) -> Account:
        account = self._by_model.get(model)
        if account is None:
            account = self._by_model.get(self._fallback)
            if account is None:
                account = self._by_model[self._fallback] = Account()
        return account

    @property
    def models(self) -> list[str]:
        return list(self._by_model) or [UNKNOWN]

    def all(self) -> dict[str, Account]:
        return self._by_model.copy()

    def open(self, models: tuple[str, ...]) -> None:
        """The worker lists these. Accounts of what it does not list any more are closed."""
        self._fallback = models[0] if models else UNKNOWN
        before = self._by_model
        self._by_model = {model: before.get(model) or Account() for model in models[:MAX_MODELS]}
