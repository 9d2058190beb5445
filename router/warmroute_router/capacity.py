"""How many tokens a worker's KV cache holds, by the engine's own metrics: where the fit of its retention starts."""

import httpx
from prometheus_client.parser import text_string_to_metric_families

_TIMEOUT = 5.0
_LABELS = {
    "vllm:cache_config_info": ("block_size", "num_gpu_blocks"),
    "sglang:cache_config_info": ("page_size", "num_pages"),
    "sglang_cache_config_info": ("page_size", "num_pages"),
}
"""Labels of tokens per block and of blocks, by metric."""


async def kv_capacity(client: httpx.AsyncClient, url: str) -> int | None:
    """Tokens, or None where the worker does not say."""
    try:
        response = await client.get(f"{url}/metrics", timeout=_TIMEOUT)
        return read_capacity(response.text) if response.status_code == 200 else None
    except (httpx.HTTPError, ValueError):  # ValueError: what came is no exposition format
        return None


def read_capacity(exposition: str) -> int | None:
    """The sum over the engine's ranks. Raises ValueError on what is no exposition format."""
    capacities: dict[str, int] = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            if sample.name in _LABELS:
                per_block, blocks = (sample.labels.get(label, "") for label in _LABELS[sample.name])
                if per_block.isdecimal() and blocks.isdecimal():
                    capacities[sample.name] = capacities.get(sample.name, 0) + int(per_block) * int(blocks)
    # Two spellings of one metric are one cache.
    return max(capacities.values(), default=0) or None
