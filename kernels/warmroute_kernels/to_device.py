"""The one way from the host to the device."""

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(on_host: Tensor, device: torch.device) -> Tensor:
    """A copy that waits for nothing that the device still has to do; on a CPU the tensor itself.

    From pinned memory a copy is only queued; PyTorch keeps that memory until it is done.
    """
    return on_host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else on_host.to(device)


def int32_to_device(values: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> Tensor:
    return to_device(torch.tensor(values, dtype=torch.int32), device)
