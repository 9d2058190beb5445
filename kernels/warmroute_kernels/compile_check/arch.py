"""The GPUs that kernels are compiled for."""

from typing import NamedTuple

from ..specimen import Specimen


class Arch(NamedTuple):
    capability: int
    """Ten times the compute capability."""
    shared_limit: int
    """Bytes of shared memory that one block may have (CUDA C++ programming guide, "Compute Capabilities")."""
    tensor_memory: int
    """Columns of tensor memory that a block may have."""
    has_e4m3: bool
    """Whether Triton has float8_e4m3fn there: it does from sm_89 on."""

    @property
    def name(self) -> str:
        return f"sm_{self.capability}"

    def takes(self, specimen: Specimen) -> bool:
        if specimen.only not in (None, self.capability):
            return False
        return self.has_e4m3 or not any("fp8e4nv" in kind for kind in specimen.signature.values())


ARCHS = (
    Arch(80, 163 * 1024, 0, has_e4m3=False),
    Arch(90, 227 * 1024, 0, has_e4m3=True),
    Arch(100, 227 * 1024, 512, has_e4m3=True),
)
"""A100, H100 and H200, B200."""
