"""glibc's allocator, told to keep what it gets back: bodies of the same size come again and again."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
KEPT = 32 * 1024 * 1024
"""Bytes: the most to which glibc would move both thresholds by itself, and moves them back and forth."""


def keep_freed_memory() -> None:
    """Else each large body gets fresh pages, and the kernel's time to clear them is half of all that it costs.

    What is freed beyond `KEPT` goes back to the system. Does nothing where the C library is another one.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, KEPT)
        mallopt(_M_TRIM_THRESHOLD, KEPT)
