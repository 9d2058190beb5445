"""FlashInfer. Its FP8 has one scale for a whole tensor, which is another problem than ours: left out."""

from collections.abc import Iterable

import torch
from torch import Tensor

from ..cases import Cascade, Decode, Extend
from ..problem import DTYPE, Contender, Problem

NAME = "FlashInfer"
WORKSPACE = 512 << 20


def contender(problem: Problem) -> Contender | None:
    if problem.kv.is_fp8:
        return None
    match problem.case:
        case Decode():
            return _decode(problem)
        case Extend():
            return _extend(problem)
        case Cascade():
            return _cascade(problem, problem.case)
        case _:
            return None


def _decode(problem: Problem) -> Contender:
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    wrapper = BatchDecodeWithPagedKVCacheWrapper(_workspace(problem), "NHD", use_tensor_cores=True)
    wrapper.plan(
        *_pages(problem.page_table, problem.lengths, problem.kv.page_size),
        *problem.model,
        problem.kv.page_size,
        q_data_type=DTYPE,
        kv_data_type=DTYPE,
    )
    return _running(wrapper, problem)


def _extend(problem: Problem) -> Contender:
    """New tokens are in pages, too, as it wants them."""
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    wrapper = BatchPrefillWithPagedKVCacheWrapper(_workspace(problem), "NHD")
    wrapper.plan(
        _ints([0, len(problem.q)], problem.device),
        *_pages(problem.page_table, problem.lengths, problem.kv.page_size),
        *problem.model,
        problem.kv.page_size,
        causal=True,
        q_data_type=DTYPE,
        kv_data_type=DTYPE,
    )
    return _running(wrapper, problem)


def _cascade(problem: Problem, case: Cascade) -> Contender:
    from flashinfer import MultiLevelCascadeAttentionWrapper

    shared_pages = case.shared // case.page_size
    shared = _pages(problem.page_table[:: case.members, :shared_pages], [case.shared] * case.groups, case.page_size)
    own = _pages(problem.page_table[:, shared_pages:].contiguous(), [case.own] * case.batch, case.page_size)
    rows = (
        _ints(range(0, case.batch + 1, case.members), problem.device),
        _ints(range(case.batch + 1), problem.device),
    )
    wrapper = MultiLevelCascadeAttentionWrapper(2, _workspace(problem), "NHD")
    levels = [list(each) for each in zip(shared, own, strict=True)]
    wrapper.plan(list(rows), *levels, *problem.model, case.page_size, q_data_type=DTYPE, kv_data_type=DTYPE)
    return _running(wrapper, problem)


def _running(wrapper, problem: Problem) -> Contender:  # type: ignore[no-untyped-def]
    out: list[Tensor] = []

    def run() -> None:
        out[:] = [wrapper.run(problem.q, (problem.kv.k, problem.kv.v))]

    return Contender(NAME, run, lambda: out[0])


def _pages(page_table: Tensor, lengths: list[int], page_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where each sequence's pages begin in the list of all, that list, and the tokens in each one's last page."""
    counts = [-(-length // page_size) for length in lengths]
    begins = [sum(counts[:at]) for at in range(len(counts) + 1)]
    indices = torch.cat([row[:count] for row, count in zip(page_table, counts, strict=True)])
    last = [length - (count - 1) * page_size for length, count in zip(lengths, counts, strict=True)]
    return _ints(begins, page_table.device), indices, _ints(last, page_table.device)


def _ints(values: Iterable[int], device: torch.device) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int32, device=device)


def _workspace(problem: Problem) -> Tensor:
    return torch.zeros(WORKSPACE, dtype=torch.uint8, device=problem.device)
