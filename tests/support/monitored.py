"""Two routers that talk, in front of four workers of two models, under load, and a Prometheus that scrapes them."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import httpx
from warmroute_loadtest.monitoring.board import FILE
from warmroute_loadtest.monitoring.prometheus import JOB, Prometheus, prometheus
from warmroute_loadtest.monitoring.traffic import Shape, chat_forever
from warmroute_loadtest.ports import free_port
from warmroute_loadtest.processes import Processes, processes, url_in

from .kube_api import kube_api
from .served import Served, serving

CHART = FILE.parents[1]
RULES = (CHART / "rules/recording.yaml", CHART / "rules/alerts.yaml")
MODELS = ("alpha", "beta")
SHAPE = Shape(MODELS, chats=10, system_prompts=3, system_words=400, turns=4, pause=0.3)
DAY = 86_400
_PACE = ("--blocks", "400", "--prefill-rate", "20000", "--tpot", "0.005", "--max-running-requests", "2")
_QUEUE = ("--max-concurrent-requests", "3", "--queue-size", "2", "--queue-timeout-secs", "1")
_BODY = 100_000


class Monitored(NamedTuple):
    prometheus: Prometheus
    routers: list[Served]


@asynccontextmanager
async def monitored(folder: Path) -> AsyncIterator[Monitored]:
    async with AsyncExitStack() as stack:
        workers = list(_workers(stack.enter_context(processes())))
        port = int(workers[0].rpartition(":")[2])
        api = await stack.enter_async_context(kube_api())
        for worker in workers:
            api.add(worker.removeprefix("http://").partition(":")[0])
        pods = ("--service-discovery-port", str(port), "--service-discovery-namespace", api.namespace)
        discovery = ("--service-discovery", "--selector", "app=worker", *pods, "--service-discovery-api", api.url)
        sources = (("--worker-urls", *workers), discovery)
        gossip = [free_port() for _ in sources]
        routers = [
            await stack.enter_async_context(serving(*source, *_QUEUE, *_gossip(own, peer)))
            for source, own, peer in zip(sources, gossip, reversed(gossip), strict=True)
        ]
        targets = [router.metrics_url.removeprefix("http://").removesuffix("/metrics") for router in routers]
        server = await stack.enter_async_context(prometheus(folder, targets, RULES, _yesterday()))
        load = asyncio.gather(*(_load(router.url, seed) for seed, router in enumerate(routers)))
        try:
            yield Monitored(server, routers)
        finally:
            load.cancel()
            with suppress(asyncio.CancelledError):
                await load  # raises what went wrong there


def _workers(children: Processes) -> Iterator[str]:
    """All on one port, as pods are. Some requests to the first fail; the last two have SGLang's metrics."""
    port = 0
    for number, model in enumerate((MODELS[0], *MODELS, MODELS[1])):
        flags = ["--fail-rate", "0.1"] if number == 0 else []
        flags += ["--metrics", "sglang"] if number >= 2 else []
        host = f"127.0.0.{number + 2}"
        told = children.start(
            "warmroute_loadtest.mock_worker",
            *("--host", host, "--port", str(port), "--model", model),
            *(*_PACE, *flags),
        )
        yield (url := url_in(told))
        port = int(url.rpartition(":")[2])


def _gossip(own: int, peer: int) -> tuple[str, ...]:
    key = ("--gossip-key", "secret-of-both-routers", "--max-payload-size", str(_BODY))
    return ("--gossip-port", str(own), "--peers", f"127.0.0.1:{peer}", *key)


async def _load(url: str, seed: int) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(chat_forever(url, SHAPE, seed))
        group.create_task(_refused_forever(url))


async def _refused_forever(url: str) -> None:
    """Requests that the router answers itself."""
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        while True:
            with suppress(httpx.HTTPError):  # it may close before it has read all of it
                await http.post("/v1/completions", content=b"x" * 2 * _BODY)
            await asyncio.sleep(0.5)


def _yesterday() -> str:
    """What the alerts that compare with it would have had recorded then, minute by minute."""
    now = int(time.time())
    lines = []
    for name, value in (
        ("job_model:warmroute_hit:ratio_rate1h", 0.8),
        ("job_model:warmroute_prompt_tokens:rate1h", 900),
    ):
        lines.append(f"# TYPE {name} gauge")
        for model in MODELS:
            series = f'{name}{{job="{JOB}",model="{model}"}} {value}'
            lines += [f"{series} {now - DAY + 60 * minute}" for minute in range(-6, 30)]
    return "\n".join([*lines, "# EOF", ""])
