"""`python -m warmroute_worker.vllm.check`: whether the vLLM that is installed here takes our attention backend.

Registers it as the plugin does, builds a step with vLLM's own classes, and compares its output with plain PyTorch's.
Without a GPU it wants TRITON_INTERPRET=1; vLLM itself does not run Triton's kernels on a CPU.
"""

import sys
from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .plugin import register

BLOCK_SIZE, HEADS, KV_HEADS, HEAD_DIM = 16, 6, 2, 64
NEW = (1, 1, 1, 2, 20, 17)
"""Tokens of each sequence in the step: decodes first, as vLLM orders them."""
PREFIXES = (16, 40, 0, 15, 33, 0)
PADDING = 3
"""Tokens behind them that nobody is to read."""


class Seen(NamedTuple):
    window: int | None
    soft_cap: float | None


class Step(NamedTuple):
    """Of one layer; query, key and value are parts of one tensor, as its projection gives them."""

    query: Tensor
    key: Tensor
    value: Tensor
    past: list[tuple[Tensor, Tensor]]
    """K and V of each sequence's prefix."""


def main() -> int:
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum
        from vllm.version import __version__
    except ImportError as error:
        return _fail(f"vLLM cannot be imported: {error}")
    register()
    register()  # each of vLLM's processes may do so several times
    try:
        backend = AttentionBackendEnum.CUSTOM.get_class()
    except ImportError as error:
        return _fail(str(error))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"vLLM {__version__}: CUSTOM is {backend.__module__}.{backend.__qualname__}")
    failed = False
    for packed, seen in product((True, False), (Seen(None, None), Seen(9, None), Seen(None, 5.0))):
        largest, allowed = _difference(backend, packed, seen, device)
        failed |= not largest <= allowed
        order = "heads before tokens" if packed else "tokens before heads"
        print(f"cache with {order}, {seen}: largest error {largest:.1e}, allowed {allowed:.1e}")
    return _fail("the output is not what it should be") if failed else 0


def _fail(message: str) -> int:
    print(f"warmroute: {message}", file=sys.stderr)
    return 1


def _difference(backend: Any, packed: bool, seen: Seen, device: str) -> tuple[float, float]:
    """From PyTorch in float64: the largest, and the largest that rounding may cause."""
    step = _step(device)
    if not packed:
        step = step._replace(key=step.key.contiguous())
    impl = backend.get_impl_cls()(
        HEADS, HEAD_DIM, HEAD_DIM**-0.5, KV_HEADS, None, seen.window, "auto", seen.soft_cap, "decoder", None
    )
    blocks = 1 + sum(-(-(past + new) // BLOCK_SIZE) for past, new in zip(PREFIXES, NEW, strict=True))
    shape = (blocks, KV_HEADS, BLOCK_SIZE, 2 * HEAD_DIM) if packed else (blocks, BLOCK_SIZE, KV_HEADS, 2 * HEAD_DIM)
    cache = torch.full(shape, torch.nan, dtype=torch.float16, device=device)
    cache = cache if packed else cache.transpose(1, 2)
    common, slots = _common(device)
    for (keys, values), row in zip(step.past, slots, strict=True):
        impl.do_kv_cache_update(None, keys, values, cache, row[: len(keys)].contiguous())
    builder = backend.get_builder_cls()(_spec(), ["layer"], _config(), torch.device(device))
    metadata = builder.build(0, common)
    impl.do_kv_cache_update(None, step.key, step.value, cache, common.slot_mapping)
    output = torch.full_like(step.query, torch.nan, memory_format=torch.contiguous_format)
    impl.forward(None, step.query, step.key, step.value, cache, metadata, output)
    wanted = torch.cat(list(_attended(step, seen)))
    # The weights of a sum are rounded to float16 and so is the sum, 2^-11 each; as much again for the scores.
    largest = float(step.value[: sum(NEW)].abs().max())
    return float((output[: sum(NEW)].double() - wanted).abs().max()), largest * 2.0**-9


def _step(device: str) -> Step:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, torch.float16)

    rows = random(sum(NEW) + PADDING, HEADS + 2 * KV_HEADS, HEAD_DIM)
    rows[sum(NEW) :] = torch.nan
    past = [(random(length, KV_HEADS, HEAD_DIM), random(length, KV_HEADS, HEAD_DIM)) for length in PREFIXES]
    return Step(rows[:, :HEADS], rows[:, HEADS : HEADS + KV_HEADS], rows[:, HEADS + KV_HEADS :], past)


def _common(device: str) -> tuple[Any, list[Tensor]]:
    """vLLM's description of the step, and the slots of each sequence's tokens."""
    from vllm.v1.attention.backend import CommonAttentionMetadata

    lengths = [past + new for past, new in zip(PREFIXES, NEW, strict=True)]
    counts = [-(-length // BLOCK_SIZE) for length in lengths]
    order = (torch.randperm(sum(counts), generator=torch.Generator().manual_seed(1)) + 1).int()  # block 0 is nobody's
    table = torch.zeros(len(NEW), max(counts), dtype=torch.int32)
    for row, blocks in zip(table, torch.split(order, counts), strict=True):
        row[: len(blocks)] = blocks
    slots = [
        (row.long()[:, None] * BLOCK_SIZE + torch.arange(BLOCK_SIZE)).flatten()[:length]
        for row, length in zip(table, lengths, strict=True)
    ]
    new_slots = [row[past:] for row, past in zip(slots, PREFIXES, strict=True)]
    starts = torch.tensor([0, *NEW]).cumsum(0).int()
    common = CommonAttentionMetadata(
        query_start_loc=starts.to(device),
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
        num_reqs=len(NEW),
        num_actual_tokens=sum(NEW),
        max_query_len=max(NEW),
        max_seq_len=max(lengths),
        block_table_tensor=table.to(device),
        slot_mapping=torch.cat([*new_slots, torch.full((PADDING,), -1)]).to(device),
        seq_lens_cpu_upper_bound=torch.tensor(lengths, dtype=torch.int32),
    )
    return common, [row.to(device) for row in slots]


def _spec() -> SimpleNamespace:
    return SimpleNamespace(num_kv_heads=KV_HEADS, head_size=HEAD_DIM, block_size=BLOCK_SIZE)


def _config() -> SimpleNamespace:
    model = SimpleNamespace(get_num_attention_heads=lambda parallel: HEADS)
    return SimpleNamespace(model_config=model, parallel_config=None)


def _attended(step: Step, seen: Seen) -> Iterator[Tensor]:
    """Sequence after sequence, float64."""
    first = 0
    for new, (keys, values) in zip(NEW, step.past, strict=True):
        rows = slice(first, first + new)
        first += new
        keys = torch.cat([keys, step.key[rows]]).double().repeat_interleave(HEADS // KV_HEADS, 1)
        values = torch.cat([values, step.value[rows]]).double().repeat_interleave(HEADS // KV_HEADS, 1)
        scores = torch.einsum("qhd,khd->hqk", step.query[rows].double(), keys) * HEAD_DIM**-0.5
        if seen.soft_cap is not None:
            scores = seen.soft_cap * torch.tanh(scores / seen.soft_cap)
        behind = torch.arange(len(keys))[-new:, None] - torch.arange(len(keys))
        hidden = behind < 0 if seen.window is None else (behind < 0) | (behind >= seen.window)
        scores = scores.masked_fill(hidden.to(scores.device), -torch.inf)
        yield torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)


if __name__ == "__main__":
    sys.exit(main())
