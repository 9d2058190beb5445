"""This package's kernels, as contenders. Plans are made beforehand: the worker makes one for all layers of a step."""

import torch

from ..cascade import SharedPrefix, cascade, plan_cascade, plan_groups
from ..extend import extend, plan_extend
from ..kv import slots_of
from ..paged_decode import paged_decode, plan_decode
from ..store_kv import store_kv
from .cases import Cascade, Extend, Store
from .problem import Contender, Problem

OURS = "warmroute"
CASCADE, PLAIN = f"{OURS} cascade", f"{OURS} paged_decode"


def contenders(problem: Problem) -> list[Contender]:
    match problem.case:
        case Cascade():
            return _with_shared_prefixes(problem, problem.case)
        case Extend():
            return [_extend(problem)]
        case Store():
            return [_store(problem)]
        case _:
            return [_decode(problem, OURS)]


def _decode(problem: Problem, name: str) -> Contender:
    q, out = problem.q, torch.empty_like(problem.q)
    heads, kv_heads, head_dim = problem.model
    lengths = torch.tensor(problem.lengths, dtype=torch.int32, device=problem.device)
    plan = plan_decode(
        len(problem.lengths),
        heads,
        kv_heads,
        head_dim,
        max_length=max(problem.lengths),
        lengths=problem.lengths,
        device=problem.device,
        fp8=problem.kv.is_fp8,
    )
    return Contender(
        name, lambda: paged_decode(q, problem.kv, problem.page_table, lengths, plan=plan, out=out), lambda: out
    )


def _extend(problem: Problem) -> Contender:
    q, out = problem.q, torch.empty_like(problem.q)
    k, v = problem.new_kv()
    new, prefix = len(q), problem.lengths[0] - len(q)
    starts = torch.tensor([0, new], dtype=torch.int32, device=problem.device)
    prefixes = torch.tensor([prefix], dtype=torch.int32, device=problem.device)
    plan = plan_extend([0, new], [prefix], *problem.model, device=problem.device, fp8=problem.kv.is_fp8)

    def run() -> None:
        extend(q, k, v, problem.kv, problem.page_table, prefixes, starts, plan=plan, out=out)

    return Contender(OURS, run, lambda: out)


def _with_shared_prefixes(problem: Problem, case: Cascade) -> list[Contender]:
    """Cascade and plain decode, whichever pays: what the cost rule chooses is measured against the other."""
    q, out = problem.q, torch.empty_like(problem.q)
    groups = _groups(case, problem)
    table, lengths, model, page_size = problem.page_table, problem.lengths, problem.model, case.page_size
    paying = plan_cascade(groups, table, lengths, *model, page_size=page_size, device=problem.device)
    plan = paying or plan_groups(groups, table, lengths, *model, page_size=page_size, device=problem.device)
    return [
        Contender(CASCADE, lambda: cascade(q, problem.kv, plan=plan, out=out), lambda: out, paying is not None),
        _decode(problem, PLAIN)._replace(chosen=paying is None),
    ]


def _groups(case: Cascade, problem: Problem) -> list[SharedPrefix]:
    shared = case.shared // case.page_size
    return [
        SharedPrefix(tuple(range(begin, begin + case.members)), tuple(problem.page_table[begin, :shared].tolist()))
        for begin in range(0, case.batch, case.members)
    ]


def _store(problem: Problem) -> Contender:
    """K and V of all heads side by side stand for the output: what was stored, as it is read again."""
    k, v = problem.new_kv()
    slots = slots_of(problem.page_table[0], len(k), problem.kv.page_size)
    for part in problem.kv:
        if part is not None:
            part.view(torch.uint8).fill_(0xFF)
    return Contender(
        OURS,
        lambda: store_kv(k, v, problem.kv, slots),
        lambda: torch.cat(problem.kv.gathered(slots), dim=1),
    )
