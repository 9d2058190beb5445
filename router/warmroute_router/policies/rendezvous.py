"""Highest random weight (Thaler and Ravishankar, 1998): routers that share nothing agree, and few keys move."""

from collections.abc import Iterable

from xxhash import xxh3_64_intdigest

from ..blocks import PromptBlocks
from .base import FleetView, W


def distinguishing_key(prompt: PromptBlocks, fleet: FleetView[W]) -> int:
    """The first block that not every worker has: prompts that begin alike behind what all share have the same.

    Where all have the whole prompt, or it fills no block, the digest of all of it.
    """
    common = min(fleet.cached_blocks.get(worker.index, 0) for worker in fleet.workers)
    return prompt.hashes[common] if common < len(prompt.hashes) else prompt.digest


def ranked(workers: Iterable[W], key: int) -> list[W]:
    """The workers in the order in which `key` prefers them."""
    return sorted(workers, key=lambda worker: xxh3_64_intdigest(worker.url.encode(), key), reverse=True)
