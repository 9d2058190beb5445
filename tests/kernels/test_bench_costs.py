"""Bytes and operations, against numbers from counting by hand."""

import torch
from warmroute_kernels.bench import costs
from warmroute_kernels.bench.cases import LLAMA, Cascade, Decode, Extend, Store
from warmroute_kernels.bench.costs import Cost, Shape

SMALL = Shape(heads=4, kv_heads=2, head_dim=8, element=2, cached=2, page_size=4)
FP8 = SMALL._replace(cached=1)


def test_decode_reads_q_and_each_sequences_cache_and_writes_the_output() -> None:
    # A row of q or of the output: 4 heads * 8 * 2 bytes = 64. A cached token: K and V, 2 heads * 8 * 2 bytes = 64.
    # Tokens 5, 0 and 4 are in 2, 0 and 1 pages, 4 bytes each in the page table.
    # q·k and p·v of a pair: 2 * (2 * 8) in each of 4 heads = 128.
    assert costs.decode(SMALL, [5, 0, 4]) == Cost(3 * 2 * 64 + 9 * 64 + 3 * 4, 9 * 128)


def test_fp8_moves_a_byte_for_each_element_and_four_for_each_scale() -> None:
    # K and V, 2 heads: 8 bytes and a float32.
    assert costs.decode(FP8, [5]).bytes == 2 * 64 + 5 * (2 * 2 * (8 + 4)) + 2 * 4
    assert costs.decode(FP8, [5]).flops == costs.decode(SMALL, [5]).flops


def test_extend_reads_the_prefix_once_and_sees_a_triangle_of_new_tokens() -> None:
    new, prefixes = [3, 1], [5, 0]
    seen = sum(int(torch.ones(n, prefix + n).tril(prefix).sum()) for n, prefix in zip(new, prefixes, strict=True))
    assert seen == 6 + 7 + 8 + 1
    # A new token: a row of q, one of the output, 64 bytes of its own K and V. 5 tokens of the prefix are in 2 pages.
    assert costs.extend(SMALL, new, prefixes) == Cost(4 * (2 * 64 + 64) + 5 * 64 + 2 * 4, 128 * seen)


def test_cascade_moves_what_is_shared_once_for_a_group() -> None:
    # Two groups of three: 8 shared tokens in 2 pages each, 5 own ones in 2 pages for each of the six.
    found = costs.cascade(SMALL, members=3, groups=2, shared=8, own=5)
    assert found == Cost(2 * (8 * 64 + 2 * 4) + 6 * (2 * 64 + 5 * 64 + 2 * 4), 128 * 6 * 13)
    assert found.flops == costs.decode(SMALL, [13] * 6).flops


def test_store_reads_and_writes_each_token_and_reads_its_slot() -> None:
    assert costs.store(SMALL, 10) == Cost(10 * (64 + 64 + 8), 0)
    assert costs.store(FP8, 10) == Cost(10 * (64 + 48 + 8), 0)


def test_the_figures_of_llama_3_8b() -> None:
    # 8 KV heads of 128, K and V, 2 bytes: 4 KiB for a token in a layer. 64 sequences of 32k are 8 GiB.
    decode = Decode(LLAMA, 64, 32768, 16, fp8=False).cost
    assert decode.bytes == 8 * 2**30 + 64 * 2 * 8192 + 64 * 2048 * 4
    assert decode.flops == 64 * 32768 * 4 * 32 * 128
    # 8k causal: about half of 4 * 8192² * 4096 operations. With 32k before it: 8192 * 32768 pairs more.
    alone, after = (Extend(LLAMA, 8192, prefix, 16, fp8=False).cost.flops for prefix in (0, 32768))
    assert alone == 4 * 4096 * (8192 * 8193 // 2)
    assert after - alone == 4 * 4096 * 8192 * 32768
    shared = Cascade(LLAMA, 64, 1, 16384, 256, 16).cost.bytes
    assert 64 * 16640 * 4096 / shared > 30  # bytes that plain decode reads, by those that have to be read
    assert Store(LLAMA, 8192, 16, fp8=True).cost.bytes == 8192 * (4096 + 2 * 8 * 132 + 8)
