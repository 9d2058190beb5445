"""All specimens for all architectures, in as many processes as there are cores."""

import importlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

from ..specimen import Specimen
from .arch import ARCHS, Arch
from .compiler import Resources, compiled

MODULES = tuple(
    f"warmroute_kernels.{name}.kernel" for name in ("store_kv", "paged_decode", "merge", "extend", "cascade")
)

USUAL = 128
"""Head dim of most models."""


class Job(NamedTuple):
    """Which specimen, by its place in its module: Triton's functions do not go from process to process."""

    module: str
    place: int
    name: str
    arch: Arch


class Result(NamedTuple):
    job: Job
    resources: Resources | None
    error: str | None
    """What the compiler said, in one line."""

    @property
    def spills(self) -> bool:
        return self.resources is not None and self.resources.spill_stores + self.resources.spill_loads > 0

    @property
    def faults(self) -> list[str]:
        """Why it would not run."""
        if self.resources is None:
            return [self.error or "not compiled"]
        limit, found = self.job.arch, self.resources
        faults = []
        if found.shared > limit.shared_limit:
            faults.append(f"{found.shared:,} bytes of shared memory, {limit.name} has {limit.shared_limit:,}")
        if found.tensor_memory > limit.tensor_memory:
            faults.append(f"{found.tensor_memory} columns of tensor memory, {limit.name} has {limit.tensor_memory}")
        return faults


def jobs(modules: Sequence[str] = MODULES, *, quick: bool = False) -> list[Job]:
    """`quick`: of each function with and without FP8 the first specimen with `USUAL` heads, or else its first."""
    found = []
    for module in modules:
        specimens = _specimens(module)
        chosen = _first_of_each(specimens) if quick else range(len(specimens))
        found += [
            Job(module, place, specimens[place].name, arch)
            for place in chosen
            for arch in ARCHS
            if arch.takes(specimens[place])
        ]
    return found


def one_arch_each(found: Sequence[Job]) -> list[Job]:
    """Each specimen for one of its architectures only, and the next one for the next."""
    specimens: dict[tuple[str, int], list[Job]] = {}
    for job in found:
        specimens.setdefault((job.module, job.place), []).append(job)
    return [each[turn % len(each)] for turn, each in enumerate(specimens.values())]


def check(todo: Iterable[Job]) -> Iterator[Result]:
    """In the order of the jobs. Triton's interpreter must be off: TRITON_INTERPRET unset when Triton is imported."""
    processes = len(os.sched_getaffinity(0))
    anew = get_context("spawn")  # not forked: threads of libraries would not survive that
    with (
        tempfile.TemporaryDirectory() as cache,
        ProcessPoolExecutor(processes, mp_context=anew, initializer=_use_cache, initargs=(cache,)) as pool,
    ):
        yield from pool.map(_run, todo)


def _specimens(module: str) -> list[Specimen]:
    return list(importlib.import_module(module).specimens())


def _first_of_each(specimens: Sequence[Specimen]) -> list[int]:
    first: dict[tuple[str, bool], int] = {}
    usual_first = sorted(range(len(specimens)), key=lambda index: specimens[index].constants.get("HEAD_DIM") != USUAL)
    for index in usual_first:
        each = specimens[index]
        first.setdefault((each.function.__name__, "*fp8e4nv" in each.signature.values()), index)
    return sorted(first.values())


def _use_cache(folder: str) -> None:
    os.environ["TRITON_CACHE_DIR"] = folder


def _run(job: Job) -> Result:
    try:
        return Result(job, compiled(_specimens(job.module)[job.place], job.arch), None)
    except Exception as error:  # whatever the compiler raises is a finding, and the others are still to be looked at
        cause = error.__cause__ or error
        return Result(job, None, " ".join(f"{type(cause).__name__}: {cause}".split())[:500])
