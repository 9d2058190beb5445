"""The pages of all sequences that run, kept on the device: a step copies there only what is new."""

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor
from warmroute_kernels.to_device import to_device

from .base import SequenceSpan

_NARROWEST = 1024
"""Pages. From there the table is made twice as wide as it was, while sequences grow."""


class PageTable:
    def __init__(self, page_size: int, device: torch.device) -> None:
        self._page_size = page_size
        self._table = torch.zeros(0, 0, dtype=torch.int32, device=device)

    def of(self, spans: Sequence[SequenceSpan]) -> Tensor:
        """int32 [spans, pages]. What comes after a sequence's last page is old: 0, or pages of others."""
        rows = [place if span.row is None else span.row for place, span in enumerate(spans)]
        pages = -(-max(len(span.slots) for span in spans) // self._page_size)
        self._make_room(max(rows) + 1, pages)
        self._write(rows, spans)
        return self._table[:, :pages].index_select(0, to_device(torch.tensor(rows), self._table.device))

    def _make_room(self, rows: int, pages: int) -> None:
        had = self._table
        if rows <= had.shape[0] and pages <= had.shape[1]:
            return
        width = had.shape[1] if pages <= had.shape[1] else max(pages, 2 * had.shape[1], _NARROWEST)
        self._table = had.new_zeros(max(rows, had.shape[0]), width)
        self._table[: had.shape[0], : had.shape[1]] = had

    def _write(self, rows: Sequence[int], spans: Sequence[SequenceSpan]) -> None:
        size, places, first_slots = self._page_size, array("q"), []
        for row, span in zip(rows, spans, strict=True):
            known, pages = -(-span.told // size), -(-len(span.slots) // size)
            if known < pages:
                begin = row * self._table.shape[1]
                places.extend(range(begin + known, begin + pages))
                first_slots.append(span.slots[known * size :: size])
        if places:
            at = to_device(torch.frombuffer(places, dtype=torch.int64), self._table.device)
            new = to_device((torch.cat(first_slots) // size).to(torch.int32), self._table.device)
            self._table.view(-1).index_copy_(0, at, new)
