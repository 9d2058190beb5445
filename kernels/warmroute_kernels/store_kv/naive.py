"""The truth about `store_kv`, in plain PyTorch."""

import torch
from torch import Tensor

from ..kv import FP8, FP8_MAX, PagedKV


def store_kv_naive(k: Tensor, v: Tensor, kv: PagedKV, slots: Tensor) -> None:
    """Writes what `store_kv` writes; of FP8 the nearest values, and the scales."""
    stored = slots >= 0
    page, offset = slots[stored] // kv.page_size, slots[stored] % kv.page_size
    for values, cache, scales in ((k[stored], kv.k, kv.k_scale), (v[stored], kv.v, kv.v_scale)):
        if scales is None:
            cache[page, offset] = values
        else:
            wide = values.float()
            largest = wide.abs().amax(-1)
            scale = torch.where(largest == 0, 1.0, largest / FP8_MAX)
            # FP8 cannot be scattered: its bytes can.
            cache.view(torch.uint8)[page, offset] = (wide / scale[..., None]).to(FP8).view(torch.uint8)
            scales[page, offset] = scale
