"""Builds the worker's parts and serves until it is told to stop."""

import logging
import socket

import torch
import uvicorn

from .attention.torch import TorchAttention
from .config import WorkerConfig
from .engine import Engine
from .errors import WorkerError
from .kv_pool import KVPool
from .model.llama import Llama
from .model.loader import open_checkpoint
from .server import Server

logger = logging.getLogger(__name__)


def build(config: WorkerConfig) -> tuple[Engine, Server, str]:
    """The engine, its server, and the model's name. Raises WorkerError where the model is not one."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    checkpoint = open_checkpoint(config.model)
    model = Llama(checkpoint.config, checkpoint.tensor)
    shape = model.config
    context = config.context_length or shape.context
    if context > shape.context:
        raise WorkerError(f"--context-length {context} is more than the model's {shape.context}")
    pool = KVPool(
        shape.layers,
        shape.kv_heads,
        shape.head_dim,
        num_pages=config.max_total_tokens // config.page_size,
        page_size=config.page_size,
        dtype=model.dtype,
    )
    engine = Engine(
        model,
        TorchAttention(pool, shape.heads, shape.kv_heads),
        pool,
        eos_ids=checkpoint.tokenizer.eos_ids,
        context=context,
        chunk=config.chunked_prefill_size,
        max_running=config.max_running_requests,
    )
    name = config.served_model_name or checkpoint.name
    return engine, Server(engine, checkpoint.tokenizer, model_name=name, context=context), name


async def launch(config: WorkerConfig, listener: socket.socket) -> None:
    engine, server, name = build(config)
    engine.start()
    host, port = listener.getsockname()[:2]
    print(f"warmroute worker: {name} on http://{host}:{port}", flush=True)
    try:
        settings = uvicorn.Config(server.app(), access_log=False, log_config=None, lifespan="off", ws="none")
        await uvicorn.Server(settings).serve(sockets=[listener])
    finally:
        engine.stop()
