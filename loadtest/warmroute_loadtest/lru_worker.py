"""A worker without a model whose cache and pace are real: the simulator's engine, on the clock, behind HTTP.

`python -m warmroute_loadtest.lru_worker --blocks 2000` prints its URL and serves until it is stopped. Prompts are cut
into blocks of text, usage tells which of them its LRU cache had, and each answer takes as long as the model of an
engine in `simulator.worker` says. `/flush_cache` empties the cache while nothing runs, as SGLang's does; `/metrics`
tells its size, as vLLM's does.
"""

import asyncio
import socket
import sys
import time
from array import array
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from warmroute_router.blocks import BYTES_PER_TOKEN
from warmroute_router.cli import OneLineParser
from xxhash import xxh3_64_intdigest

from .simulator import FleetSpec
from .simulator.cache import BlockCache
from .simulator.worker import Happening, Job, WorkerModel, blocks_needed

MODEL = "mock"
CHAT_PATH = "/v1/chat/completions"
DEFAULT_MAX_TOKENS = 16
_WORD = "word "  # the text of one token


class InvalidRequest(Exception):  # noqa: N818 - named as the worker names it
    """The request cannot be served. The message is one line, for the client."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class Running:
    """A job on its way: two moments to wait for, whether anybody does or not."""

    def __init__(self, job: Job) -> None:
        loop = asyncio.get_running_loop()
        self.job = job
        self.moments: dict[Happening, asyncio.Future[None]] = {what: loop.create_future() for what in Happening}

    async def reached(self, what: Happening) -> None:
        await asyncio.shield(self.moments[what])  # a client that leaves does not take the moment along


class PacedWorker:
    """A `WorkerModel` by the event loop's clock.

    The loop is always a little late. What is due happens at its own time all the same, in order, and before a new
    job comes in: so one delay does not lead to the next, and only arrivals are late.
    """

    def __init__(self, blocks: int, block_tokens: int, prefill_rate: float, tpot: float) -> None:
        self._model = WorkerModel(blocks, block_tokens, prefill_rate, tpot)
        self._running: dict[int, Running] = {}
        self._submitted = 0
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        return sum(running.job.cached_blocks < 0 for running in self._running.values())

    @property
    def running(self) -> int:
        return len(self._running) - self.waiting

    def submit(self, block_ids: Sequence[int], input_tokens: int, output_tokens: int) -> Running:
        """The job must fit into the cache, and runs to its end: the model has no abort."""
        now = asyncio.get_running_loop().time()
        self._catch_up(now)
        self._submitted += 1
        running = Running(Job(self._submitted, block_ids, input_tokens, output_tokens))
        self._running[running.job.number] = running
        self._model.submit(running.job, now)
        self._set_alarm()
        return running

    def flush(self) -> bool:
        """Forget the cache. False, and nothing done, while requests run or wait."""
        if self._running:
            return False
        self._model.cache = BlockCache(self._model.cache.capacity)
        return True

    def _wake(self) -> None:
        self._catch_up(asyncio.get_running_loop().time())
        self._set_alarm()

    def _catch_up(self, now: float) -> None:
        while (due := self._model.next_at) <= now:
            for what, job in self._model.wake(due):
                self._running[job.number].moments[what].set_result(None)
                if what is Happening.END:
                    del self._running[job.number]

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        next_at = self._model.next_at
        self._alarm = None if next_at == inf else asyncio.get_running_loop().call_at(next_at, self._wake)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a cache."""

    blocks: int
    block_tokens: int
    block_bytes: int
    """Of prompt text that make one block, and so `block_tokens` tokens."""

    def block_ids(self, text: bytes) -> "array[int]":
        """One id for each full block, which names everything before it too."""
        ids = array("Q")
        chain = 0
        for start in range(0, len(text) - self.block_bytes + 1, self.block_bytes):
            chain = xxh3_64_intdigest(text[start : start + self.block_bytes], chain)
            ids.append(chain)
        return ids

    def tokens(self, text: bytes) -> int:
        return -(-len(text) * self.block_tokens // self.block_bytes)

    def check_fit(self, input_tokens: int, output_tokens: int) -> None:
        if blocks_needed(input_tokens, output_tokens, self.block_tokens) > self.blocks:
            asked, room = f"{input_tokens} + {output_tokens} tokens", self.blocks * self.block_tokens
            raise InvalidRequest(f"{asked} are asked for, and there is room for {room}", "context_length_exceeded")


class Asked:
    """One request for a completion, read and checked: raises InvalidRequest."""

    def __init__(self, body: bytes, *, chat: bool) -> None:
        self.chat = chat
        try:
            payload = orjson.loads(body)
            self.text = _chat_text(payload["messages"]) if chat else payload["prompt"].encode()
            limit = payload.get("max_completion_tokens", payload.get("max_tokens"))
            self.max_tokens = DEFAULT_MAX_TOKENS if limit is None else int(limit)
            self.stream = bool(payload.get("stream"))
            self.include_usage = bool((payload.get("stream_options") or {}).get("include_usage"))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidRequest(f"not a request that this worker understands: {error!r}") from None
        if self.max_tokens < 0:
            raise InvalidRequest(f"max_tokens is {self.max_tokens}")


def _chat_text(messages: list[dict[str, Any]]) -> bytes:
    """A chat template, in which the text of one turn begins that of the next."""
    return "".join(f"<|{message['role']}|>{_content(message['content'])}" for message in messages).encode()


def _content(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


class LruWorker:
    """The routes, and the shapes of what they answer."""

    def __init__(self, shape: Shape, worker: PacedWorker) -> None:
        self._shape = shape
        self._worker = worker
        self._started = time.time()

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route(CHAT_PATH, self.complete, methods=["POST"]),
                Route("/v1/completions", self.complete, methods=["POST"]),
                Route("/v1/models", self.models),
                Route("/health", self.health),
                Route("/metrics", self.metrics),
                Route("/flush_cache", self.flush_cache, methods=["POST"]),
            ],
            exception_handlers={InvalidRequest: _invalid},
        )

    async def complete(self, request: Request) -> Response:
        asked = Asked(await request.body(), chat=request.url.path == CHAT_PATH)
        tokens = self._shape.tokens(asked.text)
        self._shape.check_fit(tokens, asked.max_tokens)
        running = self._worker.submit(self._shape.block_ids(asked.text), tokens, asked.max_tokens)
        if asked.stream:
            return StreamingResponse(self._events(asked, running), media_type="text/event-stream")
        await running.reached(Happening.END)
        choice = _choice(asked, _WORD * asked.max_tokens, "length", piece=False)
        return _json(_completion(asked, running, [choice]) | {"usage": self._usage(running)})

    async def _events(self, asked: Asked, running: Running) -> AsyncIterator[bytes]:
        """The text in two pieces: what there is at the first token, and the rest at the end."""
        first = min(asked.max_tokens, 1)
        await running.reached(Happening.FIRST_BYTE)
        yield _event(_completion(asked, running, [_choice(asked, _WORD * first, None)]))
        await running.reached(Happening.END)
        end = _event(_completion(asked, running, [_choice(asked, _WORD * (asked.max_tokens - first), "length")]))
        if asked.include_usage:
            end += _event(_completion(asked, running, []) | {"usage": self._usage(running)})
        yield end + b"data: [DONE]\n\n"

    def _usage(self, running: Running) -> dict[str, Any]:
        job = running.job
        return {
            "prompt_tokens": job.input_tokens,
            "completion_tokens": job.output_tokens,
            "total_tokens": job.input_tokens + job.output_tokens,
            "prompt_tokens_details": {"cached_tokens": job.cached_blocks * self._shape.block_tokens},
        }

    async def models(self, request: Request) -> Response:
        del request
        return _json({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "warmroute"}]})

    async def health(self, request: Request) -> Response:
        del request
        return Response()

    async def metrics(self, request: Request) -> Response:
        del request
        size = f'block_size="{self._shape.block_tokens}",num_gpu_blocks="{self._shape.blocks}"'
        gauges = {
            f"vllm:cache_config_info{{{size}}}": 1,
            "vllm:num_requests_running": self._worker.running,
            "vllm:num_requests_waiting": self._worker.waiting,
            "process_start_time_seconds": self._started,
        }
        lines = [f"# TYPE {name.partition('{')[0]} gauge\n{name} {value}\n" for name, value in gauges.items()]
        return Response("".join(lines), media_type="text/plain; version=0.0.4")

    async def flush_cache(self, request: Request) -> Response:
        del request
        if not self._worker.flush():
            raise InvalidRequest("the cache is not flushed while requests run or wait")
        return _json({"success": True})


def _completion(asked: Asked, running: Running, choices: list[dict[str, Any]]) -> dict[str, Any]:
    chat = "chat.completion.chunk" if asked.stream else "chat.completion"
    kind = chat if asked.chat else "text_completion"
    return {"id": f"cmpl-{running.job.number}", "object": kind, "model": MODEL, "choices": choices}


def _choice(asked: Asked, text: str, finish_reason: str | None, *, piece: bool = True) -> dict[str, Any]:
    said = {"delta" if piece else "message": {"role": "assistant", "content": text}} if asked.chat else {"text": text}
    return {"index": 0, **said, "finish_reason": finish_reason}


def _event(payload: object) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def _json(payload: object, status: int = 200) -> Response:
    return Response(orjson.dumps(payload), status, media_type="application/json")


async def _invalid(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, InvalidRequest)
    told = {"message": str(error), "type": "invalid_request_error", "param": None, "code": error.code}
    return _json({"error": told}, 400)


def main(argv: Sequence[str] | None = None) -> int:
    default = FleetSpec()
    parser = OneLineParser(prog="lru_worker", description=__doc__)
    option = parser.add_argument
    option("--blocks", type=int, default=default.blocks, help="of KV memory (default: %(default)s)")
    option("--block-tokens", type=int, default=512, help="default: %(default)s")
    option("--block-bytes", type=int, help=f"prompt text of a block (default: {BYTES_PER_TOKEN} for each token)")
    option("--prefill-rate", type=float, default=default.prefill_rate, help="tokens per second (%(default)g)")
    option("--tpot", type=float, default=default.tpot, help="seconds per decoded token (default: %(default)g)")
    option("--port", type=int, default=0, help="default: a free one")
    args = parser.parse_args(argv)
    block_bytes = args.block_tokens * BYTES_PER_TOKEN if args.block_bytes is None else args.block_bytes
    if min(args.blocks, args.block_tokens, block_bytes, args.prefill_rate, args.tpot) <= 0:
        parser.error("every size and rate must be above zero")
    shape = Shape(blocks=args.blocks, block_tokens=args.block_tokens, block_bytes=block_bytes)
    worker = PacedWorker(args.blocks, args.block_tokens, args.prefill_rate, args.tpot)
    # Streams that somebody still reads must not keep a mock alive that was told to stop.
    app = LruWorker(shape, worker).app()
    config = uvicorn.Config(app, access_log=False, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    with socket.create_server(("127.0.0.1", args.port)) as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        uvicorn.Server(config).run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())
