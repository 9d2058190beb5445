"""Attention over parts of the keys, put together: each part's output weighs as much as its softmax's denominator.

For the splits of a decode, and for a shared prefix with what follows it (Ye et al., "FlashInfer", 2025, section 3.1);
the arithmetic is that of the online softmax (Milakov and Gimelshein, 2018).
"""

import torch
from torch import Tensor

from ..checks import check_tensor
from ..tuned import config_of, gpu_name, padded
from .naive import merge_states_naive

__all__ = ["merge_states", "merge_states_naive"]

HALVES = (torch.float32, torch.float16, torch.bfloat16)


def merge_states(
    partial_out: Tensor,
    partial_lse: Tensor,
    out: Tensor,
    *,
    counts: Tensor | None = None,
    first: Tensor | None = None,
    lse: Tensor | None = None,
) -> None:
    """Writes `out`, and `lse` where it is given.

    partial_out: float32 [rows, heads, states, head_dim], normalised. partial_lse: float32 [rows, heads, states].
    Of both only the last dim has to be contiguous. A state of -inf counts nothing, and its out is not read.
    counts: int32 [rows], how many of a row's states there are; None: all of them. Others are not read.
    first: int32 [rows], where a row's states begin; None: at 0. With a row stride of 0, rows of different numbers of
    states lie packed in one list.
    out: float32, float16 or bfloat16 [rows, heads, head_dim]. lse: float32 [rows, heads], natural logarithm.
    A row without a state that counts: 0 and -inf.
    Raises ValueError where a tensor is not so.
    """
    device = partial_out.device
    check_tensor("partial_out", partial_out, (None,) * 4, (torch.float32,), device, contiguous=False)
    rows, heads, states, head_dim = partial_out.shape
    check_tensor("partial_lse", partial_lse, (rows, heads, states), (torch.float32,), device, contiguous=False)
    check_tensor("out", out, (rows, heads, head_dim), HALVES, device, contiguous=False)
    for name, of_rows in (("counts", counts), ("first", first)):
        if of_rows is not None:
            check_tensor(name, of_rows, (rows,), (torch.int32,), device)
    if lse is not None:
        check_tensor("lse", lse, (rows, heads), (torch.float32,), device)
    if rows == 0:
        return
    from .kernel import merge_states_kernel

    config = config_of("merge", gpu_name(device), head_dim, fp8=False)
    merge_states_kernel[(rows, heads)](
        partial_out,
        partial_lse,
        out,
        lse,
        first,
        counts,
        states,
        *partial_out.stride()[:3],
        *partial_lse.stride()[:2],
        *out.stride()[:2],
        HEADS=heads,
        HEAD_DIM=head_dim,
        PADDED_DIM=padded(head_dim),
        BLOCK_N=config.block_n,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
