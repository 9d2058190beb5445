"""What is simulated: the fleet and its pace, in one frozen object."""

from array import array
from dataclasses import dataclass, replace

from warmroute_router.blocks import BLOCK_TOKENS
from warmroute_router.tree import MAX_TREE_BLOCKS

from ..traces import Trace, TraceRequest

_NEVER_COUNTED = 2**64 - 1


class SimulationError(Exception):
    """This trace cannot run on this fleet. The message is one line, for the person who named both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """A fleet of equal workers. The defaults are an 8-worker fleet of mid-range GPUs with a 70B-class model."""

    workers: int = 8
    blocks: int = 4000
    """KV capacity of one worker, in blocks."""
    block_tokens: int | None = None
    """A multiple of the trace's own, which is what None takes."""
    prefill_rate: float = 12_000.0
    """Prompt tokens that one worker computes in a second."""
    tpot: float = 0.02
    """Seconds from one token to the next of a request that decodes alone."""
    speed: float = 1.0
    """How many times faster than the trace its requests arrive."""
    tree_blocks: int | None = None
    """Bound of the router's tree; None takes as many tokens as the server's tree has."""
    seed: int = 0
    slo: float = 2.0
    """Seconds to the first token that still count as good."""
    routers: int = 1
    """Each request goes to any of them."""
    gossip: bool = True
    """Whether several routers talk. With other routers' policies they never do, and each has what it sent itself."""
    gossip_delay: float = 0.005
    """Seconds from one router to another, for what has been waiting for up to `gossip.FLUSH_INTERVAL`."""
    restart_router_at: float | None = None
    """Seconds from the start of the run at which the first router gives way to a new one."""
    warm_restart: bool = True
    """Whether that one starts with what a peer knows (a lone one: with what the one before it wrote to a file)."""
    restart_worker_at: float | None = None
    """Seconds from the start of the run at which the first worker loses its cache and its requests."""

    def __post_init__(self) -> None:
        sizes = (self.workers, self.blocks, self.prefill_rate, self.tpot, self.speed, self.slo, self.routers)
        assert min(sizes) > 0, f"every size and rate must be above zero: {self}"
        times = (self.gossip_delay, self.restart_router_at or 0.0, self.restart_worker_at or 0.0)
        assert min(times) >= 0, f"no time may be before the start: {self}"

    def tree_bound(self, block_tokens: int) -> int:
        """The server's tree holds shorter blocks than most traces, and its bound is really one on prompt text."""
        if self.tree_blocks is not None:
            return self.tree_blocks
        return max(MAX_TREE_BLOCKS * BLOCK_TOKENS // block_tokens, 1)


def coarsened(trace: Trace, block_tokens: int | None) -> Trace:
    """The same trace in longer blocks. Exact, since an id names its whole prefix: the last of each group is its name.

    Raises SimulationError where a block of the trace would have to be cut.
    """
    if block_tokens is None or block_tokens == trace.block_tokens:
        return trace
    group, rest = divmod(block_tokens, trace.block_tokens)
    if rest or not group:
        raise SimulationError(
            f"{trace.name}: has blocks of {trace.block_tokens} tokens, "
            f"which blocks of {block_tokens} tokens cannot be put together from"
        )
    requests = [replace(request, block_ids=request.block_ids[group - 1 :: group]) for request in trace.requests]
    return trace._replace(block_tokens=block_tokens, requests=requests)


def without_zero(trace: Trace) -> Trace:
    """The same trace, with another name for block 0, where it has one.

    Some traces count their blocks from 0, which in a snapshot is the root's name: no hash of a real block is 0.
    """
    return trace._replace(requests=[_without_zero(request) for request in trace.requests])


def _without_zero(request: TraceRequest) -> TraceRequest:
    if 0 not in request.block_ids:
        return request
    return replace(request, block_ids=array("Q", [block or _NEVER_COUNTED for block in request.block_ids]))
