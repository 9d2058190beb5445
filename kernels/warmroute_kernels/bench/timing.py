"""How long something takes, in two ways."""

from collections.abc import Callable
from typing import NamedTuple

Timer = Callable[[Callable[[], object]], "Time"]


class Time(NamedTuple):
    """Seconds, medians. None where it was not timed so."""

    launched: float | None
    """By the host, with the GPU's caches flushed before."""
    graph: float | None
    """Replayed as a CUDA graph, over and over: what fits into the L2 cache stays there."""

    @property
    def best(self) -> float | None:
        return min((each for each in self if each is not None), default=None)


def on_gpu(run: Callable[[], object]) -> Time:
    from triton.testing import do_bench, do_bench_cudagraph

    launched = do_bench(run, return_mode="median") / 1e3
    try:
        graph = do_bench_cudagraph(run, return_mode="median") / 1e3
    except RuntimeError:  # what waits for the GPU, or allocates by itself, cannot be captured
        graph = None
    return Time(launched, graph)


def once(run: Callable[[], object]) -> Time:
    """Not timed at all: for a machine without a GPU."""
    run()
    return Time(None, None)
