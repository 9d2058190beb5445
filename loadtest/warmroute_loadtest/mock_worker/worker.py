"""The paths of a mock worker, and what it answers there."""

import random
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import orjson
from warmroute_router.blocks import BYTES_PER_TOKEN

from ..simulator.worker import Job
from . import wording
from .answers import Exchange, StreamedAnswer, WholeAnswer
from .completion_request import CompletionRequest, InvalidRequest, block_ids, read_request
from .config import Failure, MockConfig
from .connection import Connection, Request
from .engine import Engine
from .metrics import exposition

VOCABULARY = 100_003
MAX_MODEL_LEN = 2**20


class _Route(NamedTuple):
    method: bytes
    serve: Callable[[Connection, Request], None]

    def takes(self, method: bytes) -> bool:
        return method == self.method or (method, self.method) == (b"HEAD", b"GET")

    @property
    def allowed(self) -> bytes:
        return b"GET, HEAD" if self.method == b"GET" else self.method


class MockWorker:
    def __init__(self, config: MockConfig) -> None:
        self._config = config
        self._engine = Engine(config)
        self._started = time.time()
        self._model_json = orjson.dumps(config.model)
        self._jobs = 0
        self._chances = random.Random(config.seed)
        about = _Route(b"GET", self._about)
        self._routes = {
            b"/v1/chat/completions": _Route(b"POST", partial(self._complete, chat=True)),
            b"/v1/completions": _Route(b"POST", partial(self._complete, chat=False)),
            b"/v1/models": _Route(b"GET", self._models),
            b"/health": _Route(b"GET", self._health),
            b"/health_generate": _Route(b"GET", self._health),
            b"/metrics": _Route(b"GET", self._metrics),
            b"/flush_cache": _Route(b"POST", self._flush_cache),
            b"/abort_request": _Route(b"POST", self._abort_request),
            b"/tokenize": _Route(b"POST", self._tokenize),
            **dict.fromkeys((b"/get_model_info", b"/model_info", b"/get_server_info", b"/server_info"), about),
        }

    def serve(self, connection: Connection, request: Request) -> None:
        route = self._routes.get(request.path)
        if route is None:
            connection.reply_error(404, f"no such path: {request.path.decode(errors='replace')}")
        elif not route.takes(request.method):
            allowed = b"allow: " + route.allowed + b"\r\n"
            connection.reply_error(405, f"not with {request.method.decode()}", headers=allowed)
        else:
            route.serve(connection, request)

    def _complete(self, connection: Connection, request: Request, chat: bool) -> None:
        try:
            asked = read_request(request.body, chat=chat, default_max_tokens=self._config.default_max_tokens)
            job = self._job(asked)
        except InvalidRequest as error:
            connection.reply_error(400, str(error), error.code)
            return
        failure = self._draw_failure()
        if failure is None or failure == "cut":
            self._answer(connection, request, asked, job, chat=chat, cut=failure == "cut")
        elif failure == "reset":
            connection.reset()
        elif failure != "hang":
            connection.reply_error(failure, "one of the failures that this worker was told to have")

    def _job(self, asked: CompletionRequest) -> Job:
        """Raises InvalidRequest where it could never run."""
        config = self._config
        tokens = config.prompt_tokens(asked.text)
        if not self._engine.fits(tokens, asked.max_tokens):
            needed = f"{tokens} + {asked.max_tokens} tokens"
            message = f"{needed} are asked for, and there is room for {self._engine.room}"
            raise InvalidRequest(message, "context_length_exceeded")
        ids = block_ids(asked.text, config.block_bytes) if config.blocks else ()
        told = config.stream_interval if asked.stream and config.tpot else 0  # without a pace all come at the end
        self._jobs += 1
        return Job(self._jobs, ids, tokens, asked.max_tokens, stream_interval=told)

    def _draw_failure(self) -> Failure | None:
        return self._config.fail if self._chances.random() < self._config.fail_rate else None

    def _answer(
        self,
        connection: Connection,
        request: Request,
        asked: CompletionRequest,
        job: Job,
        *,
        chat: bool,
        cut: bool,
    ) -> None:
        opened = wording.opening(chat, asked.stream) % (job.number, time.time(), self._model_json)
        exchange = Exchange(
            connection=connection,
            engine=self._engine,
            job=job,
            block_tokens=self._config.block_tokens,
            stream_interval=self._config.stream_interval,
            opened=opened,
            chat=chat,
            include_usage=asked.include_usage,
            chunked=request.chunked,
            cut=cut,
        )
        answer = StreamedAnswer(exchange) if asked.stream else WholeAnswer(exchange)
        connection.answer = answer
        self._engine.submit(job, answer)

    def _models(self, connection: Connection, request: Request) -> None:
        del request
        created = int(self._started)
        card = {"id": self._config.model, "object": "model", "created": created, "owned_by": "warmroute"}
        connection.reply(orjson.dumps({"object": "list", "data": [card]}))

    def _about(self, connection: Connection, request: Request) -> None:
        """To routers that ask SGLang's workers what they serve."""
        del request
        model = self._config.model
        names = {"model_path": model, "served_model_name": model, "tokenizer_path": model}
        cache = {"page_size": self._config.block_tokens} if self._config.blocks else {}
        told = {"status": "ready", "version": "mock", "is_generation": True, "tp_size": 1, "dp_size": 1}
        connection.reply(orjson.dumps(told | names | cache))

    def _health(self, connection: Connection, request: Request) -> None:
        del request
        connection.reply(b"{}")

    def _metrics(self, connection: Connection, request: Request) -> None:
        del request
        text = exposition(self._config, self._engine, self._started)
        connection.reply(text.encode(), content_type=b"text/plain; version=0.0.4; charset=utf-8")

    def _flush_cache(self, connection: Connection, request: Request) -> None:
        del request
        if self._engine.flush():
            connection.reply(b'{"success":true}')
        else:
            connection.reply_error(400, "the cache is not flushed while requests run or wait")

    def _abort_request(self, connection: Connection, request: Request) -> None:
        """SGLang's. Here a request ends with its connection, and this does nothing."""
        del request
        connection.reply(b"{}")

    def _tokenize(self, connection: Connection, request: Request) -> None:
        """vLLM's: what its own router hashes. Equal text has equal ids, and that is all there is to them."""
        try:
            asked = read_request(request.body, chat=b'"messages"' in request.body, default_max_tokens=0)
        except InvalidRequest as error:
            connection.reply_error(400, str(error), error.code)
            return
        text = asked.text + bytes(-len(asked.text) % BYTES_PER_TOKEN)
        tokens = [word % VOCABULARY for word in memoryview(text).cast("I")]
        connection.reply(orjson.dumps({"count": len(tokens), "max_model_len": MAX_MODEL_LEN, "tokens": tokens}))
