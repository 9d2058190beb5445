"""What was compiled, as text for a terminal and for docs/kernels.md."""

from collections.abc import Collection, Sequence

import triton

from ..bench.text import aligned, markdown
from .check import Job, Result

HEAD = ("kernel", "arch", "registers", "spilled bytes", "shared memory", "fits")


def text(results: Sequence[Result]) -> str:
    return aligned(HEAD, [_row(each) for each in results])


def page(results: Sequence[Result], usual: Collection[Job]) -> str:
    """The `usual` ones, and all that spill: the whole table is long."""
    shown = [each for each in results if each.job in usual or each.spills]
    spilling = sum(each.spills for each in results)
    told = f"With Triton {triton.__version__} {len(results)} variants were compiled, and {spilling} of them spill"
    return f"{told}:\n\n{markdown(HEAD, [_row(each) for each in shown])}"


def _row(result: Result) -> tuple[str, ...]:
    job, found = result.job, result.resources
    if found is None:
        return (job.name, job.arch.name, "", "", "", "does not compile")
    spilled = f"{found.spill_stores} + {found.spill_loads}" if result.spills else "0"
    return (
        job.name,
        job.arch.name,
        str(found.registers),
        spilled,
        f"{found.shared / 1024:.0f} of {job.arch.shared_limit // 1024} KB",
        "no" if result.faults else "yes",
    )
