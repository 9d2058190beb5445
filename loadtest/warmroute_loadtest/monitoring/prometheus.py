"""A real Prometheus for as long as it is needed: `scripts/prometheus` finds it, all of it is in one folder."""

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from ..ports import free_port

ROOT = Path(__file__).parents[3]
JOB = "warmroute"
PATIENCE = 60.0
"""Seconds that it has to start."""


class QueryError(Exception):
    """Prometheus does not understand an expression, or cannot evaluate it."""


class Series(NamedTuple):
    labels: dict[str, str]
    points: list[tuple[float, float]]
    """Seconds since the epoch, and the value then."""


class Prometheus:
    def __init__(self, url: str, http: httpx.AsyncClient) -> None:
        self.url = url
        self._http = http

    async def query(self, expression: str) -> list[Series]:
        """As of now. Raises QueryError."""
        found = await self._ask("query", {"query": expression})
        if found["resultType"] == "scalar":
            return [_series({"metric": {}, "values": [found["result"]]})]
        return [_series({"metric": each["metric"], "values": [each["value"]]}) for each in found["result"]]

    async def query_range(self, expression: str, start: float, end: float, step: float) -> list[Series]:
        """Raises QueryError."""
        asked = {"query": expression, "start": f"{start}", "end": f"{end}", "step": f"{step}"}
        return [_series(each) for each in (await self._ask("query_range", asked))["result"]]

    async def label_values(self, selector: str, label: str) -> list[str]:
        values: list[str] = await self._ask(f"label/{label}/values", {"match[]": selector}, method="GET")
        return values

    async def rules(self) -> list[dict[str, Any]]:
        """Those that it has loaded, of all groups."""
        return [rule for group in (await self._ask("rules", {}, method="GET"))["groups"] for rule in group["rules"]]

    async def _ask(self, path: str, parameters: Mapping[str, str], method: str = "POST") -> Any:
        sent = {"params": parameters} if method == "GET" else {"data": parameters}
        response = await self._http.request(method, f"{self.url}/api/v1/{path}", **sent)  # type: ignore[arg-type]
        answer = response.json()
        if answer["status"] != "success":
            raise QueryError(answer["error"])
        return answer["data"]


def _series(found: Mapping[str, Any]) -> Series:
    return Series(found["metric"], [(float(when), float(value)) for when, value in found["values"]])


def binaries() -> Path:
    """The folder that has `prometheus` and `promtool`."""
    found = subprocess.run([ROOT / "scripts/prometheus"], stdout=subprocess.PIPE, text=True, check=True)
    return Path(found.stdout.strip())


@asynccontextmanager
async def prometheus(
    folder: Path, targets: Sequence[str], rules: Sequence[Path] = (), history: str = ""
) -> AsyncIterator[Prometheus]:
    """Scrapes `targets` (host:port) every second. `history`, in OpenMetrics' format, is there from the start."""
    found, port = binaries(), free_port()
    _prepare(folder, found, _config(targets, rules), history)
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            found / "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for whoever started it
        )
    try:
        async with httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as http:
            url = f"http://127.0.0.1:{port}"
            if not await _is_ready(process, http, url):
                raise RuntimeError(f"prometheus did not start:\n{_end_of(folder / 'log')}")
            yield Prometheus(url, http)
    finally:
        with suppress(ProcessLookupError):
            process.kill()  # nobody needs what it would still write
        await process.wait()


def _prepare(folder: Path, binaries: Path, config: Mapping[str, Any], history: str) -> None:
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    if history:
        (folder / "history").write_text(history)
        command = [str(binaries / "promtool"), "tsdb", "create-blocks-from", "openmetrics", "history", "data"]
        subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=True)


def _config(targets: Sequence[str], rules: Sequence[Path]) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path.resolve()) for path in rules],
        "scrape_configs": [{"job_name": JOB, "static_configs": [{"targets": list(targets)}]}],
    }


async def _is_ready(process: asyncio.subprocess.Process, http: httpx.AsyncClient, url: str) -> bool:
    """False: it has ended, or does not get there."""
    deadline = time.monotonic() + PATIENCE
    while process.returncode is None and time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            if (await http.get(f"{url}/-/ready")).status_code == 200:
                return True
        await asyncio.sleep(0.1)
    return False


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]
