"""The worker's Prometheus metrics, under the names that SGLang's dashboards use, in both spellings."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from .core import FinishReason, Request

if TYPE_CHECKING:
    from .engine import Engine

SPELLINGS = ("sglang:", "sglang_")
"""SGLang's own, and the one that a scraper makes of it where it does not take colons."""

_TTFT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)


class EngineMetrics:
    """Counters that the engine's thread adds to. Tokens are counted at a request's end, from the usage it reports."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.requests = 0
        self.aborted_requests = 0
        self.registry = CollectorRegistry()
        self._ttft: list[Histogram] = []

    def first_token(self, request: Request) -> None:
        for histogram in self._ttft:
            histogram.observe(time.monotonic() - request.arrived)

    def ended(self, request: Request) -> None:
        if request.finished is FinishReason.ABORT:
            self.aborted_requests += 1
        if request.finished not in (FinishReason.STOP, FinishReason.LENGTH):
            return  # its usage is never reported
        self.requests += 1
        self.prompt_tokens += request.usage.prompt_tokens
        self.cached_tokens += request.usage.cached_tokens
        self.generation_tokens += request.usage.completion_tokens

    def publish(self, engine: "Engine", model_name: str) -> None:
        """Register everything, once the model's name is known."""
        self.registry.register(_EngineCollector(engine, model_name))
        for prefix in SPELLINGS:
            histogram = Histogram(
                f"{prefix}time_to_first_token_seconds",
                "From a request's arrival to its first token.",
                ["model_name"],
                buckets=_TTFT_BUCKETS,
                registry=self.registry,
            )
            self._ttft.append(histogram.labels(model_name))


class _EngineCollector(Collector):
    def __init__(self, engine: "Engine", model_name: str) -> None:
        self._engine = engine
        self._model_name = model_name

    def collect(self) -> Iterable[Metric]:
        for prefix in SPELLINGS:
            for name, text, value in self._gauges():
                gauge = GaugeMetricFamily(prefix + name, text, labels=["model_name"])
                gauge.add_metric([self._model_name], value)
                yield gauge
            for name, text, value in self._counters():
                counter = CounterMetricFamily(prefix + name, text, labels=["model_name"])
                counter.add_metric([self._model_name], value)
                yield counter
            yield self._cache_config(prefix)

    def _gauges(self) -> Iterable[tuple[str, str, float]]:
        engine = self._engine
        yield "num_running_reqs", "Requests that run.", engine.num_running
        yield "num_queue_reqs", "Requests that wait.", engine.num_waiting
        yield "token_usage", "Share of the KV pool that running requests need.", engine.token_usage
        yield "max_total_num_tokens", "Size of the KV pool in tokens.", engine.pool.num_slots
        yield "kv_evictable_tokens", "Cached tokens that no running request needs.", engine.cache.evictable

    def _counters(self) -> Iterable[tuple[str, str, float]]:
        metrics = self._engine.metrics
        yield "prompt_tokens", "Prompt tokens of answered requests.", metrics.prompt_tokens
        yield "cached_tokens", "Those of them that came from the prefix cache.", metrics.cached_tokens
        yield "generation_tokens", "Generated tokens of answered requests.", metrics.generation_tokens
        yield "num_requests", "Requests answered to the end.", metrics.requests
        yield (
            "num_aborted_requests",
            "Requests broken off.",
            metrics.aborted_requests,
        )

    def _cache_config(self, prefix: str) -> Metric:
        pool = self._engine.pool
        info = InfoMetricFamily(f"{prefix}cache_config", "The KV pool.", labels=["model_name"])
        info.add_metric(
            [self._model_name],
            {"page_size": str(pool.page_size), "num_pages": str(pool.num_slots // pool.page_size)},
        )
        return info
