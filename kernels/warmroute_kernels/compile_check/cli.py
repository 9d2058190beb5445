"""The command: compile, print a table, say what is wrong."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ..bench.text import write_between_markers
from .check import Result, check, jobs, one_arch_each
from .table import page, text

PAGE = Path(__file__).parents[3] / "docs/kernels.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """1 where a kernel does not compile or asks for more than an architecture has."""
    parser = argparse.ArgumentParser("python -m warmroute_kernels.compile_check", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one of each function and type of cache, for one GPU")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/kernels.md")
    flags = parser.parse_args(arguments)
    if flags.quick and flags.write_docs:
        parser.error("argument --write-docs: --quick leaves out variants that may spill")
    todo = one_arch_each(jobs(quick=True)) if flags.quick else jobs()
    results = []
    for result in check(todo):
        results.append(result)
        name = f"{result.job.name} on {result.job.arch.name}"
        print(f"{len(results)} of {len(todo)}: {name}", file=sys.stderr, flush=True)
    if flags.write_docs:
        write_between_markers(PAGE, "compiled", page(results, jobs(quick=True)))
    return told(results)


def told(results: Sequence[Result]) -> int:
    """Prints the table and what is wrong; returns the exit code."""
    print(text(results))
    spilling = [each for each in results if each.spills]
    print(f"\n{len(results)} compiled, {len(spilling)} of them spill registers")
    for each in spilling:
        print(f"spills: {each.job.name} on {each.job.arch.name}")
    faulty = [each for each in results if each.faults]
    for each in faulty:
        print(f"error: {each.job.name} on {each.job.arch.name}: {'; '.join(each.faults)}")
    return 1 if faulty else 0
