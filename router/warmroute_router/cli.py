"""`warmroute COMMAND`: finds the command among the entry points and runs it, importing nothing else.

And how commands speak: what is wrong in one line, and where they serve in another.
"""

import os
import sys
from argparse import REMAINDER, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import NoReturn

from . import __version__


class OneLineParser(ArgumentParser):
    """Says what is wrong in one line on stderr, and exits with 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def announce(line: str) -> None:
    """On standard output, for whoever started this server. Where nobody reads it any more, it serves all the same."""
    try:
        print(line, flush=True)
    except OSError:
        # What could not be written must not fail once more at the end.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def main(argv: Sequence[str] | None = None) -> int:
    """Run `warmroute`; returns the exit code."""
    commands = {command.name: command for command in entry_points(group="warmroute.commands")}
    parser = OneLineParser(
        prog="warmroute",
        description="A cache-aware request router for LLM inference.",
        epilog="`warmroute COMMAND --help` tells the rest.",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"warmroute {__version__}")
    parser.add_argument("command", choices=sorted(commands), help="what to run")
    parser.add_argument("arguments", nargs=REMAINDER, help="passed on to the command").required = False
    args = parser.parse_args(argv)
    run = commands[args.command].load()
    return int(run(args.arguments) or 0)
