"""Which tokens the next step computes: every running request's next one, and a chunk of prefill beside them."""

from array import array

import torch
from torch import Tensor

from .core import Request, Span
from .kv_pool import KVPool
from .prefix_cache import PrefixCache, common_prefix

MAX_PASSED_OVER = 8
"""A request that this many later ones have overtaken is admitted next, however little of it is cached."""

LOOKAHEAD = 64
"""So many of the oldest waiting requests compete: comparing all of a long queue would cost more than it saves."""


class Scheduler:
    """Owns the pool's account: every slot is free, in the prefix cache, or in the row of one running request.

    Waiting requests are admitted longest cached prefix first. One whose next tokens a running request is just
    computing is held back until they are in the cache, and so computes none of them again.
    """

    def __init__(self, pool: KVPool, cache: PrefixCache, *, max_running: int, chunk: int, context: int) -> None:
        self._pool = pool
        self._cache = cache
        self._page_size = pool.page_size
        self._max_running = max_running
        self._chunk = chunk
        self._rows = torch.zeros(max_running, context + pool.page_size, dtype=torch.int64)
        self._free_rows = list(range(max_running))
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        """In order of admission."""

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def schedule(self) -> list[Span]:
        """The spans of the next step, with slots for each of their tokens; empty where there is nothing to do.

        Those of one token come first: attention computes them apart.
        """
        spans = {request: self._next_span(request, 1) for request in self._decoding() if self._grow(request, 1)}
        budget = self._chunk
        for request in [request for request in self.running if request.prefilling]:
            budget -= self._add_prefill(request, budget, spans)
        while budget > 0 and (admitted := self._admit()) is not None:
            budget -= self._add_prefill(admitted, budget, spans)
        # Growing one request may have sent another, already counted, back to wait.
        left = [span for request, span in spans.items() if request.row is not None]
        return sorted(left, key=lambda span: span.end - span.start > 1)

    def slots(self, request: Request, end: int) -> Tensor:
        """Of the first `end` tokens: int64 [end]."""
        assert request.row is not None, "only a running request has slots"
        return self._rows[request.row, :end]

    def computed(self, span: Span) -> None:
        """Note that a span's K and V are in the pool; a prefill's are shared at once."""
        request = span.request
        prefill = request.prefilling
        request.computed = span.end
        if prefill:
            self._share(request)

    def release(self, request: Request) -> None:
        """Take a request out, wherever it is, and leave what it computed in the cache. Does nothing a second time."""
        if request in self.waiting:
            self.waiting.remove(request)
        if request.row is not None:
            self._vacate(request)

    def _decoding(self) -> list[Request]:
        return [request for request in self.running if not request.prefilling]

    def _next_span(self, request: Request, limit: int) -> Span:
        return Span(request, request.computed, min(len(request.tokens), request.computed + limit))

    def _add_prefill(self, request: Request, budget: int, spans: dict[Request, Span]) -> int:
        """Returns how many tokens of the budget it took."""
        wanted = min(budget, len(request.tokens) - request.computed)
        if wanted <= 0 or request.row is None or not self._grow(request, wanted):
            return 0
        spans[request] = self._next_span(request, wanted)
        return wanted

    def _grow(self, request: Request, count: int) -> bool:
        """Slots for `count` more tokens: evict, then preempt the youngest. False where that was `request` itself."""
        if request.row is None:
            return False
        missing = self._pages(request.computed + count) - request.capacity
        while missing > self._pool.free_slots:
            self._cache.evict(missing - self._pool.free_slots)
            if missing <= self._pool.free_slots:
                break
            youngest = self.running[-1]
            self._preempt(youngest)
            if youngest is request:
                return False
        if missing > 0:
            self._rows[request.row, request.capacity : request.capacity + missing] = self._pool.allocate(missing)
            request.capacity += missing
        return True

    def _pages(self, tokens: int) -> int:
        """`tokens` rounded up to whole pages."""
        return -(-tokens // self._page_size) * self._page_size

    def _admit(self) -> Request | None:
        if len(self.running) >= self._max_running:
            return None
        candidates = [request for request in self.waiting[:LOOKAHEAD] if not self._held_back(request)]
        if not candidates:
            return None
        overdue = [request for request in candidates if request.passed_over >= MAX_PASSED_OVER]
        chosen = overdue[0] if overdue else max(candidates, key=self._cached_length)
        if not self._start(chosen):
            return None
        for request in candidates[: candidates.index(chosen)]:
            request.passed_over += 1
        return chosen

    def _reusable(self, request: Request) -> "array[int]":
        """All but the last token, which is computed in any case, for its logits."""
        return request.tokens[:-1]

    def _cached_length(self, request: Request) -> int:
        return self._cache.match_length(self._reusable(request), request.salt)

    def _held_back(self, request: Request) -> bool:
        tokens = self._reusable(request)
        coming = max(
            (
                common_prefix(tokens, other.tokens)
                for other in self.running
                if other.prefilling and other.salt == request.salt
            ),
            default=0,
        )
        coming = coming // self._page_size * self._page_size
        return coming > 0 and coming > self._cached_length(request)

    def _start(self, request: Request) -> bool:
        """Adopt the cached prefix; False, and nothing changed, where the rest would not find room."""
        match = self._cache.match(self._reusable(request), request.salt)
        self._cache.lock(match.node)
        cached = len(match.slots)
        room = self._pool.free_slots + self._cache.evictable
        # Beside the prompt, a page for every request that runs, so that it does not have to go again at once.
        if self.running and self._pages(len(request.tokens)) - cached + self._page_size * len(self.running) > room:
            self._cache.unlock(match.node)
            return False
        self.waiting.remove(request)
        self.running.append(request)
        request.row = self._free_rows.pop()
        request.node, request.shared, request.capacity, request.computed = match.node, cached, cached, cached
        request.told = 0
        self._rows[request.row, :cached] = match.slots
        if request.cached_tokens is None:
            request.cached_tokens = cached
        return True

    def _share(self, request: Request) -> None:
        """Hand the full pages that a request has computed to the cache, and go on with the cache's own slots."""
        assert request.node is not None, "only a running request has anything to share"
        assert request.row is not None, "only a running request has anything to share"
        full = request.computed // self._page_size * self._page_size
        if full <= request.shared:
            return
        row = self._rows[request.row]
        present, match = self._cache.insert(request.tokens[:full], row[:full], request.salt)
        self._cache.lock(match.node)
        self._cache.unlock(request.node)
        if present > request.shared:  # somebody else has put the same in meanwhile
            self._pool.free(row[request.shared : present].clone())
            request.told = min(request.told, request.shared)
        row[:full] = match.slots
        request.node, request.shared = match.node, full

    def _vacate(self, request: Request) -> None:
        assert request.node is not None, "only a running request can vacate"
        assert request.row is not None, "only a running request can vacate"
        self._share(request)
        self._pool.free(self._rows[request.row, request.shared : request.capacity].clone())
        self._cache.unlock(request.node)
        self._free_rows.append(request.row)
        self.running.remove(request)
        request.row = request.node = None
        request.capacity = request.shared = request.computed = 0

    def _preempt(self, request: Request) -> None:
        """Send a running request back to wait, first in line. What it computed stays cached as long as it can."""
        self._vacate(request)
        request.passed_over = MAX_PASSED_OVER
        self.waiting.insert(0, request)

    @property
    def held_outside_the_cache(self) -> int:
        """Slots in the rows of running requests that the cache does not own."""
        return sum(request.capacity - request.shared for request in self.running)
