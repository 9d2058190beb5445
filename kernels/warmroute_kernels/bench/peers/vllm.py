"""vLLM's Triton attention, the kernel alone. It has FP8 with a scale for each head of each token, as ours."""

import torch

from ..cases import Cascade, Decode, Extend
from ..problem import Contender, Problem

NAME = "vLLM Triton"
SEGMENTS = 16
"""Into which it splits a sequence when it decodes few of them, as vLLM's own backend has it."""
FEW = 128
"""Sequences times KV heads, up to which it does."""


def contender(problem: Problem) -> Contender | None:
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    match problem.case:
        case Decode() | Cascade():
            starts = range(len(problem.q) + 1)
        case Extend(fp8=False):
            starts = range(0, len(problem.q) + 1, len(problem.q))
        case _:  # with FP8 it would read the new tokens as FP8, too
            return None
    q, kv, out = problem.q, problem.kv, torch.empty_like(problem.q)
    heads, kv_heads, head_dim = problem.model
    arguments: dict[str, object] = {
        "cu_seqlens_q": torch.tensor(list(starts), dtype=torch.int32, device=problem.device),
        "max_seqlen_q": starts.step,
        "seqused_k": torch.tensor(problem.lengths, dtype=torch.int32, device=problem.device),
        "max_seqlen_k": max(problem.lengths),
        "softmax_scale": head_dim**-0.5,
        "causal": True,
        "window_size": (-1, -1),
        "block_table": problem.page_table,
        "softcap": 0.0,
        "q_descale": None,
        "k_descale": None,
        "v_descale": None,
    }
    if len(starts) - 1 <= FEW // kv_heads and starts.step == 1:
        floats = torch.empty(len(q), heads, SEGMENTS, _power_of_two(head_dim) + 2, device=problem.device)
        arguments |= {
            "seq_threshold_3D": FEW // kv_heads,
            "num_par_softmax_segments": SEGMENTS,
            "softmax_segm_output": floats[..., 2:].contiguous(),
            "softmax_segm_max": floats[..., 0].contiguous(),
            "softmax_segm_expsum": floats[..., 1].contiguous(),
        }
    if kv.is_fp8:
        from vllm.v1.kv_cache_interface import KVQuantMode

        arguments |= {
            "kv_quant_mode": KVQuantMode.FP8_PER_TOKEN_HEAD,
            "k_scale_cache": kv.k_scale,
            "v_scale_cache": kv.v_scale,
        }
    return Contender(NAME, lambda: unified_attention(q, kv.k, kv.v, out, **arguments), lambda: out)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
