"""The flags of `warmroute bench`, and the workload and the load that they say."""

import os
from argparse import ArgumentTypeError, Namespace, _ArgumentGroup
from collections.abc import Sequence
from itertools import takewhile
from math import inf

from warmroute_router.cli import OneLineParser
from warmroute_router.config import normalize_worker_url

from ..flag_types import count, new_file, positive
from ..traces import FORMATS, load_trace
from ..traces.synthetic import WORKLOADS
from .form import PATHS
from .load import Arrivals, Concurrency, Load, OwnTimes, Ramp, Rate, due_times
from .run import GRACE
from .workload import Workload, made_workload

API_KEY_VARIABLE = "OPENAI_API_KEY"
# The tools from which these workloads come have flags for them: which parameter each one is.
SPELLINGS = {
    "generated_shared_prefix": {
        "--gsp-num-groups": "groups",
        "--gsp-prompts-per-group": "prompts_per_group",
        "--gsp-system-prompt-len": "system_tokens",
        "--gsp-question-len": "question_tokens",
        "--gsp-output-len": "output_tokens",
    },
    "prefix_repetition": {
        "--prefix-repetition-prefix-len": "prefix_tokens",
        "--prefix-repetition-suffix-len": "suffix_tokens",
        "--prefix-repetition-num-prefixes": "prefixes",
        "--prefix-repetition-output-len": "output_tokens",
    },
}


def parsed(argv: Sequence[str] | None, description: str | None) -> Namespace:
    parser = OneLineParser(prog="warmroute bench", description=description, allow_abbrev=False)
    _add_target(parser)
    _add_workload(parser)
    _add_load(parser)
    _add_output(parser)
    args = parser.parse_args(argv)
    if wrong := _contradiction(args):
        parser.error(wrong)
    return args


def load_of(args: Namespace) -> Load:
    if args.concurrency is not None:
        return Concurrency(args.concurrency)
    arrivals: Arrivals = args.arrivals or "poisson"
    if args.rate is not None:
        return Rate(args.rate, arrivals)
    if args.ramp is not None:
        return Ramp(args.ramp[0], args.ramp[1], args.duration, arrivals)
    return OwnTimes(args.speed or 1.0)


def workload_of(args: Namespace, load: Load) -> Workload:
    """Raises TraceError."""
    if args.trace is not None:
        trace = load_trace(args.trace, format=args.format, limit=args.requests, sessions_per_s=args.sessions_per_s)
        return Workload(trace, {"requests": len(trace.requests)})
    starts = None
    if args.duration is not None and isinstance(load, Rate | Ramp) and load != Rate(inf):
        starts = sum(1 for _ in takewhile(lambda due: due < args.duration, due_times(load, (), args.seed)))
    return made_workload(_spec(args), requests=args.requests, starts=starts, seed=args.seed)


def _spec(args: Namespace) -> str:
    """The workload with what other tools' flags say of it."""
    name, _, query = args.workload.partition("?")
    spelt = SPELLINGS.get(name.replace("-", "_"), {})
    said = [f"{parameter}={value}" for flag, parameter in spelt.items() if (value := _value(args, flag)) is not None]
    return f"{name}?{'&'.join([*said, *filter(None, [query])])}"


def _value(args: Namespace, flag: str) -> int | None:
    value: int | None = getattr(args, flag.removeprefix("--").replace("-", "_"))
    return value


def _contradiction(args: Namespace) -> str:
    """What the parser cannot see by itself; empty where all is well."""
    if not (args.api_key.isascii() and args.api_key.isprintable()):
        return f"the API key (--api-key, or ${API_KEY_VARIABLE}) has a character that no header can hold"
    workload = (args.workload or "").partition("?")[0].replace("-", "_")
    for name, flags in SPELLINGS.items():
        for flag in flags:
            if _value(args, flag) is not None and workload != name:
                return f"{flag} belongs to --workload {name}"
    own_times = (args.rate, args.ramp, args.concurrency) == (None, None, None)
    if args.speed is not None and not own_times:
        return "--speed is for the trace's own times: leave out --rate, --ramp and --concurrency"
    if args.arrivals is not None and args.rate is None and args.ramp is None:
        return "--arrivals needs a --rate or a --ramp"
    if args.ramp is not None and args.duration is None:
        return "--ramp needs --duration, to say how long it takes"
    if args.grace is not None and args.duration is None:
        return "--grace counts from the end of --duration, which is missing"
    return ""


def _add_target(parser: OneLineParser) -> None:
    option = parser.add_argument_group("what is asked").add_argument
    option(
        "--url",
        type=_url,
        nargs="+",
        required=True,
        metavar="URL",
        help="of any server with OpenAI's API; of several, each request goes to any of them",
    )
    option("--model", metavar="NAME", help="default: the first that the first URL names at /v1/models")
    option(
        "--api-key", metavar="KEY", default=os.environ.get(API_KEY_VARIABLE, ""), help=f"default: ${API_KEY_VARIABLE}"
    )
    option("--endpoint", choices=tuple(PATHS), default="chat", help="default: %(default)s")
    option("--no-stream", action="store_true", help="ask for whole answers")
    option(
        "--ignore-eos",
        action="store_true",
        help="have every answer run to its full length (a field that vLLM and SGLang know)",
    )


def _add_workload(parser: OneLineParser) -> None:
    group = parser.add_argument_group("what is sent")
    kind = group.add_mutually_exclusive_group(required=True)
    kind.add_argument(
        "--workload",
        metavar="NAME",
        help=f"any of {', '.join(WORKLOADS)}; parameters as in 'rag?documents=20&question_tokens=64'",
    )
    kind.add_argument("--trace", metavar="FILE", help="any trace that `warmroute simulate` reads")
    option = group.add_argument
    option("--requests", "--limit", type=count, metavar="N", help="so many, or the first so many that there are")
    option(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="of arrivals and of all text: another one is new to every cache (default: %(default)s)",
    )
    option("--format", choices=("auto", *sorted(FORMATS)), default="auto", help="of the trace (default: by content)")
    option(
        "--sessions-per-s",
        type=positive,
        default=1.0,
        metavar="X",
        help="let X sessions start in a second, where the trace has no times for that (default: 1)",
    )
    for name, flags in SPELLINGS.items():
        _add_spellings(group, name, flags)


def _add_spellings(group: _ArgumentGroup, name: str, flags: dict[str, str]) -> None:
    for flag, parameter in flags.items():
        group.add_argument(flag, type=count, metavar="N", help=f"the same as {name}?{parameter}=N")


def _add_load(parser: OneLineParser) -> None:
    group = parser.add_argument_group("when it is sent", "By default at the trace's or the workload's own times.")
    kind = group.add_mutually_exclusive_group()
    kind.add_argument(
        "--rate", type=_rate, metavar="R", help="requests (of chats: starts) a second; inf: all at once"
    )
    kind.add_argument("--ramp", type=_ramp, metavar="FROM:TO", help="a rate that changes evenly over --duration")
    kind.add_argument(
        "--concurrency", type=count, metavar="N", help="a closed loop: N at a time, the next when one has ended"
    )
    kind.add_argument("--trace-times", action="store_true", help="the default, said aloud")
    option = group.add_argument
    option("--arrivals", choices=("poisson", "constant"), help="of a rate or a ramp (default: poisson)")
    option("--speed", type=positive, metavar="X", help="X times as fast as the trace's own times")
    option("--duration", type=positive, metavar="S", help="send nothing after S seconds")
    option(
        "--grace",
        type=positive,
        metavar="S",
        help=f"then wait S seconds for answers on their way (default: {GRACE:g})",
    )


def _add_output(parser: OneLineParser) -> None:
    option = parser.add_argument_group("what is told").add_argument
    option("--label", metavar="TEXT", help="what the run is called (default: the workload and the load)")
    option("--json", type=new_file, metavar="FILE", help="write the whole record there")
    option("--html", type=new_file, metavar="FILE", help="write a report there")


def _url(given: str) -> str:
    try:
        return normalize_worker_url(given)
    except ValueError as error:
        raise ArgumentTypeError(str(error).removeprefix("worker ")) from None


def _rate(given: str) -> float:
    return inf if given == "inf" else positive(given)


def _ramp(given: str) -> tuple[float, float]:
    start, colon, end = given.partition(":")
    try:
        rates = float(start), float(end)
    except ValueError:
        rates = -1.0, -1.0
    if not colon or not all(0 <= rate < inf for rate in rates) or not any(rates):
        raise ArgumentTypeError(f"expected two rates as in 1:20, got {given!r}")
    return rates
