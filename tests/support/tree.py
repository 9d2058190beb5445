"""What a prefix tree was told, whatever the caches have made of it since."""

from array import array
from math import inf
from typing import NamedTuple

from warmroute_router.tree import PrefixTree


class Keeping(NamedTuple):
    horizon: float = -inf
    floor: float = -inf
    blocks: float = inf


FOREVER = Keeping()


def sent_blocks(tree: PrefixTree, hashes: "array[int]") -> dict[int, int]:
    """Leading blocks of a prompt by worker that was sent them; for workers below 100."""
    return tree.find(hashes).cached(dict.fromkeys(range(100), FOREVER)).blocks
