"""The routers of the table: how each is started, with which flags, and how it is looked at from outside.

Flags are the defaults of each. What a scenario needs beyond them (a cap, a policy) has the same flag in all three,
or is spelled out here for each.
"""

import asyncio
import os
import re
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from warmroute_router import __version__

RIVALS = Path(__file__).parents[3] / ".rivals"
"""Made by scripts/rivals."""
START_PATIENCE = 30.0
"""Seconds that a router has to listen and to know its workers."""


class Router(NamedTuple):
    name: str
    version: str
    command: tuple[str, ...]
    quiet: str
    """Its log level for warnings and worse."""
    admin_key: str | None = None
    """What it wants to be shown before `/workers` may be changed; None for nothing."""

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def admin_flags(self) -> tuple[str, ...]:
        return ("--admin-api-key", self.admin_key) if self.admin_key else ()

    @property
    def installed(self) -> bool:
        return Path(self.command[0]).exists()


WARMROUTE = Router("warmroute", __version__, (sys.executable, "-m", "warmroute_router"), "warning", "sk-admin")
SGLANG_ROUTER = Router(
    "sglang-router",
    "0.3.2",
    (str(RIVALS / "sglang-router/bin/python"), "-m", "sglang_router.launch_router"),
    "warn",
)
SMG = Router("smg", "1.13.0", (str(RIVALS / "smg/bin/smg"), "launch"), "warn")
ROUTERS = {router.name: router for router in (SGLANG_ROUTER, SMG, WARMROUTE)}


class StartError(Exception):
    """A router that did not come up; the message has the end of its log."""


class RunningRouter:
    """One router process."""

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
        """Bytes of memory that the process has."""
        return self._memory("VmRSS")

    def watch_peak(self) -> None:
        """`peak_rss` counts from here."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    @property
    def peak_rss(self) -> int:
        return self._memory("VmHWM")

    @property
    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def _memory(self, field: str) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith(f"{field}:"))
        return int(line.split()[1]) * 1024


@asynccontextmanager
async def running(router: Router, urls: Sequence[str], *flags: str) -> AsyncIterator[RunningRouter]:
    """A fresh process in front of `urls`, killed at the end. Does not wait until it is ready."""
    port, metrics_port = _free_ports(2)
    with tempfile.TemporaryDirectory(prefix="side-by-side-") as folder:
        log = Path(folder) / "log"
        command = [*router.command, *_flags(router, urls, port, metrics_port), *flags]
        with log.open("wb") as sink:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=sink, stderr=sink, stdin=asyncio.subprocess.DEVNULL, cwd=folder, env=_environment()
            )
        try:
            yield RunningRouter(process, port, metrics_port, log)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _flags(router: Router, urls: Sequence[str], port: int, metrics_port: int) -> list[str]:
    where = ["--host", "127.0.0.1", "--port", str(port)]
    metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
    return ["--worker-urls", *urls, *where, *metrics, "--log-level", router.quiet]


def _environment() -> Mapping[str, str]:
    """Without proxies, which some clients take from there, and without downloads."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return kept | {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


async def until_listening(running: RunningRouter) -> None:
    """Raises StartError."""
    await _until(running, _accepts)


async def until_ready(running: RunningRouter, http: httpx.AsyncClient, workers: int) -> None:
    """Until it counts `workers` workers as usable. Raises StartError."""

    async def knows_them(router: RunningRouter) -> bool:
        with suppress(httpx.HTTPError, ValueError, KeyError):
            answer = await http.get(f"{router.url}/workers")
            return sum(map(_usable, answer.json()["workers"])) == workers
        return False

    await _until(running, knows_them)


def _usable(worker: Mapping[str, Any]) -> bool:
    return worker.get("is_healthy") is True or worker.get("state") == "ready"


async def _accepts(running: RunningRouter) -> bool:
    with suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.close()
        return True
    return False


async def _until(running: RunningRouter, condition: Any) -> None:
    deadline = time.monotonic() + START_PATIENCE
    while not await condition(running):
        if running.process.returncode is not None or time.monotonic() > deadline:
            raise StartError(f"the router did not start:\n{running.log[-2000:]}")
        await asyncio.sleep(0.05)
