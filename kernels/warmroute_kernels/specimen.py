"""One way in which a kernel is compiled: enough for Triton's compiler to do it without a GPU."""

from typing import Any, NamedTuple


class Specimen(NamedTuple):
    name: str
    """For people: kernel, types and tile."""
    function: Any
    """What `@triton.jit` gave."""
    signature: dict[str, str]
    """Triton's type of each argument by name, like `*bf16`, `i32`, `fp32`; `constexpr` for those in `constants`."""
    constants: dict[str, Any]
    num_warps: int
    num_stages: int
    only: int | None = None
    """Ten times the compute capability of the GPU that is given this; None: any may be."""


def signature_of(function: Any, constants: dict[str, Any], types: dict[str, str]) -> dict[str, str]:
    """types: of all arguments but the constants and the `i32`."""
    return {name: "constexpr" if name in constants else types.get(name, "i32") for name in function.arg_names}
