"""One process of a router: started, waited for, measured, killed."""

import asyncio
import os
import re
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from ..ports import free_port
from .program import Place, Program

START_PATIENCE = 30.0
"""Seconds that a router has to listen and to know its workers."""
_TICKS = os.sysconf("SC_CLK_TCK")


class StartError(Exception):
    """A router that did not come up; the message has the end of its log."""


class RunningRouter:
    """The process, and its own children where it has some: what is measured is the sum."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, metrics_port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.metrics_url = f"http://127.0.0.1:{metrics_port}/metrics"
        self._log = log

    @property
    def log(self) -> str:
        return re.sub(r"\x1b\[[0-9;]*m", "", self._log.read_text(errors="replace"))

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    @property
    def rss(self) -> int:
        """Bytes of memory that it has."""
        return self._memory("VmRSS")

    def watch_peak(self) -> None:
        """`peak_rss` counts from here."""
        for folder in self._folders():
            (folder / "clear_refs").write_text("5")

    @property
    def peak_rss(self) -> int:
        return self._memory("VmHWM")

    @property
    def cpu_seconds(self) -> float:
        """That it has used so far."""
        return sum(map(_ticks, self._folders())) / _TICKS

    @property
    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def _memory(self, field: str) -> int:
        return sum(kilobytes((folder / "status").read_text(), field) * 1024 for folder in self._folders())

    def _folders(self) -> list[Path]:
        return [Path(f"/proc/{pid}") for pid in _family(self.process.pid)]


def kilobytes(status: str, field: str) -> int:
    """A line of `/proc/PID/status`."""
    line = next(line for line in status.splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1])


def _ticks(folder: Path) -> int:
    """User and system time. The name, in brackets, may have blanks in it."""
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # a thread that has just ended
            for child in (task / "children").read_text().split():
                yield from _family(int(child))


@asynccontextmanager
async def running(
    program: Program, urls: Sequence[str], *flags: str, cpus: Collection[int] = ()
) -> AsyncIterator[RunningRouter]:
    """A fresh process in front of `urls`, killed at the end. Does not wait until it is ready.

    It keeps to `cpus`, where there are some: threads are then counted by what it may use.
    """
    port, metrics_port = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="rival-") as name:
        folder = Path(name)
        log = folder / "log"
        command = [*program.command, *program.arguments(Place(urls, port, metrics_port, folder)), *flags]
        if cpus:
            command = ["taskset", "--cpu-list", ",".join(map(str, cpus)), *command]
        with log.open("wb") as sink:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdout=sink,
                stderr=sink,
                stdin=asyncio.subprocess.DEVNULL,
                cwd=folder,
                env=_environment(),
                start_new_session=True,  # so that it can be killed with its children
            )
        try:
            yield RunningRouter(process, port, metrics_port, log)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _environment() -> Mapping[str, str]:
    """Without proxies, which some clients take from there, and without downloads."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return kept | {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


async def until_listening(running: RunningRouter) -> None:
    """Raises StartError."""
    await until(running, _accepts)


async def until_ready(running: RunningRouter, http: httpx.AsyncClient, workers: int) -> None:
    """Until it counts `workers` workers as usable. Raises StartError."""

    async def knows_them(router: RunningRouter) -> bool:
        with suppress(httpx.HTTPError, ValueError, KeyError):
            answer = await http.get(f"{router.url}/workers")
            return sum(map(_usable, answer.json()["workers"])) == workers
        return False

    await until(running, knows_them)


def _usable(worker: Mapping[str, Any]) -> bool:
    return worker.get("is_healthy") is True or worker.get("state") == "ready"


async def _accepts(running: RunningRouter) -> bool:
    with suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.close()
        return True
    return False


async def until(running: RunningRouter, condition: Callable[[RunningRouter], Awaitable[bool]]) -> None:
    """Raises StartError where it does not hold in time."""
    deadline = time.monotonic() + START_PATIENCE
    while not await condition(running):
        if running.process.returncode is not None or time.monotonic() > deadline:
            raise StartError(f"the router did not start:\n{running.log[-2000:]}")
        await asyncio.sleep(0.05)
