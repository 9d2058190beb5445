"""Workers between two runs: with empty caches again, and asked what they did."""

import asyncio
import re
from collections.abc import Sequence

import httpx

_PATIENCE = 10.0
_SERVED = re.compile(
    r"^(?:vllm:request_success_total|sglang[:_]num_requests_total)(?:\{.*\})? (\S+)$", flags=re.MULTILINE
)


class Fleet:
    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = urls
        self._before = [0.0] * len(urls)

    async def reset(self) -> None:
        """Empties every cache, and counts from here. Raises httpx.HTTPError where one does not do it in time."""
        async with httpx.AsyncClient(trust_env=False) as http:
            for url in self.urls:
                await _flush(http, url)
            self._before = await self._totals(http)

    async def served(self) -> list[float]:
        """Requests of each worker since `reset`."""
        async with httpx.AsyncClient(trust_env=False) as http:
            totals = await self._totals(http)
        return [after - before for after, before in zip(totals, self._before, strict=True)]

    async def _totals(self, http: httpx.AsyncClient) -> list[float]:
        return [served_total((await http.get(f"{url}/metrics")).text) for url in self.urls]


async def _flush(http: httpx.AsyncClient, url: str) -> None:
    """What a client has just left may still run."""
    for _ in range(int(_PATIENCE / 0.1)):
        reply = await http.post(f"{url}/flush_cache")
        if reply.is_success:
            return
        await asyncio.sleep(0.1)
    reply.raise_for_status()


def served_total(metrics: str) -> float:
    """Requests, in Prometheus's text format."""
    return sum(map(float, _SERVED.findall(metrics)))
