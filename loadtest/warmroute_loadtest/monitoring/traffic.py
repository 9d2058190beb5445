"""Chats that share system prompts, all the time: what a fleet with caches is there for."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple

import httpx

WORDS = ("cache", "prefix", "router", "worker", "token", "warm", "block", "queue", "model", "prompt", "load", "tree")


class Shape(NamedTuple):
    """Of the chats that go on at the same time, each with one of the system prompts of its model."""

    models: Sequence[str]
    chats: int
    system_prompts: int
    system_words: int
    turns: int
    pause: float
    """Seconds between an answer and the next question, in the mean."""
    max_tokens: int = 16


async def chat_forever(url: str, shape: Shape, seed: int = 0) -> None:
    """Until it is cancelled. Answers are not looked at, whatever they are."""
    chances = random.Random(seed)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with (
        httpx.AsyncClient(base_url=url, timeout=60.0, limits=limits, trust_env=False) as http,
        asyncio.TaskGroup() as group,
    ):
        for number in range(shape.chats):
            group.create_task(_chats(http, shape, number, random.Random(chances.random())))


async def _chats(http: httpx.AsyncClient, shape: Shape, client: int, chances: random.Random) -> None:
    """One after the other."""
    for number in count():
        model = shape.models[(client + number) % len(shape.models)]
        topic = chances.randrange(shape.system_prompts)
        system = _text(random.Random(f"{model} {topic}"), shape.system_words)
        messages = [{"role": "system", "content": system}]
        for turn in range(shape.turns):
            messages.append({"role": "user", "content": _text(chances, 40)})
            await asyncio.sleep(chances.expovariate(1 / shape.pause))
            body = {"model": model, "messages": messages, "stream": turn % 3 > 0, "max_tokens": shape.max_tokens}
            await _send(http, body)
            messages.append({"role": "assistant", "content": _text(chances, 20)})


async def _send(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    with suppress(httpx.HTTPError):  # a worker or a router has just gone
        await http.post("/v1/chat/completions", json=body)


def _text(chances: random.Random, words: int) -> str:
    return " ".join(chances.choices(WORDS, k=words))
