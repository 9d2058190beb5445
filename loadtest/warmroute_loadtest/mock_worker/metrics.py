"""What an engine tells of itself, under vLLM's names or SGLang's."""

from typing import NamedTuple

from .config import MockConfig
from .engine import Engine


class _Series(NamedTuple):
    name: str
    value: float
    labels: dict[str, str | int] = {}  # noqa: RUF012 - never changed


def exposition(config: MockConfig, engine: Engine, started: float) -> str:
    """In Prometheus's text format. started: seconds since the epoch."""
    series = _vllm(config, engine) if config.metrics == "vllm" else _sglang(config, engine)
    name = config.model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    lines = [_lines(each, f'model_name="{name}"') for each in series]
    return "".join([*lines, f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {started}\n"])


def _vllm(config: MockConfig, engine: Engine) -> list[_Series]:
    totals = engine.totals
    series = [
        _Series("vllm:num_requests_running", engine.running),
        _Series("vllm:num_requests_waiting", engine.waiting),
        _Series("vllm:kv_cache_usage_perc", engine.memory_usage),
        _Series("vllm:prefix_cache_queries_total", totals.prompt_tokens),
        _Series("vllm:prefix_cache_hits_total", totals.cached_tokens),
        _Series("vllm:prompt_tokens_total", totals.prompt_tokens),
        _Series("vllm:generation_tokens_total", totals.generation_tokens),
        _Series("vllm:request_success_total", totals.requests, {"finished_reason": "length"}),
    ]
    if config.blocks:
        size: dict[str, str | int] = {"block_size": config.block_tokens, "num_gpu_blocks": config.blocks}
        series.append(_Series("vllm:cache_config_info", 1, size))
    return series


def _sglang(config: MockConfig, engine: Engine) -> list[_Series]:
    totals = engine.totals
    series = [
        _Series("sglang:num_running_reqs", engine.running),
        _Series("sglang:num_queue_reqs", engine.waiting),
        _Series("sglang:token_usage", engine.memory_usage),
        _Series("sglang:cache_hit_rate", totals.cached_tokens / max(totals.prompt_tokens, 1)),
        _Series("sglang:cached_tokens_total", totals.cached_tokens, {"cache_source": "device"}),
        _Series("sglang:prompt_tokens_total", totals.prompt_tokens),
        _Series("sglang:generation_tokens_total", totals.generation_tokens),
        _Series("sglang:num_requests_total", totals.requests),
    ]
    if config.blocks:
        size: dict[str, str | int] = {"page_size": config.block_tokens, "num_pages": config.blocks}
        series.append(_Series("sglang:cache_config_info", 1, size))
        series.append(_Series("sglang:max_total_num_tokens", config.blocks * config.block_tokens))
    return series


def _lines(series: _Series, model: str) -> str:
    kind = "counter" if series.name.endswith("_total") else "gauge"
    labels = ",".join([model, *(f'{name}="{value}"' for name, value in series.labels.items())])
    return f"# TYPE {series.name} {kind}\n{series.name}{{{labels}}} {series.value}\n"
