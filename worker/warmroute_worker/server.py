"""The worker's HTTP side: OpenAI's chat and completions APIs over the engine."""

import time
from typing import Any

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from .answer import Answer, Generation, stream, whole
from .engine import Engine
from .errors import InvalidRequest
from .protocol import ChatRequest, CompletionRequest, Reply, error_payload, parse, server_error_payload
from .request_id import RequestId
from .text import OutputText
from .tokenizer import Tokenizer


class Server:
    """Turns HTTP requests into engine requests and their outputs into replies."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, *, model_name: str, context: int) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._model_name = model_name
        self._limit = min(context, engine.pool.num_slots)
        """Of prompt and answer together."""
        self._started = int(time.time())
        engine.metrics.publish(engine, model_name)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/completions", self.completions, methods=["POST"]),
                Route("/v1/models", self.models),
                Route("/health", self.health),
                Route("/metrics", self.metrics),
                Route("/flush_cache", self.flush_cache, methods=["GET", "POST"]),
            ],
            middleware=[Middleware(RequestId)],
            exception_handlers={
                InvalidRequest: _invalid,
                HTTPException: _http_error,
                ClientDisconnect: _gone,
                Exception: _bug,
            },
        )

    async def chat(self, http: HttpRequest) -> ASGIApp:
        asked: ChatRequest = parse(ChatRequest, await http.body())
        self._check_model(asked.model)
        messages = [message.for_template() for message in asked.messages]
        prompt = await run_in_threadpool(self._tokenizer.encode_chat, messages)
        return self._generate(asked, prompt, "messages")

    async def completions(self, http: HttpRequest) -> ASGIApp:
        asked: CompletionRequest = parse(CompletionRequest, await http.body())
        self._check_model(asked.model)
        prompt = await run_in_threadpool(self._completion_prompt, asked)
        return self._generate(asked, prompt, "prompt")

    def _completion_prompt(self, asked: CompletionRequest) -> list[int]:
        prompt = asked.prompt
        if isinstance(prompt, str):
            return self._tokenizer.encode(prompt)
        ids: list[int] = []
        for item in prompt:
            ids.extend(self._tokenizer.encode(item) if isinstance(item, str) else [item])
        if not all(0 <= token < self._tokenizer.vocab_size for token in ids):
            raise InvalidRequest(f"prompt: token ids go from 0 to {self._tokenizer.vocab_size - 1}", param="prompt")
        return ids

    def _generate(self, asked: ChatRequest | CompletionRequest, prompt: list[int], prompt_field: str) -> ASGIApp:
        params = asked.sampling(self._room(prompt, prompt_field))
        text = OutputText(self._tokenizer.decode, params.stop)
        generation = Generation(self._engine, prompt, params, text, asked.cache_salt)
        reply = Reply(chat=isinstance(asked, ChatRequest), model=self._model_name)
        if asked.stream:
            return Answer(stream(generation, reply, include_usage=asked.include_usage))
        return Answer(whole(generation, reply))

    def _check_model(self, model: str | None) -> None:
        if model is not None and model != self._model_name:
            raise InvalidRequest(
                f"the model {model!r} is not served here, only {self._model_name!r}",
                param="model",
                code="model_not_found",
                status=404,
            )

    def _room(self, prompt: list[int], prompt_field: str) -> int:
        """How many tokens of answer there is room for behind a prompt."""
        if not prompt:
            raise InvalidRequest("the prompt is empty", param=prompt_field)
        if len(prompt) >= self._limit:
            raise InvalidRequest(
                f"the prompt has {len(prompt)} tokens; with one of an answer it must fit into {self._limit}, "
                "the smaller of the context length and the KV pool",
                param=prompt_field,
                code="context_length_exceeded",
            )
        return self._limit - len(prompt)

    async def models(self, http: HttpRequest) -> Response:
        del http
        model = {
            "id": self._model_name,
            "object": "model",
            "created": self._started,
            "owned_by": "warmroute",
            "max_model_len": self._limit,
        }
        return _json({"object": "list", "data": [model]})

    async def health(self, http: HttpRequest) -> Response:
        del http
        return _json({"status": "ok"}) if self._engine.alive else _json({"status": "the engine has stopped"}, 503)

    async def metrics(self, http: HttpRequest) -> Response:
        del http
        return Response(generate_latest(self._engine.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def flush_cache(self, http: HttpRequest) -> Response:
        del http
        if not await run_in_threadpool(self._engine.flush_cache):
            raise InvalidRequest(
                "the cache is not flushed while requests run or wait: try again when they have ended"
            )
        return _json({"success": True})


async def _invalid(http: HttpRequest, error: Exception) -> Response:
    del http
    assert isinstance(error, InvalidRequest)
    return _json(error_payload(error), error.status)


async def _http_error(http: HttpRequest, error: Exception) -> Response:
    """No such path, or not with this method."""
    assert isinstance(error, HTTPException)
    message = f"{http.method} {http.url.path}: {error.detail}"
    return _json(error_payload(InvalidRequest(message, status=error.status_code)), error.status_code)


async def _gone(http: HttpRequest, error: Exception) -> Response:
    """The client left before its request had come in full: nobody reads this."""
    del http, error
    return Response(status_code=499)


async def _bug(http: HttpRequest, error: Exception) -> Response:
    """Starlette raises the error anew once this is sent, and so it is logged."""
    del http, error
    return _json(server_error_payload("the worker failed on this request"), 500)


def _json(payload: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(payload), status, media_type="application/json")
