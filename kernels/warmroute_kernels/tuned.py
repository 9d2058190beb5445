"""Tile sizes by GPU, as data. `tuning/KERNEL.json` maps a GPU's name to configurations; "default" is for the others.

A configuration is chosen by head dim and by whether the cache is FP8; the most special entry that fits wins.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import torch

MULTIPROCESSORS_OF_CPU = 4
"""There are none: the interpreter runs program after program."""


class Config(NamedTuple):
    """Of one launch. What `block_m` and `block_n` are, the kernel says."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


@cache
def config_of(kernel: str, gpu: str, head_dim: int, *, fp8: bool) -> Config:
    """`gpu`: as `gpu_name` gives it."""
    told = _read(kernel)
    entries = told.get(gpu) or told["default"]
    fitting = [
        entry for entry in entries if head_dim <= entry.get("max_head_dim", head_dim) and entry.get("fp8", fp8) == fp8
    ]
    best = max(fitting, key=lambda entry: ("fp8" in entry, -entry.get("max_head_dim", 1 << 30)))
    return Config(best["block_m"], best["block_n"], best["num_warps"], best["num_stages"])


def padded(count: int) -> int:
    """So many rows or dims of a tile: a power of two, and no fewer than a matrix product takes."""
    return max(16, 1 << (count - 1).bit_length())


def gpu_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return MULTIPROCESSORS_OF_CPU
    return torch.cuda.get_device_properties(device).multi_processor_count


def _read(kernel: str) -> dict[str, list[dict[str, Any]]]:
    told: dict[str, list[dict[str, Any]]] = json.loads(
        (files(__package__) / "tuning" / f"{kernel}.json").read_text(encoding="utf-8")
    )
    return told
