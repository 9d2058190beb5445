"""Which worker holds which prefixes: see `prefix_tree`."""

from .node import Record
from .path import Cached, Keeping, Path
from .prefix_tree import MAX_TREE_BLOCKS, MAX_TREE_ENTRIES, PrefixTree
from .restoration import Restoration

__all__ = ["MAX_TREE_BLOCKS", "MAX_TREE_ENTRIES", "Cached", "Keeping", "Path", "PrefixTree", "Record", "Restoration"]
