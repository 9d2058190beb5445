"""The worker on a real socket, in the test's own event loop, with its engine on its own thread."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from warmroute_worker.cli import parse_config
from warmroute_worker.engine import Engine
from warmroute_worker.launch import build

from .router import until


class RunningWorker:
    def __init__(self, engine: Engine, port: int) -> None:
        self.engine = engine
        self.url = f"http://127.0.0.1:{port}"

    async def idle(self) -> None:
        """Returns when nothing runs, waits, or is locked; every slot is then free or cached."""
        engine = self.engine
        await until(lambda: not (engine.num_running or engine.num_waiting or engine.cache.protected))
        assert engine.pool.free_slots + engine.cache.evictable == engine.pool.num_slots


@asynccontextmanager
async def running_worker(model: Path | str, *flags: str) -> AsyncIterator[RunningWorker]:
    engine, server, _ = build(parse_config(["--model", str(model), "--threads", "1", *flags]))
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    serving = uvicorn.Server(uvicorn.Config(server.app(), access_log=False, log_config=None, lifespan="off"))
    engine.start()
    task = asyncio.create_task(serving.serve(sockets=[listener]))
    await until(lambda: serving.started)
    running = RunningWorker(engine, listener.getsockname()[1])
    try:
        yield running
        await running.idle()
    finally:
        serving.should_exit = True
        await task
        engine.stop()
