"""What the router learns from replies, so that nobody has to tell it: how long caches keep a block, how long text is.

An LRU cache drops a block once a certain *volume* has been inserted since its last touch, at whatever speed that
came. So each worker has a clock that counts the blocks inserted there, a prefix remembers the clock's reading at its
last touch, and its age is how far the clock has gone on since. While the age is below the worker's retention, the
prefix is predicted to be cached.
"""

from collections.abc import Sequence
from math import inf

from .blocks import BYTES_PER_TOKEN

_LEARNING_RATE = 0.2
"""Weight of one reply. Wrong by a factor of ten, retention is right to 10 % after some twenty replies that tell."""
_LEAST_RETENTION = 16.0
"""Blocks. Below this a single prompt would push itself out."""
_TOLERANCE = 1.0
"""Blocks by which a report may fall short and still agree: templates add tokens, pages round down."""
_MAX_MODELS = 64


class Retention:
    """One worker's clock, and how far it may go on before a block is gone. Both in blocks of the router."""

    def __init__(self) -> None:
        self.clock = 0.0
        self.blocks = inf
        """Until something is known, nothing is predicted to be dropped."""

    @property
    def horizon(self) -> float:
        """Readings after this one are predicted to be cached."""
        return self.clock - self.blocks

    def start_at(self, capacity: float) -> None:
        """Begin with the capacity that the engine tells. What was learned from replies stays."""
        if self.blocks == inf:
            self.blocks = max(capacity, _LEAST_RETENTION)

    def sent(self, path: Sequence[tuple[int, float]], predicted: int, new: int) -> float:
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
        return self.clock

    def correct(self, blocks: float) -> None:
        """The clock had gone on by `blocks` too few, or too many where negative."""
        self.clock += blocks

    def learn(
        self, path: Sequence[tuple[int, float]], dispatched: float, predicted: int, delivered: float, waiting: float
    ) -> None:
        """Compare a prediction with what the engine delivered, both in blocks.

        `path` is what the worker was sent of this prompt: up to which depth, and at which reading of the clock.
        `dispatched` is the reading before this prompt. Prefixes younger than the `waiting` blocks were still being
        computed then: that they were missing says nothing.
        """
        if delivered < predicted - _TOLERANCE:
            age = next((dispatched - reading for depth, reading in path if depth > delivered + _TOLERANCE), inf)
            if waiting < age < self.blocks:
                self._move_to(age)
        else:
            oldest = max((dispatched - reading for depth, reading in path if depth <= delivered), default=0.0)
            if self.blocks < oldest:
                self._move_to(oldest)

    def _move_to(self, age: float) -> None:
        weight = 1.0 if self.blocks == inf else _LEARNING_RATE
        start = age if self.blocks == inf else self.blocks
        self.blocks = max(start + weight * (age - start), _LEAST_RETENTION)


class TokenRatio:
    """Tokens per byte of key, for each model: a running mean over its replies, for at most 64 models."""

    def __init__(self) -> None:
        self._ratios: dict[str, float] = {}

    def of(self, model: str) -> float:
        return self._ratios.get(model, 1 / BYTES_PER_TOKEN)

    def learn(self, model: str, key_bytes: int, tokens: int) -> None:
        if not key_bytes or not tokens:
            return
        seen = tokens / key_bytes
        if model in self._ratios:
            self._ratios[model] += _LEARNING_RATE * (seen - self._ratios[model])
        elif len(self._ratios) < _MAX_MODELS:
            self._ratios[model] = seen
