"""KubeAI's PrefixHash: consistent hashing with bounded loads.

Rule. 256 points on a ring for each worker. From the key's place on, the first worker that would, with this request,
have at most 125 % of the mean load. None, as with nothing in flight: the first one after the key.

Sources. substratusai/kubeai, `internal/loadbalancer/balance_chwbl.go` (`other-routers.md` section 3, item 8, and the
file itself for the request that is counted in on both sides: q + 1 ≤ 1.25 · (total + 1) / N).

Defaults. 256 points, 1.25.

Simplified. The key is one block, by default the first; a prompt without a full block is its own key. KubeAI takes the
first 100 characters of the first *user* message, so that a system prompt does not count: where all prompts of a trace
begin alike, `key_block` should name the block that follows, or this is unfair to it. In chats that message hardly
differs from a name of the chat, hence `by_session`. No adapters. Ring and key hash the URL and the block's hash.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain

from warmroute_router.blocks import PromptBlocks
from warmroute_router.policies import Choice, FleetView
from warmroute_router.policies.base import W
from xxhash import xxh64_intdigest

from .base import Baseline


class KubeaiPrefixHash(Baseline):
    def __init__(
        self, load_factor: float = 1.25, replication: int = 256, key_block: int = 0, by_session: bool = False
    ) -> None:
        self._load_factor = load_factor
        self._replication = replication
        self._key_block = key_block
        self._by_session = by_session
        self._urls: tuple[str, ...] = ()
        self._points: list[int] = []
        self._owners: list[int] = []
        """For each point, the position of its worker among those that may be chosen."""

    def choose(self, prompt: PromptBlocks, fleet: FleetView[W]) -> Choice[W]:
        self._build_ring(tuple(worker.url for worker in fleet.workers))
        total = sum(worker.in_flight for worker in fleet.workers)
        limit = self._load_factor * (total + 1) / len(fleet.workers)
        owners = self._clockwise(bisect_left(self._points, self._place(prompt)))
        first = next(owners)
        for owner in chain([first], owners):
            if fleet.workers[owner].in_flight + 1 <= limit:
                return Choice(fleet.workers[owner], "affinity" if owner == first else "load")
        return Choice(fleet.workers[first], "affinity")

    def _clockwise(self, start: int) -> Iterator[int]:
        """Each owner once, in the order of its first point from `start` on."""
        seen: set[int] = set()
        for owner in chain(self._owners[start:], self._owners[:start]):
            if owner not in seen:
                seen.add(owner)
                yield owner
            if len(seen) == len(self._urls):
                return

    def _place(self, prompt: PromptBlocks) -> int:
        hashes = prompt.hashes
        key = hashes[min(self._key_block, len(hashes) - 1)] if hashes else prompt.digest
        if self._by_session and prompt.session:
            key = prompt.session
        return xxh64_intdigest(key.to_bytes(8, "little"))

    def _build_ring(self, urls: tuple[str, ...]) -> None:
        if urls == self._urls:
            return
        self._urls = urls
        ring = sorted(
            (xxh64_intdigest(f"{url}{point}".encode()), owner)
            for owner, url in enumerate(urls)
            for point in range(self._replication)
        )
        self._points = [point for point, _ in ring]
        self._owners = [owner for _, owner in ring]
