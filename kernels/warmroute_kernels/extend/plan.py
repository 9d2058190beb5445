"""Which program of the grid computes which rows: decided on the host, once per step for all layers."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ..checks import check
from ..to_device import int32_to_device
from ..tuned import Config, config_of, gpu_name


class ExtendPlan(NamedTuple):
    tiles: Tensor
    """int32 [tiles, 2]: a sequence, and the first of `config.block_m` of its rows; programs of each kv head."""
    batch: int
    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    fp8: bool
    config: Config


def plan_extend(
    starts: Sequence[int],
    prefix_lengths: Sequence[int],
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    device: torch.device | str,
    fp8: bool = False,
) -> ExtendPlan:
    """For `extend` with these starts and prefixes in its tensors. `fp8`: whether the cache is.

    Tiles never reach from one sequence into the next, and begin at the same rows whoever else is in the batch: what
    a sequence gets does not depend on the others, to the bit. Those with most to attend to are started first, so that
    none of them is left over when the others have ended. Raises ValueError that says what is wrong.
    """
    check(len(starts) == len(prefix_lengths) + 1, f"{len(starts)} starts for {len(prefix_lengths)} prefix lengths")
    check(starts[0] == 0, f"starts begin with {starts[0]}: expected 0")
    check(all(a <= b for a, b in pairwise(starts)), f"starts do not ascend: {list(starts)}")
    check(min(prefix_lengths, default=0) >= 0, f"a prefix length is negative: {list(prefix_lengths)}")
    check(kv_heads > 0 and heads % kv_heads == 0, f"{heads} heads are not a multiple of {kv_heads} kv heads")
    device = torch.device(device)
    config = config_of("extend", gpu_name(device), head_dim, fp8=fp8)
    group = heads // kv_heads
    tiles = []
    for sequence, (prefix, (start, end)) in enumerate(zip(prefix_lengths, pairwise(starts), strict=True)):
        rows = (end - start) * group
        for first in range(0, rows, config.block_m):
            weight = prefix + (min(first + config.block_m, rows) - 1) // group
            tiles.append((-weight, sequence, first))
    on_device = int32_to_device([tile[1:] for tile in sorted(tiles)], device).view(-1, 2)
    return ExtendPlan(on_device, len(prefix_lengths), starts[-1], heads, kv_heads, head_dim, fp8, config)
