"""Logits and text against transformers, on the same weights."""

from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.toy import ToyEngine, save_toy
from transformers import LlamaForCausalLM
from warmroute_worker.attention.base import SequenceSpan
from warmroute_worker.attention.torch import TorchAttention
from warmroute_worker.kv_pool import KVPool
from warmroute_worker.model.llama import Llama
from warmroute_worker.model.loader import open_checkpoint

TOLERANCE = 1e-4
"""In fp32 (7 digits) sums of at most 96 terms of size 10 differ by some 1e-5 with the order of summation."""


class Bench:
    """The model on slots that the test deals out by hand."""

    def __init__(self, folder: str, slots: int = 512) -> None:
        checkpoint = open_checkpoint(folder)
        shape = checkpoint.config
        self.model = Llama(shape, checkpoint.tensor)
        self.pool = KVPool(shape.layers, shape.kv_heads, shape.head_dim, num_pages=slots, page_size=1)
        self.attention = TorchAttention(self.pool, shape.heads, shape.kv_heads)

    @torch.inference_mode()
    def logits(self, tokens: "array[int]", spans: list[SequenceSpan]) -> torch.Tensor:
        """Of every row of a flat batch."""
        self.attention.plan(spans)
        positions = torch.cat([torch.arange(span.start, len(span.slots)) for span in spans])
        return self.model.logits(self.model.forward(torch.tensor(tokens), positions, self.attention))


def expected(oracle: LlamaForCausalLM, tokens: "array[int]") -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = oracle(torch.tensor([list(tokens)])).logits[0]
        return logits


def assert_close(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(actual, wanted, rtol=TOLERANCE, atol=TOLERANCE)


def test_cold_logits_equal_transformers(
    toy_folder: Path, toy_oracle: LlamaForCausalLM, prompts: Callable[[int, int], "array[int]"]
) -> None:
    tokens = prompts(1, 50)
    slots = torch.randperm(512)[:50]  # scattered over the pool
    assert_close(Bench(str(toy_folder)).logits(tokens, [SequenceSpan(slots, 0)]), expected(toy_oracle, tokens))


@pytest.mark.parametrize("cut", [1, 7, 49])
def test_warm_logits_equal_transformers(
    toy_folder: Path, toy_oracle: LlamaForCausalLM, prompts: Callable[[int, int], "array[int]"], cut: int
) -> None:
    tokens, bench = prompts(2, 50), Bench(str(toy_folder))
    slots = torch.randperm(512)[:50]
    bench.logits(tokens[:cut], [SequenceSpan(slots[:cut], 0)])
    assert_close(bench.logits(tokens[cut:], [SequenceSpan(slots, cut)]), expected(toy_oracle, tokens)[cut:])


def test_a_ragged_batch_equals_each_sequence_alone(
    toy_folder: Path, toy_oracle: LlamaForCausalLM, prompts: Callable[[int, int], "array[int]"]
) -> None:
    bench = Bench(str(toy_folder))
    sequences = [(prompts(3, 20), 0), (prompts(4, 33), 32), (prompts(5, 9), 4)]
    free = torch.randperm(512)
    flat, spans, wanted = array("q"), [], []
    for tokens, start in sequences:
        slots, free = free[: len(tokens)], free[len(tokens) :]
        if start:
            bench.logits(tokens[:start], [SequenceSpan(slots[:start], 0)])
        flat += tokens[start:]
        spans.append(SequenceSpan(slots, start))
        wanted.append(expected(toy_oracle, tokens)[start:])
    assert_close(bench.logits(flat, spans), torch.cat(wanted))


def test_stale_slots_are_never_read(toy_folder: Path, prompts: Callable[[int, int], "array[int]"]) -> None:
    bench = Bench(str(toy_folder))
    tokens, slots = prompts(6, 30), torch.arange(100, 130)
    clean = bench.logits(tokens, [SequenceSpan(slots, 0)])
    bench.pool.k.fill_(torch.nan)
    bench.pool.v.fill_(torch.nan)
    assert torch.equal(bench.logits(tokens, [SequenceSpan(slots, 0)]), clean)


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 6},
        {"num_key_value_heads": 1},
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ],
    ids=["tied", "multi-head", "multi-query", "llama3-rope"],
)
def test_other_members_of_the_family(
    tmp_path: Path, prompts: Callable[[int, int], "array[int]"], changes: dict[str, object]
) -> None:
    folder = save_toy(tmp_path, **changes)
    oracle = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = prompts(8, 120)
    assert_close(Bench(str(folder)).logits(tokens, [SequenceSpan(torch.arange(120), 0)]), expected(oracle, tokens))


def test_sharded_weights_load(tmp_path: Path, toy_oracle: LlamaForCausalLM, toy_folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((toy_folder / name).read_bytes())
    toy_oracle.save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    tokens = array("q", range(10, 40))
    assert_close(
        Bench(str(tmp_path)).logits(tokens, [SequenceSpan(torch.arange(30), 0)]), expected(toy_oracle, tokens)
    )


# Greedy text through the whole engine


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_greedy_output_equals_transformers_cold_and_warm(
    engine: Callable[..., ToyEngine],
    oracle_greedy: Callable[[object, int], list[int]],
    prompts: Callable[[int, int], "array[int]"],
    page_size: int,
    chunk: int,
) -> None:
    toy = engine(page_size=page_size, chunk=chunk)
    prompt = prompts(10, 41)
    wanted = oracle_greedy(prompt, 12)
    assert toy.generate(prompt, 12) == wanted
    warm = toy.request(prompt, 12)
    toy.run()
    assert toy.generated(warm) == wanted
    assert warm.cached_tokens == 40 // page_size * page_size


def test_greedy_output_is_the_same_in_a_batch_and_under_eviction(
    engine: Callable[..., ToyEngine],
    oracle_greedy: Callable[[object, int], list[int]],
    prompts: Callable[[int, int], "array[int]"],
) -> None:
    """Eight requests of up to 45 tokens each in a pool of 128: evictions and preemptions all the way."""
    toy = engine(pool=128, chunk=16, page_size=4)
    shared = prompts(11, 12)
    everyone = [toy.request(shared + prompts(20 + number, 5 + 2 * number), 12) for number in range(8)]
    toy.run()
    for request in everyone:
        assert toy.generated(request) == oracle_greedy(request.prompt, 12)


@pytest.mark.parametrize("seed", range(3))
def test_a_conversation_reuses_its_own_answers(
    engine: Callable[..., ToyEngine],
    oracle_greedy: Callable[[object, int], list[int]],
    prompts: Callable[[int, int], "array[int]"],
    seed: int,
) -> None:
    toy = engine()
    first = toy.request(prompts(seed, 30), 10)
    toy.run()
    second = toy.request(first.tokens + prompts(100 + seed, 15), 10)
    toy.run()
    # All of the first turn but its last token, which was sampled and never computed.
    assert second.cached_tokens == 39
    assert toy.generated(second) == oracle_greedy(second.prompt, 10)
