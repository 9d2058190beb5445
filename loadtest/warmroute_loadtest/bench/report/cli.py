"""`warmroute report`: what a run of `warmroute bench` measured, as a page to look at and to pass on."""

import sys
from collections.abc import Sequence
from pathlib import Path

from warmroute_router.cli import OneLineParser

from ...flag_types import new_file
from ..record import RecordError, Run
from . import write_report


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the record of a benchmark run, or of two side by side, as one HTML file that needs no network."""
    parser = OneLineParser(prog="warmroute report", description=main.__doc__)
    parser.add_argument("records", nargs="+", type=Path, metavar="RUN.json", help="of `warmroute bench --json`")
    parser.add_argument("-o", "--output", required=True, type=new_file, metavar="FILE", help="the page")
    args = parser.parse_args(argv)
    if len(args.records) > 2:
        parser.error(f"one run or two fit side by side, not {len(args.records)}")
    try:
        write_report(args.output, [Run.read(path) for path in args.records])
    except ImportError:
        return _fail("needs jinja2 and plotly: pip install 'warmroute[loadtest]'")
    except (RecordError, OSError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return 130
    return 0


def _fail(message: str) -> int:
    print(f"warmroute report: {message}", file=sys.stderr)
    return 1
