"""The plan of the own parts: that of `paged_decode`, with room for the states of the shared parts in its list."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from ..paged_decode import DecodePlan, plan_decode
from ..paged_decode.plan import SMALLEST_SPLIT
from ..to_device import int32_to_device


class OwnParts(NamedTuple):
    plan: DecodePlan
    """It knows of own states alone. The items after a row's own belong to no row: it does not write their states.
    Made for one step: `update` knows nothing of the room."""
    shared_first: Tensor
    """int32 [batch]: a row's first item after its own."""
    counts: Tensor
    """int32 [batch]: how many states a row has, own and shared."""


def plan_own(
    lengths: Sequence[int],
    room: Sequence[int],
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    device: torch.device,
    fp8: bool,
) -> OwnParts:
    """lengths: of the own parts. room: how many states of a shared part each row has."""
    batch = len(lengths)
    blank = plan_decode(batch, heads, kv_heads, head_dim, max_length=0, device=device, fp8=fp8)
    split = max(SMALLEST_SPLIT, -(-sum(lengths) // blank.share))
    own = [max(1, -(-length // split)) for length in lengths]
    counts = [states + more for states, more in zip(own, room, strict=True)]
    *first, items = accumulate(counts, initial=0)
    shared_first = [at + states for at, states in zip(first, own, strict=True)]
    rows = [-1] * items
    for row, (begin, end) in enumerate(zip(first, shared_first, strict=True)):
        rows[begin:end] = [row] * (end - begin)
    of_rows = int32_to_device([first, own, shared_first, counts], device)
    plan = replace(
        blank,
        max_length=max(lengths),
        rows=int32_to_device(rows, device),
        first=of_rows[0],
        counts=of_rows[1],
        partial_out=torch.empty(items, heads, head_dim, dtype=torch.float32, device=device),
        partial_lse=torch.empty(heads, items, dtype=torch.float32, device=device),
    )
    return OwnParts(plan, of_rows[2], of_rows[3])
