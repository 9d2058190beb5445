"""What is asked: a made workload or a file's trace, of the size that a run needs."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

from ..traces import Trace, TraceRequest, load_trace
from ..traces.synthetic import WORKLOADS
from .conversation import Conversation
from .form import Form
from .words import Words

_CHATS = frozenset({"multi_turn"})


@dataclass(frozen=True, slots=True)
class Workload:
    trace: Trace
    parameters: dict[str, Any] = field(default_factory=dict)
    """That made it, beside its name."""
    chats: bool = False
    """Whether the requests of a session are turns of a chat, each sent when the one before it has been answered.

    Otherwise each request stands by itself, whatever the answers are."""

    def record(self) -> dict[str, Any]:
        return {"name": self.trace.name, **self.parameters}

    def arrivals(self) -> Iterator[float]:
        """Of the conversations, as the trace has them."""
        return (turns[0].arrival for turns in self._sessions())

    def conversations(self, form: Form, seed: int) -> Iterator[Conversation]:
        """In the order of their arrival. Their text is made when it is asked for."""
        words = Words(self.trace.block_tokens, seed)
        return (Conversation(number, turns, words, form) for number, turns in enumerate(self._sessions()))

    def _sessions(self) -> Iterator[list[TraceRequest]]:
        if not self.chats:
            return ([request] for request in self.trace.requests)
        sessions: dict[str | None, list[TraceRequest]] = {}
        for request in self.trace.requests:
            sessions.setdefault(request.session, []).append(request)
        return iter(sessions.values())


def made_workload(spec: str, *, requests: int | None = None, starts: int | None = None, seed: int) -> Workload:
    """`NAME?parameter=value&...`, as the simulator writes it after `synthetic:`. Raises TraceError.

    requests: just so many where the workload has a number of them, and else the first so many.
    starts: how many conversations the run has time for, where nothing else says how many requests there are.
    """
    name, _, query = spec.partition("?")
    name = name.replace("-", "_")
    known = inspect.signature(WORKLOADS[name]).parameters if name in WORKLOADS else {}
    sizes = {"requests": requests or starts, "sessions": starts}
    chosen = {key: size for key, size in sizes.items() if key in known and size is not None} | {"seed": seed}
    given = dict(parse_qsl(query, keep_blank_values=True))
    trace = load_trace(f"synthetic:{name}?{urlencode(chosen | given)}", limit=requests)
    parameters = {key: type(each.default)((chosen | given).get(key, each.default)) for key, each in known.items()}
    return Workload(trace._replace(name=name), parameters, name in _CHATS)
