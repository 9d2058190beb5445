"""A mock worker on a real socket, in the test's own event loop, and how its answers are read."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
from prometheus_client.parser import text_string_to_metric_families
from warmroute_loadtest.mock_worker.config import MockConfig
from warmroute_loadtest.mock_worker.connection import Connection
from warmroute_loadtest.mock_worker.worker import MockWorker


@asynccontextmanager
async def mock_worker(config: MockConfig) -> AsyncIterator[httpx.AsyncClient]:
    """A client of it."""
    worker = MockWorker(config)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(worker.serve), "127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            yield client
    finally:
        server.close()


def events(body: str) -> list[Any]:
    """What a stream's events hold, but for the last, which says that it is the last."""
    *data, last, rest = body.split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    return [orjson.loads(event.removeprefix("data: ")) for event in data]


async def series(client: httpx.AsyncClient) -> dict[str, float]:
    """Every series of its metrics, without labels."""
    families = text_string_to_metric_families((await client.get("/metrics")).text)
    return {sample.name: sample.value for family in families for sample in family.samples}


async def until_idle(client: httpx.AsyncClient) -> None:
    """Until nothing runs or waits. The patience only matters in failure."""
    async with asyncio.timeout(30):
        while True:
            values = await series(client)
            if values["vllm:num_requests_running"] == values["vllm:num_requests_waiting"] == 0:
                return
            await asyncio.sleep(0.005)
