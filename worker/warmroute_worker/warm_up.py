"""The first step that is no CUDA graph, computed before anybody waits for it."""

import torch

from .attention.base import Attention, SequenceSpan
from .engine import Model
from .kv_pool import KVPool

_TOKENS = 32


@torch.inference_mode()
def warm_up(model: Model, attention: Attention, pool: KVPool) -> None:
    """Compute a prefill over a cached prefix beside a decode: kernels are compiled and libraries set up by that.

    To be called before the engine starts: it writes over what is in the pool's first page.
    """
    slots = torch.arange(_TOKENS) % pool.page_size
    attention.plan([SequenceSpan(slots, _TOKENS - 1), SequenceSpan(slots, _TOKENS // 2)])
    tokens = torch.zeros(1 + _TOKENS // 2, dtype=torch.int64, device=pool.device)
    model.logits(model.forward(tokens, tokens, attention)[:1])
