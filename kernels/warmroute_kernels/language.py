"""What all kernels are written with."""

import os

import triton
import triton.language as tl

INTERPRET = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
"""Whether kernels run in Triton's interpreter, on a CPU. It multiplies bfloat16 as if it were integers."""
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def dot(a, b):  # type: ignore[no-untyped-def]
    """The matrix product in float32. Of float32 it is exact to its last bits, not TF32."""
    if INTERPRET:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")
