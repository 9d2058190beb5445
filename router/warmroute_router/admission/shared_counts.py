"""What several router processes of one machine count together: requests in flight, and one token bucket.

A file that all of them map into memory: the bucket's level and time, then two counts for each process. Each writes
its own counts only, and reads those of all, so these need no lock; the bucket has the file's.
"""

import fcntl
import math
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_WORD = 8
"""Bytes of each field. Aligned and of the machine's own size, so that nobody reads half of one."""
_BUCKET_WORDS = 2
_SLOT_WORDS = 2


class Draw(NamedTuple):
    """A token bucket after somebody has asked it for a token."""

    level: float
    time: float
    wait: float
    """0.0 where the token has been taken, else the seconds until there will be one."""


def draw_token(level: float, time: float, rate: float, burst: float, now: float) -> Draw:
    """Of a bucket that held `level` tokens at `time`. At -inf it was made, and is full."""
    level = min(level + max(now - time, 0.0) * rate, burst)
    time = max(now, time)
    if level >= 1.0:
        return Draw(level - 1.0, time, 0.0)
    return Draw(level, time, (1.0 - level) / rate)


class SharedCounts:
    """One process's side of the file. Times are `time.monotonic()`, which is the same for all of a machine."""

    def __init__(self, path: Path, slot: int | None) -> None:
        """`slot`: which process this is, from 0; None for the parent, which counts nothing of its own."""
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._map = mmap.mmap(self._file, 0)
        words = memoryview(self._map)
        self._bucket = words[: _BUCKET_WORDS * _WORD].cast("d")
        self._counts = words[_BUCKET_WORDS * _WORD :].cast("q")
        words.release()
        self._slot = slot
        self.processes = len(self._counts) // _SLOT_WORDS
        assert slot is None or 0 <= slot < self.processes, "each process has a slot"

    @classmethod
    def create(cls, path: Path, processes: int) -> "SharedCounts":
        """A new file that only its owner can read. Raises FileExistsError."""
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.ftruncate(file, (_BUCKET_WORDS + _SLOT_WORDS * processes) * _WORD)
        os.close(file)
        counts = cls(path, None)
        counts._bucket[1] = -math.inf
        return counts

    def set(self, in_flight: int, waiting: int) -> None:
        """Of this process."""
        assert self._slot is not None, "the parent has no requests"
        self._write(self._slot, in_flight, waiting)

    def reset(self, slot: int) -> None:
        """Of a process that died."""
        self._write(slot, 0, 0)

    def total(self) -> int:
        """Requests in flight, of all processes."""
        return sum(self._counts[::_SLOT_WORDS])

    def others_are_behind(self) -> bool:
        """Whether in another process requests wait, though it has fewer in flight than this one."""
        assert self._slot is not None, "the parent has no requests"
        own = self._counts[self._slot * _SLOT_WORDS]
        slots = zip(self._counts[::_SLOT_WORDS], self._counts[1::_SLOT_WORDS], strict=True)
        return any(waiting and in_flight < own for in_flight, waiting in slots)

    def take_token(self, rate: float, burst: float, now: float) -> float:
        """0.0 where it has been taken, else the seconds until there will be one. A new bucket is full."""
        with self._locked():
            drawn = draw_token(self._bucket[0], self._bucket[1], rate, burst, now)
            self._bucket[0], self._bucket[1] = drawn.level, drawn.time
        return drawn.wait

    def close(self) -> None:
        self._bucket.release()
        self._counts.release()
        self._map.close()
        os.close(self._file)

    def _write(self, slot: int, in_flight: int, waiting: int) -> None:
        self._counts[slot * _SLOT_WORDS] = in_flight
        self._counts[slot * _SLOT_WORDS + 1] = waiting

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Held for a few microseconds; the kernel takes it back from a process that dies."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
