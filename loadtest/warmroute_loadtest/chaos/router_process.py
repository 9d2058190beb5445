"""The real router as a process of its own: what it counts, and what it costs in memory, descriptors and threads."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

import httpx
from prometheus_client.parser import text_string_to_metric_families

from ..processes import processes, url_in

_FLAGS = (
    *("--port", "0", "--prometheus-port", "0", "--log-level", "error"),
    # Quick ones, so that what takes long by default happens within a short run.
    *("--health-check-interval-secs", "0.5", "--health-check-timeout-secs", "0.5"),
    *("--cb-timeout-duration-secs", "1", "--first-byte-timeout-secs", "2", "--idle-timeout-secs", "2"),
)
_METRICS = re.compile(r"metrics on (http://\S+)")


class Footprint(NamedTuple):
    """Of all processes of the router together."""

    descriptors: int
    threads: int
    rss: int
    """Bytes."""


class RouterProcess:
    def __init__(self, process: Popen[str], announcement: str) -> None:
        """Raises ValueError on an announcement that names no metrics."""
        found = _METRICS.search(announcement)
        if found is None:
            raise ValueError(f"the router's announcement names no metrics: {announcement!r}")
        self._process = process
        self._metrics_url = found[1]
        self.url = url_in(announcement)
        self.port = int(self.url.rpartition(":")[2])

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def footprint(self) -> Footprint:
        each = [_footprint_of(pid) for pid in _family(self._process.pid)]
        return Footprint(*map(sum, zip(*each, strict=True)))

    async def tasks(self) -> float:
        """Of its event loops."""
        return sum((await self.metrics())["warmroute_tasks"].values())

    async def metrics(self) -> dict[str, dict[str, float]]:
        """By name, and within it by worker, or `""` for what is not a worker's; summed over other labels."""
        async with httpx.AsyncClient(trust_env=False) as client:
            text = (await client.get(self._metrics_url)).text
        values: dict[str, dict[str, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                of_name = values.setdefault(sample.name, {})
                worker = sample.labels.get("worker", "")
                of_name[worker] = of_name.get(worker, 0.0) + sample.value
        return values


@asynccontextmanager
async def running_router(worker_urls: Sequence[str], processes_: int) -> AsyncIterator[RouterProcess]:
    several = ("--processes", str(processes_)) if processes_ > 1 else ()
    with processes() as children:
        process = children.spawn("warmroute_router", *_FLAGS, *several, "--worker-urls", *worker_urls)
        # The workers are in this event loop, and the router asks them before it announces itself.
        announcement = await asyncio.to_thread(children.announcement, process)
        yield RouterProcess(process, announcement)


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in _family(int(child)))]


def _footprint_of(pid: int) -> Footprint:
    folder = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    return Footprint(
        descriptors=len(list((folder / "fd").iterdir())),
        threads=int(status["Threads"]),
        rss=int(status["VmRSS"].split()[0]) * 1024,
    )
