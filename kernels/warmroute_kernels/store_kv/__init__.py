"""New K and V to where the page table says, quantised to FP8 on the way where the cache is that.

One scale for each head of each token: its largest absolute value becomes 448, the largest of float8_e4m3fn
(Micikevicius et al., "FP8 formats for deep learning", 2022). So there is no calibration, and what is stored stays.
"""

import torch
from torch import Tensor

from ..checks import check, check_tensor
from ..kv import PagedKV
from ..tuned import config_of, gpu_name, padded
from .naive import store_kv_naive

__all__ = ["store_kv", "store_kv_naive"]

SOURCES = (torch.float32, torch.float16, torch.bfloat16)


def store_kv(k: Tensor, v: Tensor, kv: PagedKV, slots: Tensor) -> None:
    """Writes into `kv` in place.

    k, v: [tokens, kv_heads, head_dim], last dim contiguous; of the cache's dtype, or, where that is FP8, float32,
    float16 or bfloat16. slots: int64 [tokens], each at most once; -1: not stored (what pads a CUDA graph's batch).
    Raises ValueError where a tensor is not so. The host does not look at slots: one out of range is a memory fault.
    """
    kv.checked()
    device = kv.k.device
    dtypes = SOURCES if kv.is_fp8 else (kv.k.dtype,)
    check_tensor("k", k, (None, kv.kv_heads, kv.head_dim), dtypes, device, contiguous=False)
    check_tensor("v", v, tuple(k.shape), (k.dtype,), device, contiguous=False)
    check_tensor("slots", slots, (k.shape[0],), (torch.int64,), device)
    rows = k.shape[0] * kv.kv_heads
    check(rows < 2**31, f"{k.shape[0]} tokens of {kv.kv_heads} heads are too many at once")
    if rows == 0:
        return
    import triton

    from .kernel import store_kv_kernel

    config = config_of("store_kv", gpu_name(device), kv.head_dim, fp8=kv.is_fp8)
    store_kv_kernel[(triton.cdiv(rows, config.block_m),)](
        k,
        v,
        *kv,
        slots,
        rows,
        *k.stride()[:2],
        *v.stride()[:2],
        *kv.k.stride()[:3],
        KV_HEADS=kv.kv_heads,
        HEAD_DIM=kv.head_dim,
        PADDED_DIM=padded(kv.head_dim),
        PAGE_SIZE=kv.page_size,
        BLOCK_M=config.block_m,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
