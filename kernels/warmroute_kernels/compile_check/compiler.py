"""One specimen compiled for one architecture, and what the assembler says of it."""

import io
import re
from contextlib import redirect_stdout
from typing import NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ..specimen import Specimen
from .arch import Arch

ALIGNED: list[list[str | int]] = [["tt.divisibility", 16]]


class Resources(NamedTuple):
    """Of a thread: registers, and bytes stored and loaded for want of them. Of a block: shared and tensor memory."""

    registers: int
    spill_stores: int
    spill_loads: int
    shared: int
    tensor_memory: int


def compiled(specimen: Specimen, arch: Arch) -> Resources:
    """Raises what Triton's compiler raises. Nothing may have compiled this before: its cache would say nothing."""
    source = ASTSource(specimen.function, specimen.signature, specimen.constants, hints(specimen))
    options = {"num_warps": specimen.num_warps, "num_stages": specimen.num_stages}
    log = io.StringIO()
    with triton.knobs.nvidia.scope(), redirect_stdout(log):
        triton.knobs.nvidia.dump_ptxas_log = True
        kernel = triton.compile(source, target=GPUTarget("cuda", arch.capability, 32), options=options)
    return Resources(*read_log(log.getvalue()), kernel.metadata.shared, kernel.metadata.tmem_size or 0)


def hints(specimen: Specimen) -> dict[tuple[int], list[list[str | int]]]:
    """What Triton sees at run time: pointers are aligned to 16 bytes, and strides are multiples of 16.

    But not of arguments that the kernel told it not to look at.
    """
    return {
        (at,): ALIGNED
        for at, (param, kind) in enumerate(zip(specimen.function.params, specimen.signature.values(), strict=True))
        if kind != "constexpr"
        and (kind.startswith("*") or "stride" in param.name)
        and not (param.do_not_specialize or param.do_not_specialize_on_alignment)
    }


def read_log(log: str) -> tuple[int, int, int]:
    """Registers and bytes of spill stores and loads, as `ptxas -v` tells them. Raises ValueError without."""
    registers = re.search(r"Used (\d+) registers", log)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if registers is None or spills is None:
        raise ValueError(f"the assembler did not tell registers and spills, but: {log!r}")
    return int(registers[1]), int(spills[1]), int(spills[2])
