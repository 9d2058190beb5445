"""The Llama architecture (Touvron et al., 2023; grouped queries, RMSNorm, SwiGLU, rotary positions)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

from ..attention.base import Attention


class RopeScaling(NamedTuple):
    """Llama 3.1's stretching of the slow frequencies."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    context: int
    rope_theta: float
    rms_eps: float
    rope_scaling: RopeScaling | None = None

    def tensor_shape(self, name: str) -> tuple[int, ...]:
        """Of a weight by its Hugging Face name."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes = {
            "embed_tokens": (self.vocab, self.hidden),
            "lm_head": (self.vocab, self.hidden),
            "q_proj": (queries, self.hidden),
            "k_proj": (keys, self.hidden),
            "v_proj": (keys, self.hidden),
            "o_proj": (self.hidden, queries),
            "gate_proj": (self.intermediate, self.hidden),
            "up_proj": (self.intermediate, self.hidden),
            "down_proj": (self.hidden, self.intermediate),
        }
        return shapes.get(name.split(".")[-2], (self.hidden,))


TensorSource = Callable[[str], Tensor]
"""Gives a tensor by its Hugging Face name; `lm_head.weight` is the embedding where the two are tied."""


class _Layer(NamedTuple):
    input_norm: Tensor
    qkv: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Llama:
    def __init__(self, config: LlamaConfig, tensor: TensorSource) -> None:
        self.config = config
        self._embedding = tensor("model.embed_tokens.weight")
        self._layers = [_read_layer(tensor, f"model.layers.{index}.") for index in range(config.layers)]
        self._norm = tensor("model.norm.weight")
        self._head = tensor("lm_head.weight")
        self._cos, self._sin = _rope_tables(config, self._embedding)

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.dtype

    def forward(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Hidden states [tokens, hidden] of a flat batch; `tokens` and `positions` are int64 [tokens]."""
        config = self.config
        cos, sin = self._cos[positions, None], self._sin[positions, None]
        split = [config.heads, config.kv_heads, config.kv_heads]
        x = self._embedding[tokens]
        for index, layer in enumerate(self._layers):
            qkv = linear(self._normed(x, layer.input_norm), layer.qkv).view(len(x), -1, config.head_dim)
            q, k, v = torch.split(qkv, split, dim=1)
            attended = attention(index, _rotate(q, cos, sin), _rotate(k, cos, sin), v)
            x = x + linear(attended.flatten(1), layer.out)
            gate, up = linear(self._normed(x, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
            x = x + linear(silu(gate) * up, layer.down)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, vocab] of `hidden` [rows, hidden]."""
        return linear(self._normed(hidden, self._norm), self._head)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, (self.config.hidden,), weight, self.config.rms_eps)


def _read_layer(tensor: TensorSource, prefix: str) -> _Layer:
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    return _Layer(
        input_norm=tensor(prefix + "input_layernorm.weight"),
        qkv=torch.cat([tensor(f"{attention}{name}_proj.weight") for name in "qkv"]),
        out=tensor(attention + "o_proj.weight"),
        mlp_norm=tensor(prefix + "post_attention_layernorm.weight"),
        gate_up=torch.cat([tensor(f"{mlp}{name}_proj.weight") for name in ("gate", "up")]),
        down=tensor(mlp + "down_proj.weight"),
    )


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, halves rotated: x [tokens, heads, head_dim], cos and sin [tokens, 1, head_dim / 2]."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def _rope_tables(config: LlamaConfig, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin, [context, head_dim / 2], of the type and on the device of `like` (Su et al., 2021)."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    if config.rope_scaling is not None:
        frequencies = _stretch(frequencies, config.rope_scaling)
    angles = torch.outer(torch.arange(config.context).float(), frequencies)
    return angles.cos().to(like), angles.sin().to(like)


def _stretch(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Slow waves are divided by the factor, fast ones kept, those between blended."""
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_context / wavelengths
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0, 1)
    return frequencies * (blend + (1 - blend) / scaling.factor)
