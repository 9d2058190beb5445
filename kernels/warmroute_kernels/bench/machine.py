"""What this GPU can do at most, measured: memory copied, and large matrices multiplied."""

import subprocess
from datetime import UTC, datetime
from typing import NamedTuple

import torch
import triton

from .timing import Timer

SIDE = 8192
TIMES_L2 = 16
"""The copied buffer's size: nothing of it may still be in the cache when it comes round again."""


class Machine(NamedTuple):
    gpu: str
    driver: str
    torch: str
    triton: str
    date: str
    copy_bandwidth: float | None
    """Bytes/s, read and written; None where nothing was timed."""
    matrix_rate: float | None
    """bfloat16 operations/s."""


def machine_of(device: torch.device, timer: Timer) -> Machine:
    date = datetime.now(UTC).date().isoformat()
    if device.type != "cuda":
        return Machine("none", "none", torch.__version__, triton.__version__, date, None, None)
    properties = torch.cuda.get_device_properties(device)
    size = max(1 << 30, TIMES_L2 * properties.L2_cache_size)
    return Machine(
        properties.name,
        _driver(),
        torch.__version__,
        triton.__version__,
        date,
        _rate(2 * size, _copied(size, device, timer)),
        _rate(2 * SIDE**3, _multiplied(SIDE, device, timer)),
    )


def _copied(size: int, device: torch.device, timer: Timer) -> float | None:
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return timer(lambda: target.copy_(source)).best


def _multiplied(side: int, device: torch.device, timer: Timer) -> float | None:
    a, b = (torch.randn(side, side, dtype=torch.bfloat16, device=device) for _ in range(2))
    product = torch.empty_like(a)
    return timer(lambda: torch.matmul(a, b, out=product)).best


def _rate(amount: int, seconds: float | None) -> float | None:
    return None if seconds is None else amount / seconds


def _driver() -> str:
    try:
        told = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return told.stdout.splitlines()[0].strip()
