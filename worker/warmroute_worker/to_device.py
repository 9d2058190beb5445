"""The one way from the host to the device."""

import torch
from torch import Tensor


def to_device(on_host: Tensor, device: torch.device) -> Tensor:
    """A copy that waits for nothing that the device still has to do; on a CPU the tensor itself.

    From pinned memory a copy is only queued; PyTorch keeps that memory until it is done.
    """
    return on_host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else on_host
