"""`python -m warmroute_loadtest.chaos`: the real router between workers and clients that do all that can go wrong.

Exits with 1 where the router lost a request, mixed up answers, or kept something for itself.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence

import uvloop
from rich.console import Console

from ..processes import StartError
from .report import print_record
from .run import Options, run_seed


def main(argv: Sequence[str] | None = None) -> int:
    defaults = Options()
    parser = ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="default: 1 2 3")
    parser.add_argument("--seconds", type=float, default=defaults.seconds, help="of each (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=defaults.workers, help="from 2 on (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=defaults.clients, help="default: %(default)s")
    parser.add_argument(
        "--processes", type=int, default=defaults.processes, help="of the router (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    if args.workers < 2:
        parser.error("argument --workers: one has to be well while another one is not")
    options = Options(args.seconds, args.workers, args.clients, args.processes)
    failed = [seed for seed in args.seeds if not _passes(seed, options)]
    return 1 if failed else 0


def _passes(seed: int, options: Options) -> bool:
    try:
        record = uvloop.run(run_seed(seed, options))
    except StartError as error:
        print(f"chaos: {error}", file=sys.stderr)
        return False
    again = " ".join(f"--{name} {value:g}" for name, value in options._asdict().items())
    print_record(Console(), record, f"python -m warmroute_loadtest.chaos --seeds {seed} {again}")
    return not record.complaints


if __name__ == "__main__":
    sys.exit(main())
