"""Servers say where they are. Where nobody can read it, they serve all the same, and end as quietly."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import httpx
import pytest
from support.ports import closed_port
from support.toy import save_toy
from support.wait import until
from warmroute_loadtest.ports import free_port

PATIENCE = 120
"""Seconds; only matters in failure."""

Stdout = Callable[[], AbstractContextManager[int]]


@contextmanager
def pipe_that_nobody_reads() -> Iterator[int]:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)


@contextmanager
def full_disk() -> Iterator[int]:
    with open("/dev/full", "wb") as file:
        yield file.fileno()


def answers(process: subprocess.Popen[str], url: str) -> bool:
    assert process.poll() is None, "it ended instead"
    try:
        httpx.get(url)
    except httpx.TransportError:
        return False
    return True


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[str]]]:
    """By name, without the port."""
    toy = save_toy(tmp_path_factory.mktemp("toy"))
    with closed_port() as nobody:
        router = ["warmroute_router", "--prometheus-port", "0", "--log-level", "error"]
        router += ["--worker-urls", f"http://127.0.0.1:{nobody}"]
        yield {
            "router": router,
            "processes": [*router, "--processes", "2"],
            "mock-worker": ["warmroute_loadtest.mock_worker"],
            "worker": ["warmroute_worker", "--model", str(toy), "--log-level", "error"],
        }


@pytest.mark.parametrize("stdout", [pipe_that_nobody_reads, full_disk])
@pytest.mark.parametrize("name", ["router", "processes", "mock-worker", "worker"])
def test_it_serves_and_ends(commands: dict[str, list[str]], name: str, stdout: Stdout) -> None:
    port = free_port()
    with stdout() as writing:
        process = subprocess.Popen(
            [sys.executable, "-m", *commands[name], "--port", str(port)],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        until(lambda: answers(process, f"http://127.0.0.1:{port}/health"), PATIENCE)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, errors) == (0, "")
