"""Plays the demo's chats through a router, and notes for each turn what the engine reported and how long it took."""

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import httpx
import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .chats import Conversation, conversations, system_prompts

PROMPTS = 6
CONVERSATIONS_PER_PROMPT = 2
TURNS = 4
ANSWER_TOKENS = 24
CONCURRENCY = 4
"""Conversations in flight at a time."""
_TIMEOUT = httpx.Timeout(300.0)


class Turn(NamedTuple):
    conversation: int
    worker: str
    ttft: float
    """Seconds from the request to the first byte of the answer's body."""
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Play:
    """The same conversations, from cold caches, as often as it is run."""

    def __init__(self, workers: Sequence[str], prompts: dict[str, str], prompt_tokens: dict[str, int]) -> None:
        self._workers = workers
        self._prompts = prompts
        self._prompt_tokens = prompt_tokens

    @classmethod
    async def prepare(cls, workers: Sequence[str]) -> "Play":
        """Has a worker count the tokens of each system prompt, for `working_set`."""
        prompts = system_prompts(PROMPTS)
        tokens = {}
        async with httpx.AsyncClient(timeout=_TIMEOUT) as client:
            for house, prompt in prompts.items():
                asked = {"messages": [{"role": "system", "content": prompt}], "max_tokens": 1}
                reply = await client.post(f"{workers[0]}/v1/chat/completions", json=asked)
                tokens[house] = reply.raise_for_status().json()["usage"]["prompt_tokens"]
        return cls(workers, prompts, tokens)

    async def run(self, url: str, title: str, console: Console) -> list[Turn]:
        chats = conversations(self._prompts, CONVERSATIONS_PER_PROMPT, TURNS)
        turns: list[Turn] = []
        columns = (TextColumn("{task.description:>12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        limit = asyncio.Semaphore(CONCURRENCY)
        async with httpx.AsyncClient(timeout=_TIMEOUT) as client:
            await self._flush(client)
            with Progress(*columns, console=console) as progress:
                task = progress.add_task(title, total=len(chats) * TURNS)

                async def take(number: int, chat: Conversation) -> None:
                    async with limit:
                        turns.append(await _turn(client, url, number, chat))
                    progress.advance(task)

                # Everybody's first turn, then everybody's second, each time in another order: people are not in step,
                # and an order that repeats would make round robin sticky by accident.
                order = random.Random(0)
                for _ in range(TURNS):
                    turn = order.sample(list(enumerate(chats)), len(chats))
                    await asyncio.gather(*(take(number, chat) for number, chat in turn))
        return turns

    async def _flush(self, client: httpx.AsyncClient) -> None:
        for worker in self._workers:
            (await client.post(f"{worker}/flush_cache")).raise_for_status()

    def working_set(self, turns: Sequence[Turn]) -> int:
        """Tokens that one cache without a bound would hold in the end: each system prompt and each chat once."""
        chats = conversations(self._prompts, CONVERSATIONS_PER_PROMPT, TURNS)
        longest = dict.fromkeys(range(len(chats)), 0)
        for turn in turns:
            longest[turn.conversation] = max(longest[turn.conversation], turn.prompt_tokens + turn.completion_tokens)
        own = sum(longest[number] - self._prompt_tokens[chat.house] for number, chat in enumerate(chats))
        return sum(self._prompt_tokens.values()) + own


async def _turn(client: httpx.AsyncClient, url: str, number: int, chat: Conversation) -> Turn:
    body = {
        "messages": chat.ask(),
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.perf_counter()
    first_byte = 0.0
    text: list[str] = []
    usage: dict[str, Any] = {}
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            first_byte = first_byte or time.perf_counter()
            if line.startswith("data: {"):
                event = orjson.loads(line[6:])
                usage = event.get("usage") or usage
                text.extend(choice["delta"].get("content", "") for choice in event.get("choices", ()))
    chat.answered("".join(text))
    return Turn(
        conversation=number,
        worker=reply.headers["x-warmroute-worker"],
        ttft=first_byte - started,
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
        completion_tokens=usage["completion_tokens"],
    )
