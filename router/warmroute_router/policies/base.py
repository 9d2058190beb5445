"""What a policy sees, and what it answers. No policy knows of HTTP, so the simulator can run the same objects."""

from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from ..blocks import PromptBlocks


class WorkerView(Protocol):
    """One worker, as a policy sees it."""

    @property
    def index(self) -> int: ...
    @property
    def url(self) -> str: ...
    @property
    def in_flight(self) -> int:
        """Requests sent and not yet ended."""

    @property
    def remaining_tokens(self) -> float:
        """Prompt tokens sent and not yet computed, by estimate."""

    @property
    def slowness(self) -> float:
        """Time that it takes for a token, over the fleet's median; 1 where that is about the same."""

    @property
    def recent_new_tokens(self) -> float:
        """Uncached prompt tokens sent of late. Only its ratio between workers means something."""

    @property
    def cache_fill(self) -> float:
        """How full its cache is, 0 to 1: while there is room, nothing is evicted."""


W = TypeVar("W", bound=WorkerView)


class FleetView(NamedTuple, Generic[W]):
    """The workers that may be chosen (at least one), and what they would have of this prompt."""

    workers: Sequence[W]
    cached_blocks: Mapping[int, int]
    """Leading blocks of the prompt predicted in the cache, by worker index; absent is none."""
    mean_new_tokens: float
    """Running mean of the tokens that a request had to compute."""
    doubtful_blocks: Mapping[int, int] = {}
    """The same with those that are predicted gone, but not for long. Only of workers that have such."""
    has_peers: bool = False
    """Whether other routers place requests on the same workers, of which this one hears a moment later."""


class Choice(NamedTuple, Generic[W]):
    worker: W
    reason: str
    """One word of a small set, for metrics."""


class Policy(Protocol):
    def choose(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]: ...
