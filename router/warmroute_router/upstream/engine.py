"""What an engine says of itself in its metrics: how much its KV cache holds, and since when it runs."""

import re
from itertools import islice
from math import isfinite
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from ..config import WorkerSpec
from .worker_client import Unanswered, WorkerClient

_TIMEOUT = 2.0
_LIMIT = 8 * 1024 * 1024
"""Bytes: engines with many models and adapters have long ones."""
_CAPACITIES = {
    "vllm:cache_config_info": ("block_size", "num_gpu_blocks"),
    "sglang:cache_config_info": ("page_size", "num_pages"),
    "sglang_cache_config_info": ("page_size", "num_pages"),
}
"""Labels of tokens per block and of blocks, by metric."""
_STARTED = "process_start_time_seconds"
_READ = re.compile(rf"^(?:{'|'.join((*_CAPACITIES, _STARTED))}).{{0,2000}}$", re.MULTILINE)
_MOST_LINES = 1000
"""An engine has one of these for each of its ranks."""
_MOST_DIGITS = 12
"""Of a number that can be a number of tokens."""


class EngineReport(NamedTuple):
    """None where the engine does not say."""

    capacity: int | None
    """Tokens that its KV cache holds: where the fit of its retention starts."""
    started: float | None
    """When its process started, in seconds since the epoch: a later time is another process, with an empty cache."""


NOTHING = EngineReport(None, None)


async def ask_engine(client: WorkerClient, spec: WorkerSpec) -> EngineReport:
    try:
        answer = await client.get(spec, "/metrics", timeout=_TIMEOUT, limit=_LIMIT)
        return read_report(answer.body.decode(errors="replace")) if answer.status == 200 else NOTHING
    except (Unanswered, ValueError):  # ValueError: what came is no exposition format
        return NOTHING


def read_report(exposition: str) -> EngineReport:
    """Raises ValueError on what is no exposition format, as far as it is read."""
    # An engine has hundreds of series; parsing them all would take longer than many a request. And what comes from a
    # worker that is none may be made to take for ever.
    lines = "\n".join(islice((match[0] for match in _READ.finditer(exposition)), _MOST_LINES))
    capacities: dict[str, int] = {}
    started: float | None = None
    for family in text_string_to_metric_families(lines + "\n"):
        for sample in family.samples:
            if sample.name == _STARTED and isfinite(sample.value):
                started = max(sample.value, started or 0.0)
            elif sample.name in _CAPACITIES:
                per_block, blocks = (sample.labels.get(label, "") for label in _CAPACITIES[sample.name])
                if _is_number(per_block) and _is_number(blocks):  # summed over the engine's ranks
                    capacities[sample.name] = capacities.get(sample.name, 0) + int(per_block) * int(blocks)
    # Two spellings of one metric are one cache.
    return EngineReport(max(capacities.values(), default=0) or None, started)


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS
