"""Flags whose mistakes are told in one line."""

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from typing import NoReturn


class OneLineParser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def number(low: int, high: int = 10**15) -> Callable[[str], int]:
    """That highest number is more than any memory holds of anything, and less than PyTorch counts to."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise ArgumentTypeError(f"{text!r} is not a number from {low} to {high}")
        return int(text)

    return parse
