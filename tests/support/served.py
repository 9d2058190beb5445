"""The real command on free ports, in a process of its own."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

MODULE = [sys.executable, "-m", "warmroute_router"]
PATIENCE = 90.0
"""Seconds; only matters in failure."""


def command(*arguments: str, form: list[str] = MODULE) -> tuple[int, str, str]:
    done = subprocess.run([*form, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False)
    return done.returncode, done.stdout, done.stderr


class Served:
    def __init__(self, process: asyncio.subprocess.Process, announcement: str) -> None:
        self.process = process
        self.announcement = announcement
        self.urls = re.findall(r"https?://[^\s,;]+", announcement)
        """Its own addresses, then that of its metrics, then its admin port."""
        self.url = self.urls[0]
        self.metrics_url = next(url for url in self.urls if url.endswith("/metrics"))

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def end(self) -> tuple[int, str, str]:
        """Wait for the process to end; its exit code, and what else it said on stdout and stderr."""
        async with asyncio.timeout(PATIENCE):
            out, err = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, out.decode(), err.decode()


@asynccontextmanager
async def serving(
    *arguments: str, form: list[str] = MODULE, env: dict[str, str] | None = None
) -> AsyncIterator[Served]:
    """The command, once it answers. `env` is added to the environment."""
    process = await asyncio.create_subprocess_exec(
        *form,
        *("--port", "0", "--prometheus-port", "0", "--log-level", "warning"),
        *arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | (env or {}),
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            announcement = (await process.stdout.readline()).decode()
        if not announcement:
            raise AssertionError((await process.communicate())[1].decode())
        yield Served(process, announcement)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:
        return False
    writer.close()
    return True
