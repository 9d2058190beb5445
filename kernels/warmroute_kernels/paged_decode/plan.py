"""Which program computes which part of which sequence: planned once per step, on the host, for all layers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, repeat

import torch
from torch import Tensor

from ..checks import check
from ..tuned import Config, config_of, gpu_name, multiprocessors

SMALLEST_SPLIT = 128
"""Tokens. Smaller ones cost more in merging than they save in waiting. Not yet measured on a GPU."""
PROGRAMS_PER_MULTIPROCESSOR = 8
"""Two at a time, four times over: so the last round, in which some have nothing to do, is short. Not yet measured."""


@dataclass(frozen=True)
class DecodePlan:
    """A list of `items`, each one split of one sequence; every layer's launch goes over it, for each head.

    Its tensors stay where they are, so a CUDA graph that holds them sees what `update` writes. The number of items is
    what any lengths may need; those that are not needed belong to no row, and their programs leave at once.
    """

    heads: int
    kv_heads: int
    head_dim: int
    max_length: int
    fp8: bool
    config: Config
    fixed_split: int
    """Tokens of a split; 0 where splits are as long as the batch makes them."""
    share: int
    """How many items the tokens of a batch are divided into, other than by `fixed_split`."""
    rows: Tensor
    """int32 [items]: the sequence of an item; -1 for none."""
    first: Tensor
    """int32 [batch]: a sequence's first item."""
    counts: Tensor
    """int32 [batch]: how many items it has, at least one."""
    partial_out: Tensor
    """float32 [items, heads, head_dim]."""
    partial_lse: Tensor
    """float32 [heads, items]."""
    _told: Tensor = field(repr=False)
    """int32 [items + 2 * batch]: what `rows`, `first` and `counts` are parts of, for one copy."""

    @property
    def batch(self) -> int:
        return self.first.shape[0]

    @property
    def items(self) -> int:
        return self.rows.shape[0]

    def update(self, lengths: Sequence[int]) -> None:
        """For the next step, in place: without a wait for the GPU, and with one small copy to it.

        With splits of the batch's making the result is right without it too, but long sequences may be in too few
        parts; the same bits, alone and in a batch, come of `fixed_split` only where the plan knows the lengths.
        Raises ValueError where the lengths are not as many, or longer, than was planned.
        """
        check(len(lengths) == self.batch, f"{len(lengths)} lengths for a plan of {self.batch} sequences")
        shortest, longest = min(lengths, default=0), max(lengths, default=0)
        check(
            shortest >= 0 and longest <= self.max_length,
            f"lengths are {shortest} to {longest}: the plan is for 0 to {self.max_length}",
        )
        split = self.fixed_split or max(SMALLEST_SPLIT, -(-sum(lengths) // self.share))
        counts = [max(1, -(-length // split)) for length in lengths]
        *first, used = accumulate(counts, initial=0)
        rows = [row for row, count in enumerate(counts) for _ in range(count)]
        told = [*rows, *repeat(-1, self.items - used), *first, *counts]
        # From pinned memory the copy is only queued; PyTorch keeps that memory until it is done.
        on_host = torch.tensor(told, dtype=torch.int32, pin_memory=self._told.is_cuda)
        self._told.copy_(on_host, non_blocking=True)


def plan_decode(
    batch: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    max_length: int,
    device: torch.device | str,
    lengths: Sequence[int] | None = None,
    fixed_split: int | None = None,
    fp8: bool = False,
) -> DecodePlan:
    """lengths: of the first step, where they are known; None: all `max_length`, the most that any may become.

    fixed_split: tokens of a split. A sequence's output then has the same bits alone and in any batch, at the cost of
    more waiting in some batches and workspace for `max_length` of all. None: the sequences' tokens are divided into
    as many equal parts as keep every multiprocessor busy.
    """
    check(batch >= 0 and max_length >= 0, f"batch {batch} and max_length {max_length} must not be negative")
    check(
        heads > 0 and kv_heads > 0 and heads % kv_heads == 0,
        f"{heads} heads cannot be divided among {kv_heads} kv heads",
    )
    check(fixed_split is None or fixed_split > 0, f"fixed_split is {fixed_split}: expected a number of tokens")
    device = torch.device(device)
    config = config_of("paged_decode", gpu_name(device), head_dim, fp8=fp8)
    programs = PROGRAMS_PER_MULTIPROCESSOR * multiprocessors(device)
    share = -(-programs // kv_heads)
    if fixed_split is None:
        # Parts of at least 1/share of all tokens are at most `share`, and one more for what remains of each sequence.
        items = batch + min(share, batch * (max_length // SMALLEST_SPLIT))
    else:
        items = batch * max(1, -(-max_length // fixed_split))
    told = torch.empty(items + 2 * batch, dtype=torch.int32, device=device)
    plan = DecodePlan(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_length=max_length,
        fp8=fp8,
        config=config,
        fixed_split=fixed_split or 0,
        share=share,
        rows=told[:items],
        first=told[items : items + batch],
        counts=told[items + batch :],
        partial_out=torch.empty(items, heads, head_dim, dtype=torch.float32, device=device),
        partial_lse=torch.empty(heads, items, dtype=torch.float32, device=device),
        _told=told,
    )
    plan.update([max_length] * batch if lengths is None else lengths)
    return plan
