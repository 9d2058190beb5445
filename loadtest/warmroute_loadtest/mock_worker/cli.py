"""`warmroute mock-worker`: the flags, and a process that serves until it is told to stop."""

import asyncio
import signal
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, TypeVar

import uvloop
from warmroute_router.blocks import BYTES_PER_TOKEN
from warmroute_router.cli import OneLineParser, announce

from .config import Failure, MockConfig
from .connection import Connection
from .worker import MockWorker

N = TypeVar("N", int, float)


def main(argv: Sequence[str] | None = None) -> int:
    """A worker without a model: what engines answer, at the pace and with the prefix cache that the flags say."""
    args = _parsed(argv)
    host, port = args.pop("host"), args.pop("port")
    try:
        return uvloop.run(_serve(MockConfig(**args), host, port))
    except OSError as error:
        print(f"warmroute mock-worker: cannot listen on {host} port {port}: {error.strerror}", file=sys.stderr)
        return 1


async def _serve(config: MockConfig, host: str, port: int) -> int:
    """Until a signal; returns the exit code. Whoever is still being answered is cut off."""
    worker = MockWorker(config)
    loop = asyncio.get_running_loop()
    with _signalled() as ended:
        server = await loop.create_server(lambda: Connection(worker.serve), host, port, backlog=4096)
        try:
            address = f"[{host}]" if ":" in host else host
            announce(f"http://{address}:{server.sockets[0].getsockname()[1]}")
            return await ended
        finally:
            server.close()


@contextmanager
def _signalled() -> Iterator[asyncio.Future[int]]:
    """Gives the exit code once a signal comes."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(code: int) -> None:
        if not ended.done():
            ended.set_result(code)

    codes = {signal.SIGTERM: 0, signal.SIGINT: 130}
    for number, code in codes.items():
        loop.add_signal_handler(number, end, code)
    try:
        yield ended
    finally:
        for number in codes:
            loop.remove_signal_handler(number)


def _parsed(argv: Sequence[str] | None) -> dict[str, Any]:
    parser = _parser()
    args = vars(parser.parse_args(argv))
    if args["fail"] is not None and args["fail_rate"] is None:
        parser.error("--fail says how, and --fail-rate is missing, which says how often")
    if args["block_bytes"] is None:
        args["block_bytes"] = args["block_tokens"] * BYTES_PER_TOKEN
    return {name: value for name, value in args.items() if value is not None}


def _parser() -> OneLineParser:
    default = MockConfig()
    parser = OneLineParser(
        prog="warmroute mock-worker",
        description=main.__doc__,
        epilog="Prints its URL, and serves until it is stopped. "
        "Without --blocks, --prefill-rate and --tpot it answers at once.",
    )
    option = parser.add_argument
    option("--host", default="127.0.0.1", help="default: %(default)s")
    option("--port", type=_port, default=0, help="default: 0, a free one")
    option("--model", default=default.model, metavar="NAME", help="default: %(default)s")
    option("--default-max-tokens", type=_count, default=default.default_max_tokens, metavar="N", help="(%(default)s)")
    option("--metrics", choices=("vllm", "sglang"), default=default.metrics, help="whose names (%(default)s)")
    _add_pace(parser, default)
    _add_failures(parser, default)
    return parser


def _add_pace(parser: OneLineParser, default: MockConfig) -> None:
    option = parser.add_argument_group("cache and pace").add_argument
    option("--blocks", type=_natural, default=default.blocks, metavar="N", help="of KV memory (default: no cache)")
    option("--block-tokens", type=_count, default=default.block_tokens, metavar="N", help="default: %(default)s")
    option("--block-bytes", type=_count, metavar="N", help=f"of prompt text ({BYTES_PER_TOKEN} for each token)")
    option(
        "--prefill-rate",
        type=_not_negative,
        default=default.prefill_rate,
        metavar="TOKENS_PER_S",
        help="prompt tokens that are computed in a second (default: all at once)",
    )
    option(
        "--tpot",
        type=_not_negative,
        default=default.tpot,
        metavar="S",
        help="seconds per decoded token of a request that is alone (default: all at once)",
    )
    option("--max-running-requests", dest="max_running", type=_count, metavar="N", help="the others wait")
    option(
        "--stream-interval",
        type=_count,
        default=default.stream_interval,
        metavar="N",
        help="tokens of an event (default: %(default)s)",
    )


def _add_failures(parser: OneLineParser, default: MockConfig) -> None:
    option = parser.add_argument_group("failures").add_argument
    option("--fail-rate", type=_share, metavar="P", help="share of the requests for completions that fail")
    option(
        "--fail",
        type=_failure,
        metavar="STATUS|reset|hang|cut",
        help=f"by an error, a reset connection, no answer, or one that breaks off (default: {default.fail})",
    )
    option(
        "--seed", type=_natural, default=default.seed, metavar="N", help="of which ones fail (default: %(default)s)"
    )


def _count(given: str) -> int:
    return _checked(int, given, "a whole number above zero", lambda value: value > 0)


def _natural(given: str) -> int:
    return _checked(int, given, "a whole number from zero on", lambda value: value >= 0)


def _port(given: str) -> int:
    return _checked(int, given, "a number from 0 to 65535", lambda value: 0 <= value <= 65535)


def _not_negative(given: str) -> float:
    return _checked(float, given, "a number from zero on", lambda value: 0 <= value < inf)


def _share(given: str) -> float:
    return _checked(float, given, "a number from 0 to 1", lambda value: 0 <= value <= 1)


def _failure(given: str) -> Failure:
    if given in ("reset", "hang", "cut"):
        return given  # type: ignore[return-value]
    expected = "a status from 400 to 599, reset, hang or cut"
    return _checked(int, given, expected, lambda value: 400 <= value <= 599)


def _checked(read: Callable[[str], N], given: str, expected: str, is_right: Callable[[N], bool]) -> N:
    try:
        value = read(given)
    except ValueError:
        value = None
    if value is None or not is_right(value):
        raise ArgumentTypeError(f"expected {expected}, got {given!r}")
    return value
