"""What the host functions check before a kernel is launched: a kernel itself would read what is not its own."""

import torch
from torch import Tensor


def check(holds: bool, message: str) -> None:
    """Raises ValueError."""
    if not holds:
        raise ValueError(message)


def check_tensor(
    name: str,
    tensor: Tensor,
    shape: tuple[int | None, ...],
    dtypes: tuple[torch.dtype, ...],
    device: torch.device,
    *,
    contiguous: bool = True,
) -> None:
    """`shape`: None for any. Without `contiguous`, only the last dim has to be. Raises ValueError that names it."""
    fits = tensor.dim() == len(shape) and all(
        want in (None, have) for want, have in zip(shape, tensor.shape, strict=True)
    )
    expected = ", ".join("any" if want is None else str(want) for want in shape)
    check(fits, f"{name} has the shape {tuple(tensor.shape)}: expected [{expected}]")
    names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    check(tensor.dtype in dtypes, f"{name} is {str(tensor.dtype).removeprefix('torch.')}: expected {names}")
    check(tensor.device == device, f"{name} is on {tensor.device}: expected {device}")
    if contiguous:
        check(tensor.is_contiguous(), f"{name} is not contiguous: its strides are {tensor.stride()}")
    else:
        check(tensor.stride(-1) == 1, f"{name} has the stride {tensor.stride(-1)} in its last dim: expected 1")
