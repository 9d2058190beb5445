"""What the router learns from replies, so that nobody has to tell it: how long caches keep a block, how long text is.

An LRU cache drops a block once a certain *volume* has been inserted since its last touch, at whatever speed that
came. So each worker has a clock that counts the blocks inserted there, a prefix remembers the clock's reading at its
last touch, and its age is how far the clock has gone on since. A prompt's end goes before its head, so each block
counts as older by its depth; while that is below the worker's retention, the block is predicted to be cached.
"""

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from .blocks import BYTES_PER_TOKEN

_LEARNING_RATE = 0.2
"""Weight of one reply. Wrong by a factor of ten, retention is right to 10 % after some twenty replies that tell."""
_LEAST_RETENTION = 16.0
"""Blocks. Below this a single prompt would push itself out."""
_TOLERANCE = 1.0
"""Blocks by which a report may fall short and still agree: templates add tokens, pages round down."""
_MAX_MODELS = 64
_MAX_MODEL_NAME = 256
"""Characters. Clients make up names, and some engines answer to any."""
_RATIOS = (0.001, 10.0)
"""Tokens per byte that can be."""
TIME_TO_LIVE = 300.0
"""Seconds for which a prefix counts as cached where an engine tells neither its capacity nor what it reused."""
_MARKS = 32
"""Moments that are remembered of one time to live."""
_FLUSHED = 3
"""Replies in a row without any of what they should have had, which tell that the cache was emptied."""
_TELLING_BLOCKS = 4
"""Predicted blocks from which on a reply without any is one of those."""
_SPEED_MEMORY = 0.98
"""What an earlier request weighs less: the last fifty count."""
_SPEED_REQUESTS = 5
_SIGNIFICANCE = 4.0
"""Standard errors."""
_YOUNG = 0.25
"""Of the retention: nothing that young is gone because newer blocks pushed it out."""


class _Reply(NamedTuple):
    """What one reply tells, in blocks. See `Retention.learn`."""

    path: Sequence[tuple[int, float]]
    dispatched: float
    predicted: int
    delivered: float
    waiting: float


class Retention:
    """One worker's clock, and how far it may go on before a block is gone. Both in blocks of the router."""

    def __init__(self) -> None:
        self.clock = 0.0
        self.blocks = inf
        """Until something is known, nothing is predicted to be dropped but by its time."""
        self.horizon = -inf
        """As many blocks as a reading is after this one are predicted to be cached of its prefix."""
        self.floor = 0.0
        """Of what was sent up to this reading nothing is cached any more, whatever the retention is."""
        self._expired = -inf
        self._emptied = 0.0
        """The reading at which the cache was empty for the last time."""
        self._told = inf
        self.reported = False
        """Whether any reply said what was cached."""
        self._marks: deque[tuple[float, float]] = deque([(-inf, -inf)])
        """Moments, in seconds, and the readings then; the first is the last one before the time to live."""
        self._empty_replies: list[_Reply] = []
        self._was_flushed = False
        """Whether nothing that was there has been seen since the last flush."""

    def expire(self, now: float) -> None:
        """Where only the time can tell, let it. `now`: seconds. To be called every few seconds."""
        if self.blocks == inf and not self.reported:
            while len(self._marks) > 1 and self._marks[1][0] <= now - TIME_TO_LIVE:
                self._marks.popleft()
            if self._marks[0][0] <= now - TIME_TO_LIVE:
                self._expired = self._marks[0][1]
        else:
            self._expired = -inf
        self._move_horizon()

    def _move_horizon(self) -> None:
        self.horizon = self.clock - self.blocks
        self.floor = max(self._emptied, self._expired)

    @property
    def filled(self) -> float:
        """Blocks that have come in since the cache was empty."""
        return self.clock - self._emptied

    def start_at(self, capacity: float) -> None:
        """Begin with the capacity that the engine tells. What was learned from replies stays while it is the same."""
        if self.blocks == inf or self._told not in (inf, capacity):
            self.blocks = max(capacity, _LEAST_RETENTION)
        self._told = capacity
        self._move_horizon()

    def adopt(self, filled: float, blocks: float) -> None:
        """Begin with what another router knows."""
        self._emptied = min(self._emptied, self.clock - filled)
        if self.blocks == inf:
            self.blocks = max(blocks, _LEAST_RETENTION)
        self._move_horizon()

    def emptied(self) -> None:
        """The engine has restarted: nothing that it was sent before is there."""
        self._emptied = self.clock
        self._empty_replies.clear()
        self._move_horizon()

    def sent(self, path: Sequence[tuple[int, float]], predicted: int, new: int, now: float) -> float:
        """Let the clock go on by a prompt of which `predicted` blocks are cached and `new` ones are not.

        Returns its new reading. A block that is found in the cache moves to the front as well, past all that were
        touched after it: of those in the cache, about the share that its age has of the retention.
        """
        start, passed = 0, 0.0
        for depth, reading in path:
            run = min(depth, predicted) - start
            if run <= 0:
                break
            passed += run * min((self.clock - reading) / self.blocks, 1.0)
            start = depth
        self.clock += new + max(passed, 0.0)
        if self.blocks == inf and not self.reported and now - self._marks[-1][0] >= TIME_TO_LIVE / _MARKS:
            self._marks.append((now, self.clock))
            self.expire(now)
        self._move_horizon()
        return self.clock

    def correct(self, blocks: float) -> None:
        """The clock had gone on by `blocks` too few, or too many where negative."""
        self.clock += blocks
        self._move_horizon()

    def learn(
        self, path: Sequence[tuple[int, float]], dispatched: float, predicted: int, delivered: float, waiting: float
    ) -> None:
        """Compare a prediction with what the engine delivered, both in blocks.

        `path` is what the worker was sent of this prompt: up to which depth, and at which reading of the clock.
        `dispatched` is the reading before this prompt. Prefixes younger than the `waiting` blocks were still being
        computed then: whether they were there says nothing. A block's age is its prefix's and its depth.
        """
        if not self.reported:
            self.reported, self._expired = True, -inf
        if predicted >= _TELLING_BLOCKS and delivered < 1:
            age = dispatched - path[0][1]
            if waiting < age < self.blocks * _YOUNG:
                self._suspect(_Reply(path, dispatched, predicted, delivered, waiting))
                self._move_horizon()
                return
        if delivered >= 1 and (self._empty_replies or self._was_flushed):
            # So it was not flushed, and those before it were missing for the common reason.
            for earlier in self._empty_replies:
                self._fit(*earlier)
            self._empty_replies.clear()
            self._was_flushed = False
        self._fit(path, dispatched, predicted, delivered, waiting)
        self._move_horizon()

    def _suspect(self, reply: _Reply) -> None:
        self._empty_replies.append(reply)
        if len(self._empty_replies) < _FLUSHED:
            return
        first = self._empty_replies[0]
        self._empty_replies.clear()
        self._emptied = max(self._emptied, first.dispatched)
        if self.blocks < inf or self._was_flushed:
            self._fit(*first)  # should it be the retention after all that is wrong by far, it still gets there
        self._was_flushed = True

    def _fit(
        self, path: Sequence[tuple[int, float]], dispatched: float, predicted: int, delivered: float, waiting: float
    ) -> None:
        if delivered < predicted - _TOLERANCE:
            since = next((dispatched - reading for depth, reading in path if depth > delivered + _TOLERANCE), inf)
            if waiting < since and since + delivered < self.blocks:
                self._move_to(since + delivered)
            return
        start, oldest = 0, 0.0
        for depth, reading in path:
            if start >= delivered:
                break
            since = dispatched - reading
            if since > waiting:
                oldest = max(oldest, since + min(depth, delivered))
            start = depth
        if self.blocks < oldest:
            self._move_to(oldest)

    def _move_to(self, age: float) -> None:
        weight = 1.0 if self.blocks == inf else _LEARNING_RATE
        start = age if self.blocks == inf else self.blocks
        self.blocks = max(start + weight * (age - start), _LEAST_RETENTION)


class PrefillSpeed:
    """How fast a worker computes prompts: time to first byte = fixed + tokens / speed, by least squares.

    Of requests that met an idle worker, of which each weighs less than the next one.
    """

    def __init__(self) -> None:
        self.tokens_per_s: float | None = None
        """None until enough is known."""
        self._weight = 0.0
        # Weighted means of tokens x and of seconds y, their variances, and their covariance.
        self._x = self._y = self._xx = self._yy = self._xy = 0.0

    def learn(self, tokens: float, seconds: float) -> None:
        self._weight = _SPEED_MEMORY * self._weight + 1
        share = 1 / self._weight
        dx, dy = tokens - self._x, seconds - self._y
        self._x += share * dx
        self._y += share * dy
        self._xx = (1 - share) * (self._xx + share * dx * dx)
        self._yy = (1 - share) * (self._yy + share * dy * dy)
        self._xy = (1 - share) * (self._xy + share * dx * dy)
        self.tokens_per_s = self._xx / self._xy if self._is_significant() else None

    def _is_significant(self) -> bool:
        """Whether the slope is some standard errors from none: else short prompts and jitter make any speed."""
        if self._weight <= _SPEED_REQUESTS or self._xx <= 0 or self._xy <= 0:
            return False
        slope = self._xy / self._xx
        unexplained = max(self._yy - slope * self._xy, 0.0)
        return slope * slope * (self._weight - 2) * self._xx > _SIGNIFICANCE * _SIGNIFICANCE * unexplained


class TokenRatio:
    """Tokens per byte of key, for each model: a running mean over its replies, for at most 64 models."""

    def __init__(self) -> None:
        self._ratios: dict[str, float] = {}

    def of(self, model: str) -> float:
        return self._ratios.get(model, 1 / BYTES_PER_TOKEN)

    @property
    def known(self) -> dict[str, float]:
        return self._ratios.copy()

    def adopt(self, model: str, ratio: float) -> None:
        """Begin with what another router knows."""
        if _RATIOS[0] < ratio < _RATIOS[1] and len(model) <= _MAX_MODEL_NAME and len(self._ratios) < _MAX_MODELS:
            self._ratios.setdefault(model, ratio)

    def learn(self, model: str, key_bytes: int, tokens: int) -> None:
        if not key_bytes or not tokens or len(model) > _MAX_MODEL_NAME:
            return
        seen = tokens / key_bytes
        if model in self._ratios:
            self._ratios[model] += _LEARNING_RATE * (seen - self._ratios[model])
        elif len(self._ratios) < _MAX_MODELS:
            self._ratios[model] = seen
