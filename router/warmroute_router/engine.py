"""What an engine says of itself in its metrics: how much its KV cache holds, and since when it runs."""

from math import isfinite
from typing import NamedTuple

import httpx
from prometheus_client.parser import text_string_to_metric_families

_TIMEOUT = 2.0
_CAPACITIES = {
    "vllm:cache_config_info": ("block_size", "num_gpu_blocks"),
    "sglang:cache_config_info": ("page_size", "num_pages"),
    "sglang_cache_config_info": ("page_size", "num_pages"),
}
"""Labels of tokens per block and of blocks, by metric."""
_STARTED = "process_start_time_seconds"
_READ = (*_CAPACITIES, _STARTED)


class EngineReport(NamedTuple):
    """None where the engine does not say."""

    capacity: int | None
    """Tokens that its KV cache holds: where the fit of its retention starts."""
    started: float | None
    """When its process started, in seconds since the epoch: a later time is another process, with an empty cache."""


NOTHING = EngineReport(None, None)


async def ask_engine(client: httpx.AsyncClient, url: str) -> EngineReport:
    try:
        response = await client.get(f"{url}/metrics", timeout=_TIMEOUT)
        return read_report(response.text) if response.status_code == 200 else NOTHING
    except (httpx.HTTPError, ValueError):  # ValueError: what came is no exposition format
        return NOTHING


def read_report(exposition: str) -> EngineReport:
    """Raises ValueError on what is no exposition format, as far as it is read."""
    # An engine has hundreds of series; parsing them all would take longer than many a request.
    lines = "\n".join(line for line in exposition.splitlines() if line.startswith(_READ))
    capacities: dict[str, int] = {}
    started: float | None = None
    for family in text_string_to_metric_families(lines + "\n"):
        for sample in family.samples:
            if sample.name == _STARTED and isfinite(sample.value):
                started = max(sample.value, started or 0.0)
            elif sample.name in _CAPACITIES:
                per_block, blocks = (sample.labels.get(label, "") for label in _CAPACITIES[sample.name])
                if per_block.isdecimal() and blocks.isdecimal():  # summed over the engine's ranks
                    capacities[sample.name] = capacities.get(sample.name, 0) + int(per_block) * int(blocks)
    # Two spellings of one metric are one cache.
    return EngineReport(max(capacities.values(), default=0) or None, started)
