"""Paged caches to attend over, poisoned wherever nothing may be read, and how far a kernel may be from the truth."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from warmroute_kernels.kv import FP8, FP8_MAX, PagedKV, slots_of

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""Of q and of the outputs; a cache has one of them or FP8."""
UNIT = 2.0**-24
"""Half an ulp of float32 at 1: what one rounded operation is wrong by, relatively."""


def random_values(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def unwritten(*shape: int, dtype: torch.dtype) -> Tensor:
    """An output that nobody has written yet: what a kernel leaves out stays NaN."""
    return torch.full(shape, math.nan, dtype=dtype)


def quantised(values: Tensor) -> tuple[Tensor, Tensor]:
    """To FP8 with a scale (float32) for each head of each token: its largest absolute value becomes 448."""
    wide = values.float()
    largest = wide.abs().amax(-1)
    scale = torch.where(largest == 0, 1.0, largest / FP8_MAX)
    return (wide / scale[..., None]).to(FP8), scale


class Cached(NamedTuple):
    """A batch of sequences whose K and V are in pages."""

    kv: PagedKV
    page_table: Tensor
    """int32 [batch, max_pages]. Entries after a sequence's last page name a page of NaN."""
    lengths: Tensor
    """int32 [batch]."""

    @property
    def owned(self) -> Tensor:
        """The slots of all tokens, sequence after sequence."""
        rows = zip(self.page_table, self.lengths.tolist(), strict=True)
        return torch.cat([slots_of(row, length, self.kv.page_size) for row, length in rows])

    @property
    def values(self) -> tuple[Tensor, Tensor]:
        """K and V of all tokens, float64 [tokens, kv_heads, head_dim]."""
        return self.kv.gathered(self.owned)

    def poison(self) -> None:
        """NaN into every slot and scale that no sequence owns: again after the page table was changed."""
        pages, page_size = self.kv.k.shape[:2]
        nobodys = torch.ones(pages * page_size, dtype=torch.bool)
        nobodys[self.owned] = False
        for part in self.kv:
            if part is not None:
                # All bits set are a NaN in each of the dtypes; and FP8 cannot be filled.
                part.view(torch.uint8)[nobodys.view(pages, page_size)] = 0xFF


def random_cache(
    lengths: Sequence[int],
    *,
    kv_heads: int = 2,
    head_dim: int = 16,
    page_size: int = 4,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Cached:
    """Sequences in pages that are scattered over the cache. Tails of last pages, and pages of nobody, are NaN."""
    counts = [-(-length // page_size) for length in lengths]
    spare = 2
    pages = sum(counts) + spare
    shape = (pages, page_size, kv_heads, head_dim)
    wide = torch.float32 if dtype == FP8 else dtype
    k, v = (random_values(*shape, dtype=wide, seed=seed + part) for part in range(2))
    if dtype == FP8:
        (k, k_scale), (v, v_scale) = quantised(k), quantised(v)
        kv = PagedKV(k, v, k_scale, v_scale)
    else:
        kv = PagedKV(k, v)
    order = torch.randperm(pages, generator=torch.Generator().manual_seed(seed)).int()
    page_table = order[-1].repeat(len(lengths), max(counts) + 1)
    taken = 0
    for row, count in zip(page_table, counts, strict=True):
        row[:count] = order[taken : taken + count]
        taken += count
    cached = Cached(kv, page_table, torch.tensor(lengths, dtype=torch.int32))
    cached.poison()
    return cached


def edge_lengths(page_size: int) -> list[int]:
    """Nothing, one token, about a page, and more than a few pages, in no order."""
    return [page_size, 0, 3 * page_size + 2, 1, page_size + 1, page_size - 1]


class Tolerance(NamedTuple):
    absolute: float
    relative: float


def tolerances(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    fp8: bool = False,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> tuple[Tolerance, Tolerance]:
    """How far a kernel's output, and its lse, may be from the truth. keys, values: all that is attended to, [..., D].

    The truth is computed in float64 from the very values that the kernel reads, so these alone count:

    * The output's rounding to q's dtype: half an ulp of it; a whole one of bfloat16 in Triton's interpreter, which
      truncates. Relative to the output.
    * Before the second product p is rounded to q's dtype (over FP8, and with q in half precision, `extend` rounds to
      bfloat16, which has the range for p times the scale of v; decode to float16, which is closer). As the p of a row
      sum to 1, the sum of p*v moves by at most that rounding times the largest |v|.
    * Accumulation in float32. n rounded additions are wrong by at most n*UNIT of the sum of absolute terms, and by
      4*sqrt(n)*UNIT with overwhelming probability where rounding errors are independent (Higham and Mary, "A new
      approach to probabilistic rounding error analysis", 2019). For a score those terms are bounded by |q||k|*scale;
      the few operations after it (scale, cap, subtraction, exp2) add up to 8 units of the same. An absolute error e
      of the scores is a relative one of p of e, in the numerator and in the denominator; so it moves the output by
      2e times the largest |v|, and the lse by e.
    """
    head_dim, tokens = keys.shape[-1], max(1, keys.numel() // keys.shape[-1])
    scale = head_dim**-0.5 if scale is None else scale
    longest_q, longest_k = (each.double().norm(dim=-1).amax().item() if each.numel() else 0.0 for each in (q, keys))
    largest_v = values.double().abs().amax().item() if values.numel() else 0.0
    reach = max(longest_q * longest_k * scale, soft_cap or 0.0, 1.0)
    of_scores = (4 * math.sqrt(head_dim) + 8) * UNIT * reach
    of_sums = (4 * math.sqrt(tokens) + 8) * UNIT
    p_dtype = torch.bfloat16 if fp8 and q.dtype == torch.float16 else q.dtype
    of_p = 0.0 if p_dtype == torch.float32 else rounding(p_dtype)
    smallest = torch.finfo(q.dtype).smallest_normal * torch.finfo(q.dtype).eps
    out = Tolerance(largest_v * (of_p + 2 * of_scores + 2 * of_sums) + smallest, rounding(q.dtype))
    return out, Tolerance(of_scores + of_sums, 2 * UNIT)


def rounding(dtype: torch.dtype) -> float:
    """What rounding to it is wrong by at most, relatively."""
    truncated = dtype in (torch.bfloat16, FP8) and not torch.cuda.is_available()
    return torch.finfo(dtype).eps * (1.0 if truncated else 0.5)


def assert_close(got: Tensor, truth: Tensor, tolerance: Tolerance) -> None:
    """Every element, with what is infinite equal. truth: float64."""
    assert got.shape == truth.shape, f"{tuple(got.shape)}, expected {tuple(truth.shape)}"
    assert not got.isnan().any(), f"{int(got.isnan().sum())} of {got.numel()} elements are NaN"
    wide = got.double().cpu()
    finite = truth.isfinite()
    assert torch.equal(wide[~finite], truth[~finite]), "other elements are infinite than expected"
    off = (wide - truth)[finite].abs()
    excess = off - tolerance.absolute - tolerance.relative * truth[finite].abs()
    assert not (excess > 0).any(), f"wrong by up to {off.max().item():.3g}, {excess.max().item():.3g} too much"
