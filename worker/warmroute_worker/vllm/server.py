"""vLLM's server as a child. It listens itself and nothing passes through here: its health is the worker's health."""

import importlib.util
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from types import FrameType

from ..child_process import ONE_GROUP, clear_group, ending_with_us, exit_code
from ..errors import WorkerError
from ..listener import announce, bound, url_of
from .flags import VllmConfig, parse

INTERVAL = 0.2
"""Seconds between two looks at whether it is up."""
PATIENCE = 5.0
"""Seconds for the answer."""

_LOCAL = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def serve(argv: Sequence[str]) -> int:
    """Until vLLM ends; gives its exit code. Raises WorkerError where it cannot be started."""
    config = parse(argv)
    command = vllm_command()
    own_group = ONE_GROUP not in os.environ
    # Held while vLLM loads, so that nobody else is given the port. It binds it as well, and alone listens.
    with bound(config.host, config.port) as listener:
        host, port = listener.getsockname()[:2]
        arguments = [*command, "serve", *config.arguments, "--host", host, "--port", str(port)]
        child = _started(arguments, config, own_group=own_group)

        def pass_on(number: int, frame: FrameType | None) -> None:
            del frame
            child.send_signal(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, pass_on)
        up = _wait_until_up(child, config, host, port)
        url = url_of(listener, tls=config.tls)
    if up:
        announce(config.name, url)
    code = child.wait()
    if own_group:
        clear_group(child.pid)
    return exit_code(code)


def _started(arguments: Sequence[str], config: VllmConfig, *, own_group: bool) -> "subprocess.Popen[bytes]":
    """Raises WorkerError."""
    try:
        return subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),  # it logs there; our own stdout has one line, the announcement
            env=os.environ | config.environment,
            # Ctrl-C is for us, who pass it on: two would be a demand to end at once.
            process_group=0 if own_group else None,
            preexec_fn=ending_with_us(),
        )
    except OSError as error:  # a script's interpreter may be missing as well
        raise WorkerError(f"cannot run {arguments[0]}, or what its first line names: {error.strerror}") from error


def vllm_command() -> list[str]:
    """Raises WorkerError."""
    path = shutil.which("vllm")
    if path is not None:
        return [path]
    found = importlib.util.find_spec("vllm")
    if found is not None and found.origin is not None:  # a mere folder of that name has none
        return [sys.executable, "-P", "-m", "vllm.entrypoints.cli.main"]
    raise WorkerError("--engine vllm needs vLLM: pip install vllm, or put its `vllm` on PATH")


def _wait_until_up(child: "subprocess.Popen[bytes]", config: VllmConfig, host: str, port: int) -> bool:
    """False where it has ended instead."""
    while child.poll() is None:
        if _healthy(_LOCAL.get(host, host), port, tls=config.tls):
            return True
        time.sleep(INTERVAL)
    return False


def _healthy(host: str, port: int, *, tls: bool) -> bool:
    # Its certificate is for its clients' name of it, not for this address.
    connection = (
        HTTPSConnection(host, port, timeout=PATIENCE, context=ssl._create_unverified_context())
        if tls
        else HTTPConnection(host, port, timeout=PATIENCE)
    )
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
