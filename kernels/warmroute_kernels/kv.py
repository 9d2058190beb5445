"""The KV cache of one layer, as the kernels see it."""

from typing import NamedTuple

import torch
from torch import Tensor

from .checks import check

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
LARGEST_HEAD_DIM = 256
"""Tiles of more would not fit into registers and shared memory."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16, FP8)


class PagedKV(NamedTuple):
    """K and V of all tokens, in pages. The slot of a token is `page * page_size + offset`.

    k, v: [pages, page_size, kv_heads, head_dim], float32, float16, bfloat16 or float8_e4m3fn; last dim contiguous.
    k_scale, v_scale: float32 [pages, page_size, kv_heads], contiguous; with FP8 and only there. What a token's head
    stands for is its FP8 values times its scale: each is quantised by its own largest value, so that no calibration
    is needed; it costs 4 bytes beside `head_dim`.
    """

    k: Tensor
    v: Tensor
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None

    @property
    def page_size(self) -> int:
        return self.k.shape[1]

    @property
    def kv_heads(self) -> int:
        return self.k.shape[2]

    @property
    def head_dim(self) -> int:
        return self.k.shape[3]

    @property
    def is_fp8(self) -> bool:
        return self.k.dtype == FP8

    def checked(self) -> "PagedKV":
        """Raises ValueError that names what is wrong."""
        k, v = self.k, self.v
        check(k.dim() == 4, f"k has the shape {tuple(k.shape)}: expected [pages, page_size, kv_heads, head_dim]")
        check(0 < self.head_dim <= LARGEST_HEAD_DIM, f"head_dim is {self.head_dim}: expected 1 to {LARGEST_HEAD_DIM}")
        check(v.shape == k.shape, f"v has the shape {tuple(v.shape)}, k has {tuple(k.shape)}")
        check(v.dtype == k.dtype, f"v is {v.dtype}, k is {k.dtype}")
        check(k.dtype in DTYPES, f"k is {k.dtype}: expected float32, float16, bfloat16 or float8_e4m3fn")
        check(v.stride() == k.stride(), f"v has the strides {v.stride()}, k has {k.stride()}")
        check(k.stride(-1) == 1, f"k has the stride {k.stride(-1)} in its last dim: expected 1")
        check(v.device == k.device, f"v is on {v.device}, k on {k.device}")
        for name, scale in (("k_scale", self.k_scale), ("v_scale", self.v_scale)):
            check((scale is not None) == self.is_fp8, f"{name} goes with float8_e4m3fn, and only with that")
            if scale is not None:
                check(
                    scale.shape == k.shape[:3], f"{name} has the shape {tuple(scale.shape)}, k has {tuple(k.shape)}"
                )
                check(scale.dtype == torch.float32, f"{name} is {scale.dtype}: expected float32")
                check(scale.is_contiguous(), f"{name} is not contiguous")
                check(scale.device == k.device, f"{name} is on {scale.device}, k on {k.device}")
        if self.is_fp8 and k.is_cuda:
            known = torch.cuda.get_device_capability(k.device) >= (8, 9)
            check(known, "float8_e4m3fn needs a GPU of compute capability 8.9 or more: Triton has it from there on")
        return self

    def gathered(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """K and V of these slots in float64, [len(slots), kv_heads, head_dim]: for the naive forms."""
        k, v = (_rows(each.flatten(0, 1), slots).double() for each in (self.k, self.v))
        if self.k_scale is not None and self.v_scale is not None:
            k = k * self.k_scale.flatten(0, 1)[slots].double()[..., None]
            v = v * self.v_scale.flatten(0, 1)[slots].double()[..., None]
        return k, v


def _rows(tokens: Tensor, slots: Tensor) -> Tensor:
    """FP8 by its bytes, since not every device can index it."""
    return tokens.view(torch.uint8)[slots].view(FP8) if tokens.dtype == FP8 else tokens[slots]


def slots_of(page_table: Tensor, length: int, page_size: int) -> Tensor:
    """The slots of a sequence's first `length` tokens. page_table: int [pages] of one sequence."""
    pages = page_table[: -(-length // page_size)].long()
    offsets = torch.arange(page_size, device=page_table.device)
    return (pages[:, None] * page_size + offsets).flatten()[:length]
