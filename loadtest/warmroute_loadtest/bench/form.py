"""The JSON of a request, as OpenAI's two endpoints for text want it."""

from collections.abc import Sequence
from itertools import cycle
from typing import Any, Literal, TypeAlias

import orjson

Endpoint: TypeAlias = Literal["chat", "completions"]
PATHS: dict[Endpoint, bytes] = {"chat": b"/v1/chat/completions", "completions": b"/v1/completions"}


class Form:
    def __init__(self, model: str, endpoint: Endpoint, *, stream: bool, ignore_eos: bool) -> None:
        """`ignore_eos` is no field of OpenAI's: vLLM and SGLang know it."""
        self.path = PATHS[endpoint]
        self._chat = endpoint == "chat"
        self._fields: dict[str, Any] = {"model": model, "stream": stream, "temperature": 0}
        if stream:
            self._fields["stream_options"] = {"include_usage": True}
        if ignore_eos:
            self._fields["ignore_eos"] = True

    def body(self, said: Sequence[str], max_tokens: int) -> bytes:
        """`said`: what the user and the model have said in turns, the user first and last."""
        fields = self._fields | {"max_tokens": max(1, max_tokens)}
        if self._chat:
            roles = cycle(("user", "assistant"))
            fields["messages"] = [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]
        else:
            fields["prompt"] = "".join(said)
        return orjson.dumps(fields)
