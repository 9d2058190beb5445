"""Flags whose mistakes are told in one line."""

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from typing import NoReturn


class OneLineParser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def number(low: int, high: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < low or (high is not None and int(text) > high):
            raise ArgumentTypeError(
                f"{text!r} is not a number {f'from {low} to {high}' if high else f'of at least {low}'}"
            )
        return int(text)

    return parse
