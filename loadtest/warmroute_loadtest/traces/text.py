"""Prompts that are text: cut into blocks as the router cuts them."""

from array import array
from collections.abc import Iterator
from typing import NamedTuple

import orjson
from warmroute_router.blocks import BLOCK_TOKENS, BYTES_PER_TOKEN, hash_blocks
from warmroute_router.prompt import read_prompt

from .arrivals import next_turn
from .request import TraceRequest
from .source import Json

_SHARED_FIELDS = ("model", "tools")
_ANSWER_FIELDS = ("content", "reasoning_content", "tool_calls", "function_call")


class TextPrompt(NamedTuple):
    block_ids: "array[int]"
    tokens: int


def text_prompt(path: str, body: dict[str, Json], block_tokens: int = BLOCK_TOKENS) -> TextPrompt:
    """The prompt of a request body; ValueError if the router would not understand it either.

    A hash names the whole prefix up to it, so that for blocks of n times the size every n-th hash is the block's id.
    """
    prompt = read_prompt(path, orjson.dumps(body))
    if prompt is None:
        raise ValueError("no prompt that the router understands")
    blocks = hash_blocks(prompt.key, prompt.namespace)
    ratio = block_tokens // BLOCK_TOKENS
    return TextPrompt(blocks.hashes[ratio - 1 :: ratio], blocks.tokens)


def conversation_requests(
    messages: list[dict[str, Json]], shared: dict[str, Json], session: str
) -> list[TraceRequest]:
    """One request for each assistant's turn that has anything before it: the messages before it as the prompt.

    `shared` may hold the request's other fields that belong to the prompt. Arrivals count from the first request.
    """
    fields = {field: shared[field] for field in _SHARED_FIELDS if shared.get(field) is not None}
    requests: list[TraceRequest] = []
    arrival = 0.0
    for turn in _answers(messages):
        prompt = text_prompt("/v1/chat/completions", {**fields, "messages": messages[:turn]})
        output_tokens = _answer_tokens(messages[turn])
        requests.append(TraceRequest(arrival, prompt.block_ids, prompt.tokens, output_tokens, session))
        arrival = next_turn(arrival, output_tokens)
    return requests


def _answers(messages: list[dict[str, Json]]) -> Iterator[int]:
    for turn, message in enumerate(messages):
        if turn and message["role"] == "assistant":
            yield turn


def _answer_tokens(message: dict[str, Json]) -> int:
    """What the model had to write, calls of tools included: by its bytes, and at least one token."""
    parts = [message[field] for field in _ANSWER_FIELDS if message.get(field)]
    size = sum(len(part.encode() if isinstance(part, str) else orjson.dumps(part)) for part in parts)
    return max(1, -(-size // BYTES_PER_TOKEN))
