"""What `auto` means on this machine: device, types, attention backend, and the sizes that go with them."""

import logging
import os
import shutil
from importlib.util import find_spec
from typing import NamedTuple

import torch

from .config import WorkerConfig
from .errors import WorkerError
from .model.llama import LlamaConfig

logger = logging.getLogger(__name__)

DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
}
"""By the names that the flags use."""

_CPU_TOKENS = 16384
_CPU_CHUNK = 256
"""What a core or two compute in a tenth of a second, for which those who decode have to wait."""
_CUDA_CHUNK = 8192
_NO_COMPILER = "Triton needs a C compiler on a GPU: install gcc, or set CC"


class Runtime(NamedTuple):
    device: torch.device
    dtype: torch.dtype
    """Of weights and activations."""
    kv_dtype: torch.dtype
    attention: str
    """torch or triton."""
    chunk: int
    """Prompt tokens of one step."""
    cuda_graphs: bool


def resolve(config: WorkerConfig) -> Runtime:
    """Raises WorkerError where this machine cannot do what is asked for."""
    device = _device(config.device)
    on_cuda = device.type == "cuda"
    dtype = DTYPES[config.dtype] if config.dtype != "auto" else (torch.bfloat16 if on_cuda else torch.float32)
    attention = _attention(config.attention_backend, on_cuda)
    if on_cuda and attention == "triton" and config.kv_cache_dtype == "fp8_e4m3":
        _check_fp8(device)
    return Runtime(
        device=device,
        dtype=dtype,
        kv_dtype=dtype if config.kv_cache_dtype == "auto" else DTYPES[config.kv_cache_dtype],
        attention=attention,
        chunk=config.chunked_prefill_size or (_CUDA_CHUNK if on_cuda else _CPU_CHUNK),
        # Only Triton's kernels are planned ahead so that a step's launches can be recorded.
        cuda_graphs=on_cuda and attention == "triton" and not config.disable_cuda_graph,
    )


def _device(name: str) -> torch.device:
    if name != "cpu" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if name == "cuda":
        raise WorkerError("--device cuda: torch finds no CUDA device here")
    return torch.device("cpu")


def _check_fp8(device: torch.device) -> None:
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < (8, 9):
        raise WorkerError(
            f"--kv-cache-dtype fp8_e4m3: Triton needs a GPU of compute capability 8.9 for it, this one has "
            f"{major}.{minor}: --attention-backend torch does without"
        )


def _attention(name: str, on_cuda: bool) -> str:
    if name == "auto":
        if not (on_cuda and find_spec("triton")):
            return "torch"
        if not _has_c_compiler():
            logger.warning("%s: --attention-backend is torch, which is slower", _NO_COMPILER)
            return "torch"
        return "triton"
    if name == "triton":
        if not find_spec("triton"):
            raise WorkerError("--attention-backend triton needs triton: pip install 'warmroute[kernels]'")
        if on_cuda and not _has_c_compiler():
            raise WorkerError(f"--attention-backend triton: {_NO_COMPILER}")
        if not on_cuda and os.environ.get("TRITON_INTERPRET") != "1":
            raise WorkerError("--attention-backend triton runs on a CPU only to be tested, with TRITON_INTERPRET=1")
    return name


def _has_c_compiler() -> bool:
    """As Triton looks for it: its launcher is compiled on the machine that it runs on."""
    return "CC" in os.environ or any(map(shutil.which, ("gcc", "clang")))


def free_memory(device: torch.device) -> int:
    """Bytes; of a CPU it is not asked for, and 0."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def pool_pages(config: WorkerConfig, runtime: Runtime, shape: LlamaConfig, free_at_start: int) -> int:
    """Pages of the KV pool, to be asked once the weights are on the device.

    Of the memory that was free at the start, what `--mem-fraction-static` leaves over is for activations. Raises
    WorkerError where there is no room.
    """
    tokens = config.max_total_tokens
    if tokens is None and runtime.device.type == "cuda":
        room = free_memory(runtime.device) - free_at_start * (1 - config.mem_fraction_static)
        tokens = int(room // bytes_per_token(shape, runtime.kv_dtype))
    pages = (_CPU_TOKENS if tokens is None else tokens) // config.page_size
    if pages < 1:
        raise WorkerError(
            f"the KV pool has no room for a page of {config.page_size} tokens: "
            f"raise --max-total-tokens or, on a GPU, --mem-fraction-static"
        )
    return pages


def bytes_per_token(shape: LlamaConfig, kv_dtype: torch.dtype) -> int:
    """Of K and V in all layers. In FP8 each head's has a scale in float32."""
    head = shape.head_dim * kv_dtype.itemsize + (4 if kv_dtype == torch.float8_e4m3fn else 0)
    return 2 * shape.layers * shape.kv_heads * head
