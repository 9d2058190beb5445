"""The OpenAI-shaped requests that the worker takes, and the shapes of its replies."""

import secrets
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from .core import FinishReason, Output, SamplingParams, Usage
from .errors import InvalidRequest

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default for /v1/completions."""


class _Strict(BaseModel):
    """Takes "1" for no number. Fields that it does not know are let be, as other engines do."""

    model_config = ConfigDict(strict=True)


class StreamOptions(_Strict):
    include_usage: bool | None = None


class ResponseFormat(_Strict):
    type: Literal["text"]


class _Generation(_Strict):
    """What both APIs share."""

    model: str | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    max_tokens: int | None = Field(None, gt=0)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    cache_salt: str | None = None
    n: Literal[1] | None = None
    # Known, and not built: an answer that passed over them would be a wrong one.
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    frequency_penalty: float | None = Field(None, ge=0, le=0)
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None
    logprobs: Literal[False] | None = None
    presence_penalty: float | None = Field(None, ge=0, le=0)
    response_format: ResponseFormat | None = None
    suffix: None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None

    @field_validator("stop")
    @classmethod
    def _stop_is_text(cls, stop: str | list[str] | None) -> str | list[str] | None:
        if stop is not None and "" in ([stop] if isinstance(stop, str) else stop):
            raise ValueError("a stop string is empty")
        return stop

    def sampling(self, room: int) -> SamplingParams:
        """`room` is how many tokens there is room for: the limit, whatever was asked."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return SamplingParams(
            max_tokens=min(self.output_limit or room, room),
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=self.seed,
            stop=stop,
            ignore_eos=bool(self.ignore_eos),
        )

    @property
    def output_limit(self) -> int | None:
        return self.max_tokens

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class TextPart(_Strict):
    type: Literal["text"]
    text: str


class ChatMessage(_Strict):
    model_config = ConfigDict(extra="allow")

    role: str
    content: str | list[TextPart] | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _only_text(cls, content: object) -> object:
        """Said here in one sentence; the union's own error speaks of all its members."""
        if isinstance(content, list) and not all(
            isinstance(part, dict) and part.get("type") == "text" for part in content
        ):
            raise ValueError("only parts of type text are supported")
        return content

    def for_template(self) -> dict[str, Any]:
        message = self.model_dump(exclude_none=True)
        if isinstance(self.content, list):
            message["content"] = "".join(part.text for part in self.content)
        return message


class ChatRequest(_Generation):
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: int | None = Field(None, gt=0)

    @property
    def output_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(_Generation):
    prompt: str | Annotated[list[str], Field(min_length=1, max_length=1)] | Annotated[list[int], Field(min_length=1)]

    @property
    def output_limit(self) -> int:
        return self.max_tokens or DEFAULT_COMPLETION_TOKENS


def parse(kind: type[BaseModel], body: bytes) -> Any:
    """Raises InvalidRequest, naming the first field that is wrong."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "json_invalid":
            raise InvalidRequest(f"the body is not JSON: {first['msg']}") from error
        path = [str(step) for step in first["loc"]]
        field = path[0] if path else None
        raise InvalidRequest(f"{'.'.join(path) or 'the body'}: {first['msg']}", param=field) from error


def error_payload(error: InvalidRequest) -> dict[str, Any]:
    kind = "not_found_error" if error.status == 404 else "invalid_request_error"
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}


def server_error_payload(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "server_error", "param": None, "code": None}}


def usage_payload(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


class Reply:
    """Builds the payloads of one reply: `whole`, or a stream's `head`, `pieces` and `usage`."""

    def __init__(self, *, chat: bool, model: str) -> None:
        self._chat = chat
        self._kind = "chat.completion" if chat else "text_completion"
        self._id = f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._model = model
        self._created = int(time.time())

    def whole(self, text: str, reason: FinishReason, usage: Usage) -> dict[str, Any]:
        content = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        payload = self._payload(self._kind, [self._choice(content, reason)])
        return payload | {"usage": usage_payload(usage)}

    def head(self) -> Sequence[dict[str, Any]]:
        """A chat begins with its role."""
        role = {"delta": {"role": "assistant", "content": ""}}
        return [self._chunk([self._choice(role, None)])] if self._chat else []

    def pieces(self, output: Output) -> Sequence[dict[str, Any]]:
        payloads = []
        content: dict[str, Any]
        if output.text:
            content = {"delta": {"content": output.text}} if self._chat else {"text": output.text}
            payloads.append(self._chunk([self._choice(content, None)]))
        if output.finish_reason is not None:
            content = {"delta": {}} if self._chat else {"text": ""}
            payloads.append(self._chunk([self._choice(content, output.finish_reason)]))
        return payloads

    def usage(self, usage: Usage) -> dict[str, Any]:
        return self._chunk([]) | {"usage": usage_payload(usage)}

    def _choice(self, content: dict[str, Any], reason: FinishReason | None) -> dict[str, Any]:
        return {"index": 0, **content, "logprobs": None, "finish_reason": reason}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._payload("chat.completion.chunk" if self._chat else self._kind, choices)

    def _payload(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model, "choices": choices}
