"""What `warmroute worker` starts: this package's engine, vLLM behind the same flags, or several of either."""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import NamedTuple

from .errors import WorkerError
from .one_line_parser import OneLineParser, number

ENGINES = ("warmroute", "vllm")
METHODS = ("cache_aware", "round_robin")


class Mode(NamedTuple):
    engine: str
    dp_size: int
    load_balance_method: str

    @property
    def is_own_engine(self) -> bool:
        return self.engine == "warmroute" and self.dp_size == 1


def add_modes(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("what is started")
    group.add_argument(
        "--engine", choices=ENGINES, default="warmroute", help="`--engine vllm --help` tells its flags"
    )
    group.add_argument(
        "--dp-size",
        type=number(1),
        default=1,
        metavar="N",
        help="workers behind one port, with a router in front (default: 1, and no router)",
    )
    group.add_argument(
        "--load-balance-method", choices=METHODS, default="cache_aware", help="of that router (default: %(default)s)"
    )


def read_mode(arguments: Sequence[str]) -> tuple[Mode, list[str]]:
    """The mode, and the arguments that are left. Exits with 2, and one line, on a flag that cannot be."""
    parser = OneLineParser(prog="warmroute worker", add_help=False, allow_abbrev=False)
    add_modes(parser)
    args, rest = parser.parse_known_args(arguments)
    return Mode(**vars(args)), rest


def run_mode(mode: Mode, arguments: list[str]) -> int:
    """Any but this package's own engine; gives the exit code."""
    try:
        if mode.dp_size > 1:
            from .data_parallel import serve_several

            return serve_several(mode, arguments)
        from .vllm.server import serve

        return serve(arguments)
    except WorkerError as error:
        print(f"warmroute worker: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
