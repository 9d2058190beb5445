"""GGUF files: llama.cpp's format, read with its own `gguf` package."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from torch import Tensor

from ..errors import WorkerError
from ..tokenizer import Tokenizer
from .llama import LlamaConfig
from .loader import Checkpoint, with_tied_head

_LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def open_gguf(path: Path, dtype: torch.dtype, device: torch.device) -> Checkpoint:
    try:
        reader = GGUFReader(path)
    except (ValueError, IndexError, OSError) as error:
        raise WorkerError(f"{path} is not a GGUF file: {error}") from error
    fields = _Fields(path, reader)
    config = _config(fields)
    source = _Tensors(path, reader, config, dtype, device)
    _refuse_what_would_be_left_out(path, source.stored)
    tensor = source if "output.weight" in source.stored else with_tied_head(source)
    return Checkpoint(path.stem, config, tensor, _tokenizer(fields))


def _refuse_what_would_be_left_out(path: Path, stored: Iterable[str]) -> None:
    """Without a bias, or without Llama 3's `rope_freqs.weight`, it would be another model."""
    known = {*_NAMES.values(), *_LAYER_NAMES.values()}
    for name in stored:
        if (name.split(".", 2)[2] if name.startswith("blk.") else name) not in known:
            raise WorkerError(f"{path} has a tensor that this worker has no use for: {name}")


class _Fields:
    """The file's metadata."""

    def __init__(self, path: Path, reader: GGUFReader) -> None:
        self._path = path
        self._fields = reader.fields

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def __getitem__(self, name: str) -> Any:
        if name not in self._fields:
            raise WorkerError(f"{self._path} has no field {name}")
        return self._fields[name].contents()

    def get(self, name: str, default: Any) -> Any:
        return self._fields[name].contents() if name in self._fields else default


def _config(fields: _Fields) -> LlamaConfig:
    architecture = fields["general.architecture"]
    if architecture != "llama":
        raise WorkerError(f"the model's architecture is {architecture}, this worker runs llama")
    if "llama.rope.scaling.type" in fields and fields["llama.rope.scaling.type"] != "none":
        raise WorkerError(f"rope scaling {fields['llama.rope.scaling.type']!r} is not supported")
    heads = fields["llama.attention.head_count"]
    hidden = fields["llama.embedding_length"]
    return LlamaConfig(
        hidden=hidden,
        layers=fields["llama.block_count"],
        heads=heads,
        kv_heads=fields.get("llama.attention.head_count_kv", heads),
        head_dim=fields.get("llama.attention.key_length", hidden // heads),
        intermediate=fields["llama.feed_forward_length"],
        vocab=len(fields["tokenizer.ggml.tokens"]),
        context=fields["llama.context_length"],
        rope_theta=fields.get("llama.rope.freq_base", 10000.0),
        rms_eps=fields["llama.attention.layer_norm_rms_epsilon"],
    )


def _tokenizer(fields: _Fields) -> Tokenizer:
    kind = fields["tokenizer.ggml.model"]
    if kind != "gpt2":
        raise WorkerError(f"the tokenizer is of kind {kind!r}, this worker reads byte-level BPE (gpt2)")
    return Tokenizer.from_bpe(
        tokens=fields["tokenizer.ggml.tokens"],
        merges=fields["tokenizer.ggml.merges"],
        # Type 3 is llama.cpp's "control": a token of its own wherever it stands.
        special=[
            token
            for token, kind in zip(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"], strict=True)
            if kind == 3
        ],
        split=fields.get("tokenizer.ggml.pre", "default"),
        bos=fields.get("tokenizer.ggml.bos_token_id", None),
        eos=fields["tokenizer.ggml.eos_token_id"],
        add_bos=fields.get("tokenizer.ggml.add_bos_token", False),
        chat_template=fields.get("tokenizer.chat_template", None),
    )


class _Tensors:
    """Dequantises one tensor at a time, so that loading needs little more memory than the weights."""

    def __init__(
        self, path: Path, reader: GGUFReader, config: LlamaConfig, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.stored = {tensor.name: tensor for tensor in reader.tensors}
        self._path = path
        self._config = config
        self._dtype = dtype
        self._device = device

    def __call__(self, name: str) -> Tensor:
        stored_name = _stored_name(name)
        if stored_name not in self.stored:
            raise WorkerError(f"{self._path} has no tensor {stored_name}")
        stored = self.stored[stored_name]
        try:
            values = dequantize(stored.data, stored.tensor_type)
        except NotImplementedError as error:
            raise WorkerError(f"{self._path}: {stored_name} is stored as {stored.tensor_type.name}") from error
        # A copy: the reader's own arrays are views of the file.
        tensor = torch.from_numpy(values.copy()).to(self._device, self._dtype)
        if stored_name.endswith("attn_q.weight"):
            return _unpermute(tensor, self._config.heads)
        if stored_name.endswith("attn_k.weight"):
            return _unpermute(tensor, self._config.kv_heads)
        return tensor


def _stored_name(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    _, _, index, rest = name.split(".", 3)
    return f"blk.{index}.{_LAYER_NAMES[rest]}"


def _unpermute(weight: Tensor, heads: int) -> Tensor:
    """llama.cpp stores the rows of Q and K for rotation in pairs; this engine rotates halves."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)
