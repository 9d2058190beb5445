"""The toy as a GGUF file, written as llama.cpp's converter lays it out, against the folder that it comes from."""

from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from transformers import LlamaForCausalLM
from warmroute_worker.errors import WorkerError
from warmroute_worker.model.loader import open_checkpoint

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem.startswith("model.layers."):
        _, _, index, rest = stem.split(".", 3)
        return f"blk.{index}.{NAMES[rest]}.weight"
    return f"{NAMES[stem]}.weight"


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Row pairs (i, i + half) of a head come to lie beside each other."""
    rows = [head * 8 + half * 4 + pair for head in range(heads) for pair in range(4) for half in range(2)]
    return weight[rows]


def write(path: Path, oracle: LlamaForCausalLM, *, extra: str | None = None, **fields: str | int) -> Path:
    known = {"architecture": "llama", "pre": "gpt-2", "layers": 2, "hidden": 48, **fields}
    writer = gguf.GGUFWriter(path, str(known["architecture"]))
    writer.add_embedding_length(int(known["hidden"]))
    writer.add_block_count(int(known["layers"]))
    writer.add_head_count(6)
    writer.add_head_count_kv(2)
    writer.add_key_length(8)
    writer.add_feed_forward_length(96)
    writer.add_context_length(256)
    writer.add_rope_freq_base(float(oracle.config.rope_parameters["rope_theta"]))
    writer.add_layer_norm_rms_eps(oracle.config.rms_norm_eps)
    tokens = [chr(0x100 + number) for number in range(257)] + ["\u0141\u0142", "<s>", "</s>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(str(known["pre"]))
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 258 + [3] * 2)
    writer.add_token_merges(["\u0141 \u0142"])
    writer.add_eos_token_id(259)
    for name, tensor in oracle.state_dict().items():
        heads = {"q_proj": 6, "k_proj": 2}.get(name.split(".")[-2], 0)
        writer.add_tensor(gguf_name(name), (interleaved(tensor, heads) if heads else tensor).contiguous().numpy())
    if extra:
        writer.add_tensor(extra, torch.ones(48).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_its_tensors_are_the_folders(tmp_path: Path, toy_folder: Path, toy_oracle: LlamaForCausalLM) -> None:
    ours = open_checkpoint(str(write(tmp_path / "toy.gguf", toy_oracle)))
    folder = open_checkpoint(str(toy_folder))
    assert ours.name == "toy"
    assert replace(ours.config, rms_eps=1e-6) == folder.config
    assert ours.config.rms_eps == pytest.approx(1e-6), "fp32 in the file"
    assert ours.tokenizer.eos_ids == {259}
    for name in toy_oracle.state_dict():
        assert torch.equal(ours.tensor(name), folder.tensor(name)), name


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"architecture": "qwen2"}, "qwen2"),
        ({"pre": "klingon"}, "klingon"),
        ({"extra": "rope_freqs.weight"}, "rope_freqs.weight"),
        ({"extra": "blk.0.attn_q.bias"}, "blk.0.attn_q.bias"),
    ],
)
def test_what_it_cannot_run_is_refused_when_it_is_opened(
    tmp_path: Path, toy_oracle: LlamaForCausalLM, fields: dict[str, str], says: str
) -> None:
    with pytest.raises(WorkerError, match=says):
        open_checkpoint(str(write(tmp_path / "toy.gguf", toy_oracle, **fields)))


def test_a_missing_tensor_and_a_wrong_shape_are_named(tmp_path: Path, toy_oracle: LlamaForCausalLM) -> None:
    checkpoint = open_checkpoint(str(write(tmp_path / "toy.gguf", toy_oracle, layers=3)))
    with pytest.raises(WorkerError, match=r"no tensor blk\.2\.attn_norm"):
        checkpoint.tensor("model.layers.2.input_layernorm.weight")
    checkpoint = open_checkpoint(str(write(tmp_path / "other.gguf", toy_oracle, hidden=64)))
    with pytest.raises(WorkerError, match=r"\(48,\), the configuration says \(64,\)"):
        checkpoint.tensor("model.layers.0.input_layernorm.weight")
