"""Kinds of values that the flags of several commands take: each says in one line what it expected."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import TypeVar

N = TypeVar("N", int, float)


def count(given: str) -> int:
    return _above_zero(int, given, "a whole number")


def positive(given: str) -> float:
    return _above_zero(float, given, "a number")


def new_file(given: str) -> Path:
    path = Path(given)
    if not path.parent.is_dir():  # said now, not after the work
        raise ArgumentTypeError(f"no folder {path.parent}")
    return path


def _above_zero(read: Callable[[str], N], given: str, kind: str) -> N:
    try:
        value = read(given)
    except ValueError:
        raise ArgumentTypeError(f"expected {kind}, got {given!r}") from None
    if not 0 < value < inf:
        raise ArgumentTypeError(f"expected {kind} above zero, got {given!r}")
    return value
