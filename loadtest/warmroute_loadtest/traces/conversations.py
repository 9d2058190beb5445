"""Text conversations: ShareGPT, OpenAI messages, and the trajectories of tau-bench and SWE-agent.

None of them says when anything was sent. Conversations start as a Poisson process; inside one, the next turn comes
when the answer has been written at 50 tokens/s and the user has thought for 10 s (`arrivals.next_turn`).
"""

from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import NamedTuple, TypeAlias

from warmroute_router.blocks import BLOCK_TOKENS

from .arrivals import start_sessions
from .formats import Format, Options, Requests
from .request import TraceRequest
from .source import Json, Source
from .text import conversation_requests

Message: TypeAlias = dict[str, Json]

_SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "tool": "tool",
}


class _Layout(NamedTuple):
    """Where an entry keeps its messages, and what else tells it from the others."""

    name: str
    messages_field: str
    other_fields: frozenset[str] = frozenset()
    message: Callable[[Message], Message] = lambda message: message


def _from_sharegpt(message: Message) -> Message:
    return {"role": _SHAREGPT_ROLES[message["from"]], "content": message["value"]}


def _format(layout: _Layout) -> Format:
    needed = layout.other_fields | {layout.messages_field}

    def holds(entry: dict[str, Json]) -> bool:
        return needed <= entry.keys() and isinstance(entry[layout.messages_field], list)

    def read(source: Source, options: Options) -> Requests:
        requests = start_sessions(_sessions(source, layout), options.sessions_per_s)
        return Requests(BLOCK_TOKENS, list(islice(requests, options.limit)))

    return Format(layout.name, holds, read)


def _sessions(source: Source, layout: _Layout) -> Iterator[list[TraceRequest]]:
    numbers = count(1)

    def parse(entry: Json) -> list[TraceRequest]:
        number = next(numbers)
        messages = [layout.message(message) for message in _list(entry[layout.messages_field])]
        return conversation_requests(messages, entry, _session(entry, number))

    # Real ShareGPT files are full of conversations in which nobody answers: they are not malformed, and not sessions.
    return filter(None, source.parsed(parse))


def _session(entry: Json, number: int) -> str:
    if "task_id" in entry and "trial" in entry:
        return f"{entry['task_id']}/{entry['trial']}"
    return str(entry.get("id", number))


def _list(value: Json) -> list[Message]:
    if not isinstance(value, list):
        raise TypeError("the messages are not a list")
    return value


SHAREGPT = _format(_Layout("sharegpt", "conversations", message=_from_sharegpt))
MESSAGES = _format(_Layout("messages", "messages"))
TAU_BENCH = _format(_Layout("tau-bench", "traj", frozenset({"task_id", "trial"})))
SWE_AGENT = _format(_Layout("swe-agent", "history"))
