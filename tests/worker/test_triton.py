"""The Triton backend, in Triton's interpreter: the same answers as PyTorch gives, whoever shares what."""

from array import array
from collections.abc import Callable, Sequence

import pytest
import torch
from support.attention import assert_close, tolerances
from support.toy import ToyEngine
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from warmroute_kernels.cascade import CascadePlan
from warmroute_kernels.kv import FP8, FP8_MAX, slots_of
from warmroute_worker.attention import triton as backend
from warmroute_worker.attention.base import SequenceSpan
from warmroute_worker.attention.triton import TritonAttention
from warmroute_worker.core import Request
from warmroute_worker.kv_pool import KVPool

MakeEngine = Callable[..., ToyEngine]
Prompts = Callable[[int, int], "array[int]"]

TRITON = ("--attention-backend", "triton")
HEADS, KV_HEADS, HEAD_DIM = 6, 2, 16


def together(toy: ToyEngine, prompts: Sequence["array[int]"], count: int) -> list[tuple[list[int], int | None]]:
    """What is generated for each prompt, all at once, and how much of it was cached."""
    requests = [toy.request(prompt, count) for prompt in prompts]
    toy.run()
    return [(toy.generated(request), request.cached_tokens) for request in requests]


def step_until_all_decode(toy: ToyEngine, requests: Sequence[Request]) -> None:
    while not all(request.output_tokens for request in requests):
        assert all(request.finished is None for request in requests), "a step has failed"
        toy.step()


# Greedy text through the whole engine. The toy's logits lie far apart: rounding in fp32 cannot change the order.


@pytest.mark.parametrize("page_size", ["1", "4"])
@pytest.mark.parametrize("chunk", ["5", "64"])
def test_answers_and_cached_tokens_are_those_of_the_torch_backend_cold_and_warm(
    flagged: MakeEngine, prompts: Prompts, page_size: str, chunk: str
) -> None:
    flags = ("--page-size", page_size, "--chunked-prefill-size", chunk)
    prompt = prompts(10, 21)
    torchs, tritons = flagged("--attention-backend", "torch", *flags), flagged(*TRITON, *flags)
    for _ in range(2):
        wanted = together(torchs, [prompt], 4)
        assert together(tritons, [prompt], 4) == wanted
    assert wanted[0][1] == 20


def test_several_at_once_with_shared_heads_in_chunks_beside_decoding(flagged: MakeEngine, prompts: Prompts) -> None:
    flags = ("--page-size", "4", "--chunked-prefill-size", "10")
    everyone = [prompts(11, 8) + prompts(20 + number, 3 + 4 * number) for number in range(3)]
    wanted = together(flagged("--attention-backend", "torch", *flags), everyone, 5)
    assert [cached for _, cached in wanted] == [0, 8, 8]
    assert together(flagged(*TRITON, *flags), everyone, 5) == wanted


def test_under_eviction_and_preemption(flagged: MakeEngine, prompts: Prompts) -> None:
    flags = ("--max-total-tokens", "36", "--page-size", "4", "--chunked-prefill-size", "16")
    everyone = [prompts(number, 9) for number in range(3)]
    wanted = together(flagged("--attention-backend", "torch", *flags), everyone, 10)
    toy = flagged(*TRITON, *flags)
    requests = [toy.request(prompt, 10) for prompt in everyone]
    preempted: set[Request] = set()
    while toy.engine.scheduler.running or toy.engine.scheduler.waiting:
        toy.step()
        preempted |= {request for request in toy.engine.scheduler.waiting if request.output_tokens}
    assert preempted, "the pool is too small for all three"
    assert [(toy.generated(request), request.cached_tokens) for request in requests] == wanted


def test_a_prefill_of_one_token_behind_one_of_several(flagged: MakeEngine, prompts: Prompts) -> None:
    """The second step has the last four tokens of one prompt, and the only one of the other that is not cached."""
    long, cached = prompts(1, 20), prompts(2, 12)
    answers = []
    for flags in (("--attention-backend", "torch"), TRITON):
        toy = flagged(*flags, "--chunked-prefill-size", "16")
        toy.generate(cached, 1)
        first = toy.request(long, 3)
        toy.step()
        second = toy.request(cached, 3)
        toy.step()
        assert (first.computed, second.computed) == (20, 12)
        toy.run()
        answers.append((toy.generated(first), toy.generated(second)))
    assert answers[0] == answers[1]


# Cascade


@pytest.fixture
def shares_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU it would not pay for so few tokens."""
    monkeypatch.setattr("warmroute_kernels.cascade.plan.saving", lambda *_: 1.0)
    monkeypatch.setattr("warmroute_kernels.cascade.plan.pays", lambda _: True)


@pytest.mark.usefixtures("shares_cost_nothing")
@pytest.mark.parametrize("page_size", ["1", "4"])
def test_decoding_by_cascade_gives_the_same_answers(flagged: MakeEngine, prompts: Prompts, page_size: str) -> None:
    """Two groups with other prefixes, and one request that shares nothing."""
    heads = [prompts(1, 16), prompts(2, 9)]
    everyone = [heads[number % 2] + prompts(10 + number, 3) for number in range(4)] + [prompts(3, 5)]
    wanted = together(flagged("--attention-backend", "torch", "--page-size", page_size), everyone, 5)
    toy = flagged(*TRITON, "--page-size", page_size)
    attention = toy.engine._attention
    assert isinstance(attention, TritonAttention)
    requests = [toy.request(prompt, 5) for prompt in everyone]
    shared: list[set[int]] = []
    while toy.engine.scheduler.running or toy.engine.scheduler.waiting:
        toy.step()
        if attention.step is not None and isinstance(attention.step.decode, CascadePlan):
            shared.append({len(group.pages) * int(page_size) for group in attention.step.decode.groups})
    assert [(toy.generated(request), request.cached_tokens) for request in requests] == wanted
    assert {"1": {16, 9}, "4": {16, 8}}[page_size] in shared, "in whole pages"


@pytest.mark.usefixtures("shares_cost_nothing")
def test_deterministic_decoding_does_not_cascade(flagged: MakeEngine, prompts: Prompts) -> None:
    toy = flagged(*TRITON, "--enable-deterministic-inference")
    everyone = [toy.request(prompts(1, 16) + prompts(10 + number, 3), 3) for number in range(2)]
    step_until_all_decode(toy, everyone)
    toy.step()
    attention = toy.engine._attention
    assert isinstance(attention, TritonAttention)
    assert attention.step is not None
    assert isinstance(attention.step.decode, backend.Decode)
    toy.run()


def test_few_short_sequences_do_not_cascade(flagged: MakeEngine, prompts: Prompts) -> None:
    toy = flagged(*TRITON)
    everyone = [toy.request(prompts(1, 16) + prompts(10 + number, 3), 3) for number in range(2)]
    step_until_all_decode(toy, everyone)
    toy.step()
    attention = toy.engine._attention
    assert isinstance(attention, TritonAttention)
    assert [len(group.pages) for group in attention._groups] == [16], "they do share something"
    assert attention.step is not None
    assert isinstance(attention.step.decode, backend.Decode)
    toy.run()


# One layer, against float64


class Bench:
    """Attention over slots that the test deals out by hand; nobody else's slots may be read: they are NaN."""

    def __init__(
        self,
        dtype: torch.dtype = torch.float32,
        *,
        page_size: int = 4,
        pages: int = 24,
        deterministic: bool = False,
    ) -> None:
        self.pool = KVPool(1, KV_HEADS, HEAD_DIM, num_pages=pages, page_size=page_size, dtype=dtype)
        for part in (self.pool.k, self.pool.v, self.pool.k_scale, self.pool.v_scale):
            if part is not None:
                part.view(torch.uint8).fill_(0xFF)  # a NaN in each of the types
        self.attention = TritonAttention(self.pool, HEADS, KV_HEADS, deterministic=deterministic)
        self.random = torch.Generator().manual_seed(5)
        self.pages = torch.randperm(pages, generator=self.random)

    def slots(self, tokens: int) -> Tensor:
        """Pages that are scattered over the pool."""
        count = -(-tokens // self.pool.page_size)
        mine, self.pages = self.pages[:count], self.pages[count:]
        return slots_of(mine, tokens, self.pool.page_size)

    def compute(self, spans: Sequence[SequenceSpan]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k, v of the new tokens, at random but for the first spans always the same, and what comes out."""
        new = [torch.randn(span.length, HEADS + 2 * KV_HEADS, HEAD_DIM, generator=self.random) for span in spans]
        q, k, v = torch.split(torch.cat(new), [HEADS, KV_HEADS, KV_HEADS], dim=1)
        self.attention.plan(spans)
        return q, k, v, self.attention(0, q, k, v)


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, FP8])
def test_a_ragged_batch_against_float64_over_what_is_stored(dtype: torch.dtype, page_size: int) -> None:
    """Two that decode, then one over a prefix that ends within a page, then one without any."""
    bench = Bench(dtype, page_size=page_size)
    lengths, starts = [6, 1, 11, 5], [5, 0, 6, 0]
    sequences = [bench.slots(length) for length in lengths]
    bench.compute([SequenceSpan(sequences[0][:5], 0), SequenceSpan(sequences[2][:6], 0)])
    spans = [SequenceSpan(slots, start) for slots, start in zip(sequences, starts, strict=True)]
    q, k, v, out = bench.compute(spans)
    stored = bench.pool.layer(0)
    row = 0
    for span in spans:
        rows = slice(row, row := row + span.length)
        keys, values = stored.gathered(span.slots)
        # Rounded on their way into the pool by an ulp at most: the interpreter does not round FP8 to the nearest.
        for given, kept in ((k[rows], keys[span.start :]), (v[rows], values[span.start :])):
            smallest = given.abs().amax(-1, keepdim=True) / FP8_MAX * 2**-9 if dtype == FP8 else 0.0
            assert bool(((given - kept).abs() <= torch.finfo(dtype).eps * given.abs() + smallest).all())
        if dtype == FP8 and span.length > 1:  # what is new is read as it came
            keys[span.start :], values[span.start :] = k[rows], v[rows]
        queries = q[rows] if dtype == FP8 else q[rows].to(dtype)
        mask = torch.arange(len(span.slots)) <= torch.arange(span.start, len(span.slots))[:, None]
        wanted = scaled_dot_product_attention(
            queries.double().transpose(0, 1),
            keys.repeat_interleave(HEADS // KV_HEADS, 1).transpose(0, 1),
            values.repeat_interleave(HEADS // KV_HEADS, 1).transpose(0, 1),
            attn_mask=mask,
        ).transpose(0, 1)
        assert_close(out[rows], wanted, tolerances(queries, keys, values, fp8=dtype == FP8)[0])


def test_deterministic_attention_is_the_same_to_the_bit_alone_and_in_company() -> None:
    """300 tokens are three splits for a sequence alone, and two in the company of 2200, unless they are fixed."""
    alone, together = (decoded(company, deterministic=True) for company in ([], [2200]))
    assert torch.equal(alone, together)
    alone, together = (decoded(company, deterministic=False) for company in ([], [2200]))
    assert not torch.equal(alone, together)


def decoded(company: list[int], *, deterministic: bool) -> Tensor:
    """What comes out for a sequence of 300 tokens that decodes beside others."""
    bench = Bench(page_size=16, pages=180, deterministic=deterministic)
    bench.pool.k.normal_(generator=bench.random)
    bench.pool.v.normal_(generator=bench.random)
    return bench.compute([SequenceSpan(bench.slots(length), length - 1) for length in (300, *company)])[-1][0]
