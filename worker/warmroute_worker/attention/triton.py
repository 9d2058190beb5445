"""Attention by the Triton kernels of `warmroute_kernels`, over the pool's pages."""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from warmroute_kernels.cascade import CascadePlan, SharedPrefix, cascade, groups_of, plan_cascade
from warmroute_kernels.extend import ExtendPlan, extend, plan_extend
from warmroute_kernels.paged_decode import DecodePlan, paged_decode, plan_decode
from warmroute_kernels.store_kv import store_kv
from warmroute_kernels.to_device import int32_to_device, to_device

from ..kv_pool import KVPool
from ..prefix_cache import Node
from .base import SequenceSpan
from .page_table import PageTable

FIXED_SPLIT = 1024
"""Tokens that one program of a decode reads where results must not depend on the batch."""

EAGER = 200e-6
"""Seconds by which a layer of a decode step is slower where no CUDA graph is replayed, as the GPU waits for the host.

Its PyTorch operations and five launches by Triton took 738 us on a slow and busy host, of which a fast one takes
about a quarter. Not yet measured beside a GPU.
"""


class Decode(NamedTuple):
    """Rows of one new token each, with their own pages. Once its K and V are stored, all of a sequence is in them."""

    page_table: Tensor
    """int32 [rows, pages]"""
    lengths: Tensor
    """int32 [rows]"""
    plan: DecodePlan


class Extend(NamedTuple):
    """Sequences of several new tokens, over what is in the pages before them."""

    page_table: Tensor
    prefix_lengths: Tensor
    """int32 [sequences]"""
    starts: Tensor
    """int32 [sequences + 1]: rows of their new tokens, from the first of them all."""
    plan: ExtendPlan


class Step(NamedTuple):
    """One step, for all layers."""

    slots: Tensor
    """int64 [tokens]: where their K and V go; -1 for nowhere."""
    decoding: int
    """So many rows come first that have one new token each."""
    decode: Decode | CascadePlan | None
    extend: Extend | None


class TritonAttention:
    def __init__(self, pool: KVPool, heads: int, kv_heads: int, *, deterministic: bool = False) -> None:
        """`deterministic`: a decoding sequence's attention is the same to the bit, whoever else is in the batch."""
        assert heads % kv_heads == 0, "each key head serves the same number of query heads"
        self._pool = pool
        self._layers = [pool.layer(index) for index in range(len(pool.k))]
        self._shape = (heads, kv_heads, pool.k.shape[-1])
        self._fp8 = pool.k_scale is not None
        self._fixed_split = FIXED_SPLIT if deterministic else None
        self._page_table = PageTable(pool.page_size, pool.device)
        self._reserved: dict[int, Step] = {}
        self._grouped: list[tuple[Node | None, int]] = []
        self._groups: list[SharedPrefix] = []
        self.step: Step | None = None
        """What the next call computes: set by `plan`."""

    def reserve(self, rows: int, max_length: int) -> Step:
        """A step of decoding whose tensors stay where they are: `plan` fills it in for any batch that fits in.

        The rows of it that a batch does not need have no length, and are stored nowhere.
        """
        device = self._pool.device
        slots = torch.full((rows,), -1, dtype=torch.int64, device=device)
        pages = -(-max_length // self._pool.page_size)
        decode = Decode(
            torch.zeros(rows, pages, dtype=torch.int32, device=device),
            torch.zeros(rows, dtype=torch.int32, device=device),
            self._plan_decode([0] * rows, max_length),
        )
        step = self._reserved[rows] = Step(slots, rows, decode, None)
        return step

    def plan(self, spans: Sequence[SequenceSpan]) -> None:
        decoding = next((row for row, span in enumerate(spans) if span.length > 1), len(spans))
        assert all(span.length > 1 for span in spans[decoding:]), "spans of one token come first"
        slots = torch.cat([span.slots[span.start :] for span in spans])
        decode: Decode | CascadePlan | None = None
        if decoding:
            page_table = self._page_table.of(spans[:decoding])
            lengths = [len(span.slots) for span in spans[:decoding]]
            sizes = [size for size in self._reserved if size >= decoding] if decoding == len(spans) else []
            decode = self._plan_cascade(spans[:decoding], page_table, lengths, lost=EAGER if sizes else 0.0)
            if decode is None and sizes:
                self.step = self._reserved[min(sizes)]
                _fill(self.step, slots, page_table, lengths)
                return
            if decode is None:
                decode = Decode(page_table, self._int32(lengths), self._plan_decode(lengths, max(lengths)))
        extension = self._plan_extend(spans[decoding:]) if decoding < len(spans) else None
        self.step = Step(to_device(slots, self._pool.device), decoding, decode, extension)

    def _plan_decode(self, lengths: Sequence[int], max_length: int) -> DecodePlan:
        return plan_decode(
            len(lengths),
            *self._shape,
            max_length=max_length,
            device=self._pool.device,
            lengths=lengths,
            fixed_split=self._fixed_split,
            fp8=self._fp8,
        )

    def _plan_cascade(
        self, spans: Sequence[SequenceSpan], page_table: Tensor, lengths: Sequence[int], *, lost: float
    ) -> CascadePlan | None:
        """None where sequences share too little for it, or where they must not notice each other."""
        if self._fixed_split is not None:
            return None
        # While nobody comes or goes, decoding appends to everybody's own pages, and the groups stay as they are.
        grouped = [(span.node, span.shared) for span in spans]
        if grouped != self._grouped:
            self._grouped, self._groups = grouped, groups_of([self._shared_pages(span) for span in spans])
        if not self._groups:
            return None
        return plan_cascade(
            self._groups,
            page_table,
            lengths,
            *self._shape,
            page_size=self._pool.page_size,
            device=self._pool.device,
            fp8=self._fp8,
            lost=lost,
        )

    def _shared_pages(self, span: SequenceSpan) -> "array[int]":
        slots = span.slots[: span.shared : self._pool.page_size]
        return array("q", (slots // self._pool.page_size).numpy().tobytes())

    def _plan_extend(self, spans: Sequence[SequenceSpan]) -> Extend:
        starts = [0]
        for span in spans:
            starts.append(starts[-1] + span.length)
        prefix_lengths = [span.start for span in spans]
        plan = plan_extend(starts, prefix_lengths, *self._shape, device=self._pool.device, fp8=self._fp8)
        return Extend(self._page_table.of(spans), self._int32(prefix_lengths), self._int32(starts), plan)

    def _int32(self, numbers: Sequence[int]) -> Tensor:
        return int32_to_device(numbers, self._pool.device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert self.step is not None, "a step is planned first"
        slots, decoding, decode, extension = self.step
        dtype, kv = q.dtype, self._layers[layer]
        if not self._fp8:  # the kernels take all in one type
            q, k, v = (each.to(kv.k.dtype) for each in (q, k, v))
        store_kv(k, v, kv, slots)
        out = torch.empty_like(q)
        if isinstance(decode, Decode):
            page_table, lengths, plan = decode
            paged_decode(q[:decoding], kv, page_table, lengths, plan=plan, out=out[:decoding])
        elif decode is not None:
            cascade(q[:decoding], kv, plan=decode, out=out[:decoding])
        if extension is not None:
            extend(
                q[decoding:],
                k[decoding:],
                v[decoding:],
                kv,
                extension.page_table,
                extension.prefix_lengths,
                extension.starts,
                plan=extension.plan,
                out=out[decoding:],
            )
        return out.to(dtype)


def _fill(step: Step, slots: Tensor, page_table: Tensor, lengths: list[int]) -> None:
    """Put a batch in the first rows of a step that was reserved, and nothing in the others."""
    assert isinstance(step.decode, Decode), "only that is reserved"
    device, used, unused = step.slots.device, len(lengths), step.decoding - len(lengths)
    padded = [*lengths, *[0] * unused]
    step.slots.copy_(to_device(torch.nn.functional.pad(slots, (0, unused), value=-1), device))
    step.decode.page_table[:used, : page_table.shape[1]] = page_table
    step.decode.lengths.copy_(int32_to_device(padded, device))
    step.decode.plan.update(padded)
