"""What the kernels are meant to reach on an H200, and what they did."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from .cases import Cascade, Case, Decode, Extend
from .machine import Machine
from .measure import Row
from .ours import PLAIN

BATCH = 64
FROM, TO = 4096, 32768


class Verdict(NamedTuple):
    what: str
    wanted: float
    reached: float | None
    """The worst of all that it is asked of; None where some of that was not measured."""
    unit: str
    worst: str
    """The case of `reached`."""

    @property
    def word(self) -> str:
        if self.reached is None:
            return "not measured"
        return "reached" if self.reached >= self.wanted else "missed"


def verdicts(rows: Sequence[Row], machine: Machine) -> list[Verdict]:
    ours = {row.case: row for row in rows if row.ours and row.chosen}
    plain = {row.case: row for row in rows if row.contender == PLAIN}
    decode = [case for case in ours if isinstance(case, Decode) and case.batch == BATCH and FROM <= case.length <= TO]
    cascades = [case for case in ours if isinstance(case, Cascade)]
    large = [case for case in cascades if (case.members, case.shared, case.own) == (BATCH, 16384, 256)]

    def share(case: Case) -> float | None:
        return ours[case].share_of_copy(machine)

    def teraflops(case: Case) -> float | None:
        rate = ours[case].rate(ours[case].time.graph)
        return None if rate is None else rate / 1e12

    def of_fp8(case: Case) -> float | None:
        assert isinstance(case, Decode)
        return _speedup(ours.get(replace(case, fp8=False)), ours[case])

    def of_sharing(case: Case) -> float | None:
        return _speedup(plain.get(case), ours[case])

    def new_after(prefix: int) -> list[Extend]:
        return [each for each in ours if isinstance(each, Extend) and not each.fp8 and each.prefix == prefix]

    bf16, fp8 = ([case for case in decode if case.fp8 is wanted] for wanted in (False, True))
    span = f"batch {BATCH}, 4k to 32k tokens"
    return [
        _worst(f"decode, bf16, {span}: share of copy bandwidth", 0.8, "", bf16, share),
        _worst(f"decode, {span}: tokens/s with FP8, of bf16", 1.7, "×", fp8, of_fp8),
        _worst("extend, 8k new tokens, causal", 400, "TFLOP/s", new_after(0), teraflops),
        _worst("extend, 8k new tokens after 32k", 400, "TFLOP/s", new_after(TO), teraflops),
        _worst("cascade, batch 64, 16k shared, 256 own: speed, of paged_decode", 5, "×", large, of_sharing),
        _worst("shared prefixes, anywhere on the grid: speed, of paged_decode", 1, "×", cascades, of_sharing),
    ]


def _worst(
    what: str, wanted: float, unit: str, cases: Sequence[Case], figure: Callable[[Case], float | None]
) -> Verdict:
    figures = [(figure(case), case.name) for case in cases]
    known = [(reached, name) for reached, name in figures if reached is not None]
    if not known or len(known) < len(figures):
        return Verdict(what, wanted, None, unit, "")
    return Verdict(what, wanted, min(known)[0], unit, min(known)[1])


def _speedup(slow: Row | None, fast: Row) -> float | None:
    if slow is None or not slow.time.graph or not fast.time.graph:
        return None
    return slow.time.graph / fast.time.graph
