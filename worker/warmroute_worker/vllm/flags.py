"""`warmroute worker --engine vllm`: our flags in vLLM's words. Others are its own, and go to it as they are."""

import re
from argparse import Namespace
from collections.abc import Sequence
from typing import NamedTuple

from ..one_line_parser import OneLineParser, number

# What clients of a router need is on, unless a flag of vLLM's own, which comes later and counts more, says otherwise:
# a reply without its cached tokens teaches the router nothing.
_ALWAYS = ("--enable-prefix-caching", "--enable-prompt-tokens-details")
_RENAMED = {
    "--context-length": "--max-model-len",
    "--max-running-requests": "--max-num-seqs",
    "--chunked-prefill-size": "--max-num-batched-tokens",
    "--page-size": "--block-size",
    "--mem-fraction-static": "--gpu-memory-utilization",
}
_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_SIZE = "vLLM takes the share of the memory that --mem-fraction-static says"
_WITHOUT_EQUIVALENT = {
    "--max-total-tokens": f"{_SIZE}, or --kv-cache-memory-bytes",
    "--threads": "vLLM binds its threads as VLLM_CPU_OMP_THREADS_BIND says",
    "--enable-deterministic-inference": "set VLLM_BATCH_INVARIANT=1",
}
_BACKENDS = {
    "triton": "CUSTOM are this package's kernels, TRITON_ATTN vLLM's own",
    "torch": "see `vllm serve --help=AttentionConfig`",
}


class VllmConfig(NamedTuple):
    name: str
    """That clients call the model by."""
    host: str
    port: int
    """0 takes a free one."""
    tls: bool
    arguments: tuple[str, ...]
    """Of `vllm serve`, but for address and port."""
    environment: dict[str, str]


def parse(argv: Sequence[str]) -> VllmConfig:
    """Exits with 2, and one line, on a flag of ours that cannot be; vLLM sees to its own."""
    parser = OneLineParser(
        prog="warmroute worker",
        description="vLLM's server, started with what a router needs.",
        epilog="Every other flag goes to vLLM as it is: see `vllm serve --help=all`.",
        allow_abbrev=False,
    )
    parser.add_argument("--model", required=True, help="what `vllm serve` takes: a folder, or a Hugging Face name")
    parser.add_argument("--served-model-name", nargs="+", metavar="NAME", help="default: as --model says it")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=number(0, 65535), default=30001, help="0 takes a free one (default: %(default)s)"
    )
    for ours, theirs in _RENAMED.items():
        parser.add_argument(ours, metavar="VALUE", help=f"vLLM's {theirs}")
    parser.add_argument("--dtype", metavar="TYPE", help="auto, bf16, fp16, fp32, or as vLLM says it")
    parser.add_argument("--kv-cache-dtype", metavar="TYPE", help="auto, bf16, fp16, fp8_e4m3, or as vLLM says it")
    parser.add_argument("--attention-backend", metavar="NAME", help="of vLLM; CUSTOM for this package's kernels")
    parser.add_argument("--disable-cuda-graph", action="store_true", help="vLLM's cudagraph_mode NONE")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="of vLLM's log, on stderr")
    parser.add_argument("--device", choices=("auto",), help="vLLM runs on what it was built for")
    without = parser.add_argument_group("flags of the other engine that vLLM has no equivalent of")
    for flag, advice in _WITHOUT_EQUIVALENT.items():
        without.add_argument(flag, nargs="*", help=advice)
    args, rest = parser.parse_known_args([_dashed(argument) for argument in argv])
    try:
        return _config(args, rest)
    except ValueError as error:
        parser.error(str(error))


def _dashed(argument: str) -> str:
    """vLLM takes underscores in names of flags as well; behind a dot they are the names of settings."""
    return re.sub(r"^--[^.=]+", lambda name: name[0].replace("_", "-"), argument)


def _config(args: Namespace, rest: Sequence[str]) -> VllmConfig:
    """Raises ValueError."""
    given = {f"--{name.replace('_', '-')}": value for name, value in vars(args).items() if value is not None}
    for flag, advice in _WITHOUT_EQUIVALENT.items():
        if flag in given:
            raise ValueError(f"argument {flag}: vLLM has no equivalent: {advice}")
    backend = args.attention_backend
    if backend in _BACKENDS:
        raise ValueError(f"argument --attention-backend: vLLM has no {backend!r}: {_BACKENDS[backend]}")
    if args.kv_cache_dtype == "fp32":
        raise ValueError("argument --kv-cache-dtype: vLLM has no 'fp32': auto is the model's own type")
    arguments = [args.model, *_ALWAYS]
    if args.served_model_name:
        arguments += ["--served-model-name", *args.served_model_name]
    for ours, theirs in _RENAMED.items():
        if ours in given:
            arguments += [theirs, given[ours]]
    for flag in ("--dtype", "--kv-cache-dtype"):
        if flag in given:
            arguments += [flag, _TYPES.get(given[flag], given[flag])]
    if backend not in (None, "auto"):
        arguments += ["--attention-backend", backend]
    if args.disable_cuda_graph:
        arguments += ["--compilation-config.cudagraph_mode", "NONE"]
    if args.log_level:
        arguments += ["--uvicorn-log-level", args.log_level]
    return VllmConfig(
        name=args.served_model_name[0] if args.served_model_name else args.model,
        host=args.host,
        port=args.port,
        tls=any(each.partition("=")[0] == "--ssl-certfile" for each in rest),
        arguments=(*arguments, *rest),
        environment={"VLLM_LOGGING_LEVEL": args.log_level.upper()} if args.log_level else {},
    )
