"""The command: measure, print, keep."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from . import report
from .cases import all_cases, tiny_cases
from .machine import machine_of
from .measure import measured
from .text import write_between_markers
from .timing import on_gpu, once

PAGE = Path(__file__).parents[3] / "docs/kernels.md"
NO_GPU = "bench: there is no GPU here; --dry-run runs each kind of case once, in tiny, in Triton's interpreter"


def main(arguments: Sequence[str] | None = None) -> int:
    """1 where there is no GPU, or where a kernel of ours is wrong or fails."""
    parser = argparse.ArgumentParser("python -m warmroute_kernels.bench", description=__doc__)
    option = parser.add_argument
    option("--dry-run", action="store_true", help="each kind of case once, in tiny, on the CPU: nothing is timed")
    option("--json", type=Path, default=Path("bench-kernels.json"), help="where to (default: %(default)s)")
    option("--write-docs", action="store_true", help="put the tables into docs/kernels.md")
    flags = parser.parse_args(arguments)
    if flags.dry_run and flags.write_docs:
        parser.error("argument --write-docs: --dry-run measures nothing")
    if not flags.dry_run and not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 1
    device, timer, cases = (
        (torch.device("cpu"), once, tiny_cases()) if flags.dry_run else (torch.device("cuda", 0), on_gpu, all_cases())
    )
    machine = machine_of(device, timer)
    rows = []
    for row in measured(cases, device, timer):
        rows.append(row)
        found = row.note or f"relative error {row.error:.2g}"
        print(f"{row.case.kernel}: {row.case.name}: {row.contender}: {found}", file=sys.stderr, flush=True)
        if not flags.dry_run:  # after each row: whatever ends this, those before it are kept
            flags.json.write_text(report.as_json(rows, machine), encoding="utf-8")
    print(report.text(rows, machine))
    if flags.write_docs:
        write_between_markers(PAGE, "measured", report.page(rows, machine))
    return 1 if any(row.faulty for row in rows) else 0
