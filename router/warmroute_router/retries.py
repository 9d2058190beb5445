"""What may be tried again on another worker, how often, and after which pause."""

import random
import time
from collections.abc import Callable

from .config import RetryConfig
from .errors import ConnectFailed, ConnectionLost, UpstreamError

DECLINING = frozenset({429, 502, 503, 504})
"""Statuses after which another worker may have room, or may be up."""

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})
"""That may be sent twice by their definition (RFC 9110, section 9.2.2)."""
_SAFE_PATHS = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/responses",
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/score",
        "/v1/classify",
        "/generate",
        "/rerank",
        "/score",
        "/classify",
        "/pooling",
        "/tokenize",
        "/detokenize",
        "/v1/tokenize",
        "/v1/detokenize",
    }
)
"""Whose POSTs compute something and change nothing but a cache."""

_MOST_SAVED = 500.0
"""Retries that may come at once after quiet times."""
_PER_SECOND = 1.0
"""Retries beside the share, so that a router with little traffic has some as well."""


def is_repeatable(method: str, path: str) -> bool:
    """Whether a request that may have reached a worker may be sent to another one."""
    return method in _SAFE_METHODS or (method == "POST" and path in _SAFE_PATHS)


class Retries:
    """Of all requests together.

    What a worker declines is asked elsewhere only as a share of all requests, or a fleet that is full would get its
    traffic several times. What went down with a worker has to be done anyway, so it does not count.
    """

    def __init__(self, config: RetryConfig, now: Callable[[], float] = time.monotonic) -> None:
        self.max_retries = config.max_retries
        self._config = config
        self._now = now
        self._saved = _MOST_SAVED
        self._saved_at = now()

    def earn(self) -> None:
        """For each request."""
        self._saved += self._config.budget

    def allows(self, error: UpstreamError, tries: int, *, repeatable: bool) -> bool:
        """Whether a request that has been tried so often, the last time in vain, may be tried again. Spends."""
        if tries > self.max_retries:
            return False
        if isinstance(error, ConnectFailed):  # nothing has been sent
            return True
        return repeatable and (isinstance(error, ConnectionLost) or self._spend())

    def pause(self, error: UpstreamError, tries: int) -> float:
        """Seconds. None after a broken connection: whoever is asked next has nothing to do with it."""
        if isinstance(error, ConnectFailed | ConnectionLost):
            return 0.0
        config = self._config
        pause = min(config.initial_backoff * config.backoff_multiplier ** (tries - 1), config.max_backoff)
        return pause * random.uniform(1 - config.jitter, 1 + config.jitter)

    def _spend(self) -> bool:
        now = self._now()
        earned = _PER_SECOND * (now - self._saved_at) if self._config.budget else 0.0
        self._saved, self._saved_at = min(self._saved + earned, _MOST_SAVED), now
        if not self._config.budget or self._saved < 1:
            return False
        self._saved -= 1
        return True
