"""Builds the worker's parts and serves until it is told to stop."""

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch
import uvicorn
import uvloop

from .attention.base import Attention
from .attention.torch import TorchAttention
from .config import WorkerConfig
from .engine import Engine, Model
from .errors import WorkerError
from .kv_pool import KVPool
from .listener import announce, url_of
from .model.llama import Llama
from .model.loader import open_checkpoint
from .runtime import Runtime, free_memory, pool_pages, resolve
from .server import Server
from .warm_up import warm_up

_BACKLOG = 2048
_GRACE = 5
"""Seconds for the last bytes to reach their clients."""


def build(config: WorkerConfig) -> tuple[Engine, Server, str]:
    """The engine, its server, and the model's name. Raises WorkerError where the model is not one."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    runtime = resolve(config)
    free_at_start = free_memory(runtime.device)
    checkpoint = open_checkpoint(config.model, runtime.dtype, runtime.device)
    model = Llama(checkpoint.config, checkpoint.tensor)
    shape = model.config
    context = config.context_length or shape.context
    if context > shape.context:
        raise WorkerError(f"--context-length {context} is more than the model's {shape.context}")
    pool = KVPool(
        shape.layers,
        shape.kv_heads,
        shape.head_dim,
        num_pages=pool_pages(config, runtime, shape, free_at_start),
        page_size=config.page_size,
        dtype=runtime.kv_dtype,
        device=runtime.device,
    )
    attending_model, attention = _attending(config, runtime, model, pool, context)
    engine = Engine(
        attending_model,
        attention,
        pool,
        eos_ids=checkpoint.tokenizer.eos_ids,
        context=context,
        chunk=runtime.chunk,
        max_running=config.max_running_requests,
    )
    name = config.served_model_name or checkpoint.name
    return engine, Server(engine, checkpoint.tokenizer, model_name=name, context=context), name


def _attending(
    config: WorkerConfig, runtime: Runtime, model: Llama, pool: KVPool, context: int
) -> tuple[Model, Attention]:
    """The model, with CUDA graphs where they are used, and its attention."""
    shape = model.config
    if runtime.attention == "torch":
        return model, TorchAttention(pool, shape.heads, shape.kv_heads)
    # Here and not above, so that the others do without Triton.
    from .attention.triton import TritonAttention
    from .cuda_graphs import CudaRecorder, GraphedModel

    attention = TritonAttention(
        pool, shape.heads, shape.kv_heads, deterministic=config.enable_deterministic_inference
    )
    attending: Model = model
    if runtime.cuda_graphs:
        attending = GraphedModel(
            model, attention, CudaRecorder(), max_batch=config.max_running_requests, context=context
        )
    if runtime.device.type == "cuda":
        warm_up(attending, attention, pool)
    return attending, attention


@contextmanager
def telling_what_to_lower() -> Iterator[None]:
    """Raises WorkerError where there is not enough memory: on a CPU, PyTorch has no exception of its own for it."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        said = str(error).partition("\n")[0]
        if isinstance(error, RuntimeError) and not re.search("out of memory|allocate memory|overflow", said):
            raise
        raise WorkerError(
            "not enough memory: lower --max-total-tokens, --max-running-requests or, on a GPU, "
            f"--mem-fraction-static, or take a smaller model ({said})"
        ) from error


def launch(config: WorkerConfig, listener: socket.socket) -> None:
    with telling_what_to_lower():
        engine, server, name = build(config)
    settings = uvicorn.Config(
        server.app(),
        access_log=False,
        log_config=None,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=_GRACE,
    )
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        raise WorkerError(f"cannot listen on {url_of(listener)}: {error.strerror}") from error
    engine.start()
    # Only now, so that whoever reads it can connect.
    announce(name, url_of(listener))
    try:
        uvloop.run(_HttpServer(settings, engine).serve(sockets=[listener]))
    finally:
        engine.stop()


class _HttpServer(uvicorn.Server):
    """Uvicorn waits for the answers that are being given; told to stop, this worker breaks them off."""

    def __init__(self, settings: uvicorn.Config, engine: Engine) -> None:
        super().__init__(settings)
        self._engine = engine

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """On SIGINT and SIGTERM. Uvicorn's own would raise the signal anew at the end: this end is a success."""
        del sig, frame
        self._engine.close()
        self.should_exit = True
