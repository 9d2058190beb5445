"""The KV pool: K and V of every layer in fixed pages, and the account of which pages are free.

A slot is the place of one token; page p has the slots p * page_size to (p + 1) * page_size - 1.
"""

import torch
from torch import Tensor
from warmroute_kernels.kv import FP8, PagedKV


class PageAllocator:
    """Hands out page numbers, kept on the host. Freeing a page that is not in use is a bug, and asserted."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._stack = torch.arange(num_pages - 1, -1, -1)
        self._in_use = torch.zeros(num_pages, dtype=torch.bool)
        self.free_pages = num_pages

    def allocate(self, count: int) -> Tensor:
        """int64 [count]. The caller has made sure that there are enough."""
        assert count <= self.free_pages, f"{count} pages wanted, {self.free_pages} free"
        pages = self._stack[self.free_pages - count : self.free_pages].flip(0)
        self.free_pages -= count
        self._in_use[pages] = True
        return pages

    def free(self, pages: Tensor) -> None:
        assert bool(self._in_use[pages].all()), "a page is freed twice"
        self._in_use[pages] = False
        assert int(self._in_use.sum()) == self.num_pages - self.free_pages - len(pages), "a page is given twice"
        self._stack[self.free_pages : self.free_pages + len(pages)] = pages
        self.free_pages += len(pages)


class KVPool:
    """`k` and `v`: [layers, slots, kv_heads, head_dim], on the device; the account of pages is on the host.

    In FP8 there are `k_scale` and `v_scale` too, float32 [layers, slots, kv_heads]: see `PagedKV`.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        *,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.page_size = page_size
        self.num_slots = num_pages * page_size
        self.device = torch.device(device)
        self._pages = PageAllocator(num_pages)
        shape = (layers, self.num_slots, kv_heads, head_dim)
        # Not zeroed: on a CPU, memory is then taken from the system as slots come into use, and not before.
        self.k = torch.empty(shape, dtype=dtype, device=device)
        self.v = torch.empty(shape, dtype=dtype, device=device)
        self.k_scale = torch.empty(shape[:3], device=device) if dtype == FP8 else None
        self.v_scale = torch.empty(shape[:3], device=device) if dtype == FP8 else None

    def layer(self, index: int) -> PagedKV:
        """One layer's K and V as the kernels see them."""
        return PagedKV(
            self._paged(self.k[index]),
            self._paged(self.v[index]),
            None if self.k_scale is None else self._paged(self.k_scale[index]),
            None if self.v_scale is None else self._paged(self.v_scale[index]),
        )

    def _paged(self, by_slot: Tensor) -> Tensor:
        return by_slot.view(-1, self.page_size, *by_slot.shape[1:])

    @property
    def free_slots(self) -> int:
        return self._pages.free_pages * self.page_size

    def allocate(self, count: int) -> Tensor:
        """Slots for `count` tokens, a multiple of the page size: int64 [count]."""
        assert count % self.page_size == 0, "whole pages only"
        pages = self._pages.allocate(count // self.page_size)
        return (pages[:, None] * self.page_size + torch.arange(self.page_size)).flatten()

    def free(self, slots: Tensor) -> None:
        """Whole pages, in the order in which `allocate` gave their slots."""
        assert len(slots) % self.page_size == 0, "whole pages only"
        self._pages.free(slots[:: self.page_size] // self.page_size)
