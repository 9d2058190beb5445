"""What the tree knows of one prompt."""

from array import array
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from .node import Node

Steps = list[tuple[Node, int]]
"""The nodes that a prompt runs through, each with the number of its blocks matched at the node's end."""


class Keeping(Protocol):
    """How long one worker keeps a block. Readings of its clock, and blocks."""

    @property
    def horizon(self) -> float:
        """As many blocks as a reading is after this one are predicted to be cached of its prefix."""

    @property
    def floor(self) -> float:
        """Of what was sent up to this reading nothing is cached any more."""

    @property
    def blocks(self) -> float:
        """The retention."""


class Cached(NamedTuple):
    """By worker, how many leading blocks of a prompt; a worker without any is left out."""

    blocks: dict[int, int]
    """Predicted in its cache."""
    doubtful: dict[int, int]
    """With those that are predicted gone, but not for long. Only of workers that have such."""


class Path:
    """What the tree held of a prompt when `PrefixTree.find` looked. Ask it before the tree changes."""

    __slots__ = ("hashes", "steps", "tick")

    def __init__(self, hashes: "array[int]", steps: Steps, tick: int) -> None:
        self.hashes = hashes
        self.steps = steps
        self.tick = tick

    def cached(self, keeping: Mapping[int, Keeping]) -> Cached:
        """What each worker is predicted to hold. `keeping`: of all workers, how long each keeps a block.

        A prompt's end is evicted before its head. So of what was last sent to a worker, as many blocks count as the
        reading is past the horizon. What is gone is doubtful for one retention more.
        """
        blocks: dict[int, int] = {}
        doubtful: dict[int, int] = {}
        whole: set[int] = set()
        # From the deepest node up: who holds this one whole holds all above it.
        for node, depth in reversed(self.steps):
            if len(whole) == len(node.seen):
                continue
            for worker, reading in node.seen.items():
                if worker in whole:
                    continue
                kept = keeping[worker]
                if reading <= kept.floor:
                    continue
                left = reading - kept.horizon
                if left >= depth:
                    whole.add(worker)
                    if depth > blocks.get(worker, 0):
                        blocks[worker] = depth
                    continue
                if left >= 1 and left > blocks.get(worker, 0):
                    blocks[worker] = int(left)
                perhaps = min(left + kept.blocks, depth)
                if perhaps >= 1 and perhaps > doubtful.get(worker, 0):
                    doubtful[worker] = int(perhaps)
        return Cached(blocks, doubtful)

    def readings(self, worker: int) -> list[tuple[int, float]]:
        """What `worker` was sent of this prompt, from the root down: up to which depth, at which of its readings."""
        return [(depth, node.seen[worker]) for node, depth in self.steps if worker in node.seen]
