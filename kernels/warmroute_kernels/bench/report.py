"""What was measured, as a table for people and as JSON for programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .machine import Machine
from .measure import Row
from .ours import OURS
from .peers import PEERS
from .targets import Verdict, verdicts
from .text import aligned, markdown

LAUNCHED = ("µs", "GB/s", "TFLOP/s")
GRAPH = ("graph µs", "GB/s", "of copy", "TFLOP/s", "of matrix")
HEAD = ("kernel", "case", "by", *LAUNCHED, *GRAPH, "")
TARGETS = ("target on an H200", "wanted", "reached", "", "worst case")


def text(rows: Sequence[Row], machine: Machine) -> str:
    targets = aligned(TARGETS, [_target(each) for each in verdicts(rows, machine)])
    table = aligned(HEAD, [_line(row, machine) for row in rows])
    return "\n\n".join((told(machine), table, targets, missing())).strip()


def page(rows: Sequence[Row], machine: Machine) -> str:
    """For docs/kernels.md."""
    targets = markdown(TARGETS, [_target(each) for each in verdicts(rows, machine)])
    table = markdown(HEAD, [_line(row, machine) for row in rows])
    return "\n\n".join((told(machine), targets, table, missing())).strip()


def as_json(rows: Sequence[Row], machine: Machine) -> str:
    """Seconds, bytes, operations, and these by seconds. What was not measured is null."""
    told = {
        "machine": machine._asdict(),
        "missing": [peer.name for peer in PEERS if not peer.installed],
        "targets": [each._asdict() | {"verdict": each.word} for each in verdicts(rows, machine)],
        "rows": [_as_dict(row, machine) for row in rows],
    }
    return json.dumps(told, indent=1) + "\n"


def told(machine: Machine) -> str:
    versions = f"torch {machine.torch}, triton {machine.triton}, driver {machine.driver}"
    if machine.copy_bandwidth is None or machine.matrix_rate is None:
        return f"Not timed: no GPU. {machine.date}, {versions}."
    copies, multiplies = machine.copy_bandwidth / 1e9, machine.matrix_rate / 1e12
    most = f"it copies {copies:,.0f} GB/s and multiplies {multiplies:,.0f} TFLOP/s (bfloat16)"
    return f"{machine.gpu}, {machine.date}, {versions}; {most}."


def missing() -> str:
    """Who could not be asked, in a sentence; nothing if all could."""
    absent = [peer.name for peer in PEERS if not peer.installed]
    return f"Not installed, so not in the table: {', '.join(absent)}." if absent else ""


def _line(row: Row, machine: Machine) -> tuple[str, ...]:
    return (
        row.case.kernel,
        row.case.name,
        row.contender,
        _number(row.time.launched, 1e-6, 1),
        _number(row.bandwidth(row.time.launched), 1e9, 0),
        _number(row.rate(row.time.launched), 1e12, 1),
        _number(row.time.graph, 1e-6, 1),
        _number(row.bandwidth(row.time.graph), 1e9, 0),
        _percent(row.share_of_copy(machine)),
        _number(row.rate(row.time.graph), 1e12, 1),
        _percent(row.share_of_matrix(machine)),
        row.note or ("chosen" if row.ours and row.chosen and row.contender != OURS else ""),
    )


def _target(verdict: Verdict) -> tuple[str, ...]:
    reached = "" if verdict.reached is None else f"{verdict.reached:.2f} {verdict.unit}".strip()
    return verdict.what, f"{verdict.wanted} {verdict.unit}".strip(), reached, verdict.word, verdict.worst


def _as_dict(row: Row, machine: Machine) -> dict[str, Any]:
    cost = row.case.cost
    timed = {
        way: seconds and {"s": seconds, "bytes/s": row.bandwidth(seconds), "flop/s": row.rate(seconds)}
        for way, seconds in row.time._asdict().items()
    }
    return {
        "kernel": row.case.kernel,
        "case": row.case.name,
        "shape": asdict(row.case) | {"model": row.case.model._asdict()},
        "by": row.contender,
        "bytes": cost.bytes,
        "flops": cost.flops,
        **timed,
        "share of copy bandwidth": row.share_of_copy(machine),
        "share of matrix rate": row.share_of_matrix(machine),
        "relative error": row.error,
        "chosen": row.chosen,
        "note": row.note,
    }


def _number(value: float | None, unit: float, digits: int) -> str:
    return "" if value is None else f"{value / unit:,.{digits}f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"
