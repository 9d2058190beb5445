"""Who attends to what together: planned once per step, on the host, for all layers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..checks import check, check_tensor
from ..to_device import int32_to_device
from ..tuned import Config, config_of, gpu_name, multiprocessors
from .cost import BANDWIDTH, Shape, pays, saving
from .groups import SharedPrefix
from .own import OwnParts, plan_own
from .tiles import Part, most_splits, rows_of_tile, split_of, tiles_of


@dataclass(frozen=True)
class CascadePlan:
    """The programs of the shared parts, and the plan of the own parts. Rows are rows of the batch everywhere.

    Its tensors and numbers say how large every grid is, whatever the tensors contain: `cascade` reads none of them on
    the host. So a CUDA graph may hold a cascade, but serves no other plan: other groups have other tiles.
    """

    groups: tuple[SharedPrefix, ...]
    """Those that are shared."""
    page_size: int
    config: Config
    page_table: Tensor
    """The batch's own: shared pages are read where a member has them."""
    tiles: Tensor
    """int32 [tiles, 2 + rows]: a member, the shared tokens, and row * (heads / kv_heads) + head, -1 for none."""
    split_tokens: int
    splits: int
    """Of the group that shares most."""
    own: OwnParts
    """What follows the shared parts."""
    own_table: Tensor
    """int32 [batch, own pages]: page tables from where the own parts begin."""
    own_lengths: Tensor
    """int32 [batch]."""


def plan_cascade(
    groups: Sequence[SharedPrefix],
    page_table: Tensor,
    lengths: Sequence[int],
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    page_size: int,
    device: torch.device | str,
    fp8: bool = False,
    lost: float = 0.0,
) -> CascadePlan | None:
    """None where sharing does not pay. Groups that do not pay are dropped, their rows are decoded alone.

    groups: as `groups_of` gives them; a row is in one at most. page_table: int32 [batch, max_pages]; the plan keeps
    it. lengths: [batch], the token at length - 1 is the query's own. It is in no shared page: a member is longer than
    what it shares. Rows in no group may have any length, 0 too.
    lost: seconds per layer that the caller loses by a cascade: what its kernels wait for the host, where plain decode
    would have been a CUDA graph.
    There is no sliding window: a row does not see the beginning of what it shares for long. Where a model has one,
    no groups are planned.
    Reads nothing that is on the GPU. Raises ValueError that says what is wrong with an argument.
    """
    device = torch.device(device)
    _check(groups, page_table, lengths, heads, kv_heads, page_size, device)
    shape = Shape(heads, kv_heads, head_dim, fp8)
    block_m = config_of("cascade", gpu_name(device), head_dim, fp8=fp8).block_m
    paying, savings = [], 0.0
    for group in groups:
        tiles = -(-len(group.rows) * (heads // kv_heads) // block_m)
        most = most_splits(tiles, kv_heads, multiprocessors(device))
        saved = saving(len(group.rows), len(group.pages) * page_size, most, shape)
        if saved > 0:
            paying.append(group)
            savings += saved
    if not pays(savings - lost * BANDWIDTH):
        return None
    return plan_groups(
        paying, page_table, lengths, heads, kv_heads, head_dim, page_size=page_size, device=device, fp8=fp8
    )


def plan_groups(
    groups: Sequence[SharedPrefix],
    page_table: Tensor,
    lengths: Sequence[int],
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    page_size: int,
    device: torch.device | str,
    fp8: bool = False,
    split_tokens: int | None = None,
) -> CascadePlan:
    """`plan_cascade` for at least one group, paying or not: for tests, and to measure where it pays.

    split_tokens: of a split of the shared parts, rounded up to the kernel's blocks; None: what fills the GPU best.
    """
    device = torch.device(device)
    _check(groups, page_table, lengths, heads, kv_heads, page_size, device)
    check(len(groups) > 0, "there are no groups: that is `paged_decode`")
    config = config_of("cascade", gpu_name(device), head_dim, fp8=fp8)
    tile_m = rows_of_tile(groups, heads // kv_heads, config.block_m)
    tiles = [tiles_of(group, page_size, heads // kv_heads, tile_m) for group in groups]
    parts = [Part(len(of_group), of_group[0][1]) for of_group in tiles]
    if split_tokens is None:
        split_tokens = split_of(parts, kv_heads, tile_m, config.block_n, multiprocessors(device))
    split_tokens = -(-split_tokens // config.block_n) * config.block_n

    shared = [0] * len(lengths)
    for group, part in zip(groups, parts, strict=True):
        for row in group.rows:
            shared[row] = part.tokens
    room = [-(-tokens // split_tokens) for tokens in shared]
    own_lengths = [length - tokens for length, tokens in zip(lengths, shared, strict=True)]
    own_pages = max(1, -(-max(own_lengths) // page_size))
    of_rows = int32_to_device([own_lengths, [tokens // page_size for tokens in shared]], device)
    columns = of_rows[1][:, None] + torch.arange(own_pages, device=device)
    return CascadePlan(
        groups=tuple(groups),
        page_size=page_size,
        config=config,
        page_table=page_table,
        tiles=int32_to_device([tile for of_group in tiles for tile in of_group], device),
        split_tokens=split_tokens,
        splits=max(room),
        own=plan_own(own_lengths, room, heads, kv_heads, head_dim, device=device, fp8=fp8),
        own_table=page_table.gather(1, columns.clamp(max=page_table.shape[1] - 1)),
        own_lengths=of_rows[0],
    )


def _check(
    groups: Sequence[SharedPrefix],
    page_table: Tensor,
    lengths: Sequence[int],
    heads: int,
    kv_heads: int,
    page_size: int,
    device: torch.device,
) -> None:
    check(
        heads > 0 and kv_heads > 0 and heads % kv_heads == 0,
        f"{heads} heads cannot be divided among {kv_heads} kv heads",
    )
    check(page_size > 0, f"page_size is {page_size}: expected more than 0")
    check_tensor("page_table", page_table, (len(lengths), None), (torch.int32,), device)
    check(min(lengths, default=0) >= 0, f"a length is {min(lengths, default=0)}")
    grouped: set[int] = set()
    for group in groups:
        check(len(group.rows) > 0 and len(group.pages) > 0, "a group has no rows or no pages")
        for row in group.rows:
            check(0 <= row < len(lengths), f"row {row} of a group: the batch has {len(lengths)}")
            check(row not in grouped, f"row {row} is in two groups, or twice in one")
            grouped.add(row)
            tokens = len(group.pages) * page_size
            check(
                lengths[row] > tokens,
                f"row {row} has {lengths[row]} tokens and shares {tokens}: the last one has to be its own",
            )
            pages = -(-lengths[row] // page_size)
            check(pages <= page_table.shape[1], f"row {row} has {pages} pages, page_table {page_table.shape[1]}")
