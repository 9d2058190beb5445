"""What an engine says of itself in its metrics: its KV cache, its load, what it has computed, and since when it runs.

Every engine has names of its own for the same things, and SGLang two spellings of each: here they become one.
"""

import re
from collections.abc import Mapping
from itertools import islice
from statistics import fmean
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

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
_RUNNING = (
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "sglang_num_running_reqs",
    "trtllm_num_requests_running",
)
_QUEUED = (
    "vllm:num_requests_waiting",
    "sglang:num_queue_reqs",
    "sglang_num_queue_reqs",
    "trtllm_num_requests_waiting",
)
_KV_USAGE = (
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "sglang:token_usage",
    "sglang_token_usage",
    "trtllm_kv_cache_utilization",
)
_GENERATED = ("vllm:generation_tokens_total", "sglang:generation_tokens_total", "sglang_generation_tokens_total")
_CACHED = (
    ("vllm:prompt_tokens_total", "vllm:prompt_tokens_cached_total"),
    ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"),
    ("vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_hits_total"),
    ("sglang:prompt_tokens_total", "sglang:cached_tokens_total"),
    ("sglang_prompt_tokens_total", "sglang_cached_tokens_total"),
)
"""Prompt tokens, and how many of them came from the cache: the first pair that is whole."""
_NAMES = (
    *_CAPACITIES,
    _STARTED,
    *_RUNNING,
    *_QUEUED,
    *_KV_USAGE,
    *_GENERATED,
    *(name for pair in _CACHED for name in pair),
)
_READ = re.compile(rf"^(?:{'|'.join(_NAMES)})[ {{].{{0,2000}}$", re.MULTILINE)
_MOST_LINES = 1000
"""An engine has one of these for each of its ranks."""
_MOST_DIGITS = 12
"""Of a number that can be a number of tokens."""
_LARGEST = 1e18
"""What an engine counts, and its time in seconds, is less."""

Samples = Mapping[str, list[Sample]]


class EngineReport(NamedTuple):
    """None where the engine does not say. Sums over its ranks."""

    capacity: int | None = None
    """Tokens that its KV cache holds: where the fit of its retention starts."""
    started: float | None = None
    """When its process started, in seconds since the epoch: a later time is another process, with an empty cache."""
    running: float | None = None
    """Requests."""
    queued: float | None = None
    """Requests."""
    kv_usage: float | None = None
    """0 to 1; the mean of its ranks."""
    prompt_tokens: float | None = None
    """Since its start; so are the next two."""
    cached_tokens: float | None = None
    """Of those prompt tokens."""
    generation_tokens: float | None = None


NOTHING = EngineReport()


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
    samples: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(lines + "\n"):
        for sample in family.samples:
            if 0 <= sample.value < _LARGEST:
                samples.setdefault(sample.name, []).append(sample)
    prompt, cached = next((pair for pair in _CACHED if all(name in samples for name in pair)), (None, None))
    return EngineReport(
        capacity=_capacity(samples),
        started=max((sample.value for sample in samples.get(_STARTED, ())), default=None),
        running=_sum(samples, *_RUNNING),
        queued=_sum(samples, *_QUEUED),
        kv_usage=_share(samples, *_KV_USAGE),
        prompt_tokens=_sum(samples, prompt) if prompt else _sum(samples, *(first for first, _ in _CACHED)),
        cached_tokens=_sum(samples, cached) if cached else None,
        generation_tokens=_sum(samples, *_GENERATED),
    )


def _capacity(samples: Samples) -> int | None:
    # Two spellings of one metric are one cache.
    return (
        max((_tokens(samples[name], *labels) for name, labels in _CAPACITIES.items() if name in samples), default=0)
        or None
    )


def _tokens(samples: list[Sample], per_block: str, blocks: str) -> int:
    numbers = [(sample.labels.get(per_block, ""), sample.labels.get(blocks, "")) for sample in samples]
    return sum(int(size) * int(count) for size, count in numbers if _is_number(size) and _is_number(count))


def _sum(samples: Samples, *names: str) -> float | None:
    """Of the first name that is there."""
    values = _values(samples, names)
    return sum(values) if values else None


def _share(samples: Samples, *names: str) -> float | None:
    """The mean of what can be a share."""
    values = [value for value in _values(samples, names) if value <= 1]
    return fmean(values) if values else None


def _values(samples: Samples, names: tuple[str, ...]) -> list[float]:
    found = next((samples[name] for name in names if name in samples), ())
    return [sample.value for sample in found]


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS
