"""How the shared parts are cut into programs: tiles of rows, and splits of tokens that fill the GPU."""

from collections.abc import Sequence
from typing import NamedTuple

from .groups import SharedPrefix

SMALLEST_TILE = 16
"""Rows, the least that a matrix product takes."""
SMALLEST_SPLIT = 256
"""Tokens. With fewer, states are more to write and read than K and V. Not yet measured on a GPU."""
ROUNDS = 2
"""How often a multiprocessor takes a program at most: registers leave room for one at a time. Not yet measured."""


class Part(NamedTuple):
    """What a group's programs have to do, for each kv head."""

    tiles: int
    tokens: int


def rows_of_tile(groups: Sequence[SharedPrefix], heads_of_kv: int, most: int) -> int:
    """A power of two that holds the largest group, if it is no more than `most`."""
    rows = max((len(group.rows) for group in groups), default=1) * heads_of_kv
    return min(most, max(SMALLEST_TILE, 1 << (rows - 1).bit_length()))


def tiles_of(group: SharedPrefix, page_size: int, heads_of_kv: int, tile_m: int) -> list[list[int]]:
    """Of each tile: a member, for its pages; the shared tokens; `tile_m` times row * heads_of_kv + head, or -1."""
    packed = [row * heads_of_kv + head for row in group.rows for head in range(heads_of_kv)]
    packed += [-1] * (-len(packed) % tile_m)
    start = [group.rows[0], len(group.pages) * page_size]
    return [start + packed[at : at + tile_m] for at in range(0, len(packed), tile_m)]


def most_splits(tiles: int, kv_heads: int, programs: int) -> int:
    """Into how many splits tokens are divided at most. programs: as many as run at once."""
    return max(1, ROUNDS * programs // (tiles * kv_heads))


def split_of(parts: Sequence[Part], kv_heads: int, tile_m: int, block_n: int, programs: int) -> int:
    """Tokens of a split, a multiple of `block_n`: that with which the last program of all is done first.

    A program takes as long as its tokens, and for its state as long as 2 * tile_m more: float32 written and read
    again, against K and V in half precision.
    """
    longest = max(part.tokens for part in parts)
    most = min(most_splits(sum(part.tiles for part in parts), kv_heads, programs), max(1, longest // SMALLEST_SPLIT))

    def duration(split: int) -> int:
        needed = kv_heads * sum(part.tiles * -(-part.tokens // split) for part in parts)
        return -(-needed // programs) * (split + 2 * tile_m)

    return min((-(-longest // (count * block_n)) * block_n for count in range(1, most + 1)), key=duration)
