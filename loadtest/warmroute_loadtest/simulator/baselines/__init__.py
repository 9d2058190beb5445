"""The peers' routing rules, by name, for the simulator to run beside our own policies.

A plain name is the peer with its own defaults. `_tuned` is the same rule with the settings that a careful operator
would give it, where the defaults suit only a much larger fleet.
"""

from collections.abc import Callable
from functools import partial

from .aibrix import AibrixPrefixCache
from .base import Baseline
from .dynamo import DynamoKv
from .kubeai import KubeaiPrefixHash
from .llm_d import LlmD
from .lmetric import LMetric
from .production_stack import LoadAware, PrefixAware
from .ray import RayPrefixAffinity
from .sglang import SglangCacheAware
from .smg import SmgCacheAware
from .vllm_router import VllmRouterCacheAware

__all__ = ["BASELINES", "Baseline"]


def _unasked(make: Callable[[], Baseline]) -> Callable[[int], Baseline]:
    """For a peer that does not ask the engines how large their caches are."""
    return lambda engine_tokens: make()


BASELINES: dict[str, Callable[[int], Baseline]] = {
    "aibrix": _unasked(AibrixPrefixCache),
    "aibrix_mean_gate": _unasked(partial(AibrixPrefixCache, imbalance_min_gap=8, imbalance_factor=2.0)),
    "dynamo": _unasked(DynamoKv),
    "kubeai": _unasked(KubeaiPrefixHash),
    # Nearer to the real key, a chat's first user message, where a trace names sessions and prompts begin alike.
    "kubeai_by_session": _unasked(partial(KubeaiPrefixHash, by_session=True)),
    "llm_d": lambda tokens: LlmD(engine_tokens=tokens),
    "lmetric": lambda tokens: LMetric(engine_tokens=tokens),
    "lmetric_prompt_only": lambda tokens: LMetric(queued=False, engine_tokens=tokens),
    "loadaware": lambda tokens: LoadAware(engine_tokens=tokens),
    "prefixaware": _unasked(PrefixAware),
    # Some 2,000 tokens, longer than most system prompts: a match that all share then goes by load.
    "prefixaware_tuned": _unasked(partial(PrefixAware, prefix_min_match_length=8192)),
    "ray": _unasked(RayPrefixAffinity),
    # Ten was its default until PR #59390.
    "ray_tuned": _unasked(partial(RayPrefixAffinity, imbalanced_threshold=10.0)),
    "sglang": _unasked(SglangCacheAware),
    "sglang_tuned": _unasked(partial(SglangCacheAware, balance_abs_threshold=4, balance_rel_threshold=1.1)),
    "smg": _unasked(SmgCacheAware),
    "smg_tuned": _unasked(partial(SmgCacheAware, balance_abs_threshold=4, balance_rel_threshold=1.1)),
    "vllm_router": _unasked(VllmRouterCacheAware),
    "vllm_router_tuned": _unasked(partial(VllmRouterCacheAware, balance_abs_threshold=4, balance_rel_threshold=1.1)),
}
"""By name. Called with the size of one engine's KV cache in tokens: some peers learn it from the engines."""
