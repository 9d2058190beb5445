"""`--dp-size N`: N workers behind one port, and the router in front: what each of them is started with.

They are processes, and nothing of the router is imported.
"""

import asyncio
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from .data_parallel_children import Order, run
from .errors import WorkerError
from .listener import bound
from .modes import Mode
from .one_line_parser import OneLineParser, number

_TO_ROUTER = "--router-"
_PARSE = "import sys; from warmroute_router.flags import parse_config; parse_config(sys.argv[1:])"


class Front(NamedTuple):
    """What of the flags is for the router."""

    host: str
    port: int
    """0 takes a free one."""
    log_level: str | None
    """The workers have it too."""


def serve_several(mode: Mode, argv: Sequence[str]) -> int:
    """Until it is stopped, or one of them ends; gives the exit code. Raises WorkerError where it cannot start."""
    front, argv = _front(argv)
    argv, to_router = _split(argv)
    argv += ["--host", "127.0.0.1", "--port", "0"]
    if front.log_level is not None:
        argv += ["--log-level", front.log_level]
        to_router = ["--log-level", front.log_level, *to_router]
    device = _check(mode, argv)
    if importlib.util.find_spec("warmroute_router") is None:
        raise WorkerError("--dp-size needs the router: pip install warmroute")
    to_router = ["--policy", mode.load_balance_method, *to_router]
    _check_router(to_router)
    engine = ["--engine", mode.engine]
    workers = [
        Order(f"worker {number}", ("warmroute_worker", *engine, *argv), environment)
        for number, environment in enumerate(_environments(mode, device))
    ]
    # Held while the workers load, so that the port is taken from the start; the router binds it as well, and listens.
    with bound(front.host, front.port) as held:
        port = str(held.getsockname()[1])
        flags = ("--host", front.host, "--port", port, *to_router)
        return asyncio.run(run(workers, Order("the router", ("warmroute_router", *flags), {})))


def _front(argv: Sequence[str]) -> tuple[Front, list[str]]:
    """It, and the other arguments."""
    parser = OneLineParser(prog="warmroute worker", add_help=False, allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=number(0, 65535), default=30001)
    parser.add_argument("--log-level")
    args, rest = parser.parse_known_args(argv)
    return Front(**vars(args)), rest


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The workers' arguments, and the router's: `--router-queue-size 9` is its `--queue-size 9`."""
    parts: tuple[list[str], list[str]] = ([], [])
    part = parts[0]
    for argument in argv:
        if argument.startswith(_TO_ROUTER):
            part = parts[1]
            argument = f"--{argument.removeprefix(_TO_ROUTER)}"
        elif argument.startswith("-") and not re.fullmatch(r"-[\d.]+", argument):
            part = parts[0]
        part.append(argument)
    return parts


def _check(mode: Mode, argv: Sequence[str]) -> str:
    """Exits as a worker would on these arguments, but once and not N times; gives the device that they name."""
    if mode.engine == "vllm":
        from .vllm.flags import parse
        from .vllm.server import vllm_command

        parse(argv)
        vllm_command()
        return "auto"
    from .cli import parse_config

    return parse_config(argv).device


def _check_router(flags: Sequence[str]) -> None:
    """Exits as the router would on these flags, but before models are loaded."""
    command = [sys.executable, "-P", "-c", _PARSE, *flags, "--worker-urls", "http://127.0.0.1:1"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:  # else it says the same when it starts
        sys.stderr.write(done.stderr)
        sys.exit(done.returncode)


def _environments(mode: Mode, device: str) -> list[dict[str, str]]:
    """Of each worker: its own share of the GPUs, or of the cores. Raises WorkerError where there are too few GPUs."""
    size = mode.dp_size
    gpus = [] if device == "cpu" else _gpus()
    if gpus:
        share = len(gpus) // size
        if share == 0:
            raise WorkerError(f"--dp-size {size} needs a GPU for each worker: there are {len(gpus)}")
        parts = [gpus[number * share : (number + 1) * share] for number in range(size)]
        return [{"CUDA_VISIBLE_DEVICES": ",".join(part)} for part in parts]
    if mode.engine == "vllm" or "OMP_NUM_THREADS" in os.environ:  # vLLM binds its threads itself
        return [{}] * size
    return [{"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // size))}] * size


def _gpus() -> list[str]:
    """As CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [gpu for gpu in visible.split(",") if gpu and gpu != "-1"]
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    found = subprocess.run(query, capture_output=True, text=True, check=False)
    return found.stdout.split() if found.returncode == 0 else []
