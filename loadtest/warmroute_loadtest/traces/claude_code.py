"""Claude Code sessions as kv-cache-tester captured them: one session an entry, sub-agents nested in it.

Ids mean something only inside their session, so that each is hashed together with the session's id. That two
sessions have equal `(tool_tokens, system_tokens)`, and so very likely the same head, is not encoded in the ids, and
is not guessed: between sessions nothing is shared. Sessions start as a Poisson process, requests keep their own time.
"""

from array import array
from collections.abc import Iterator
from itertools import islice

from xxhash import xxh3_64_intdigest

from .arrivals import start_sessions
from .formats import Format, Options, Requests
from .request import TraceRequest
from .source import Json, Source, full_blocks, seconds, tokens


class _Names(dict[int, int]):
    """The trace's id of each of a session's ids. A session repeats each many times, and is hashed once."""

    def __init__(self, scope: str) -> None:
        super().__init__()
        self._scope = xxh3_64_intdigest(scope.encode())
        self._last: list[int] = []
        self._named = array("Q")

    def __missing__(self, local: int) -> int:
        name = self[local] = xxh3_64_intdigest(int.to_bytes(local, 8, "little"), self._scope)
        return name

    def of(self, ids: Json) -> "array[int]":
        """A session's prompt mostly is the one before it and more: then only what it added is looked up."""
        if not isinstance(ids, list):
            raise TypeError("hash_ids is not a list")
        shared = min(len(ids), len(self._last))
        if ids[:shared] != self._last[:shared]:
            shared = 0
        named = self._named[:shared]
        named.extend(map(self.__getitem__, ids[shared:]))
        self._last, self._named = ids, named
        return named


class _Reader:
    def __init__(self) -> None:
        self.block_tokens = 0

    def session(self, entry: Json) -> list[TraceRequest]:
        block_tokens = tokens(entry["block_size"])
        if not block_tokens or self.block_tokens not in (0, block_tokens):
            raise ValueError(f"block_size is {block_tokens}, and was {self.block_tokens}")
        session = entry["id"]
        if not isinstance(session, str):
            raise TypeError("the session's id is no text")
        names = _Names("" if entry.get("hash_id_scope") == "global" else session)
        requests = [_request(call, start, names, block_tokens, session) for start, call in _calls(entry["requests"])]
        self.block_tokens = block_tokens
        requests.sort(key=lambda request: request.arrival)
        return requests


def _calls(requests: Json) -> Iterator[tuple[float, Json]]:
    """All calls of the model, with the time of whatever their own `t` counts from: a sub-agent's is its start."""
    nested = [(0.0, requests)]
    while nested:
        start, calls = nested.pop()
        for call in calls:
            if call["type"] == "subagent":
                nested.append((start + seconds(call["t"]), call["requests"]))
            else:
                yield start, call


def _request(call: Json, start: float, names: _Names, block_tokens: int, session: str) -> TraceRequest:
    input_tokens = tokens(call["in"])
    ids = full_blocks(names.of(call["hash_ids"]), input_tokens, block_tokens)
    return TraceRequest(start + seconds(call["t"]), ids, input_tokens, tokens(call["out"]), session)


def _holds(entry: dict[str, Json]) -> bool:
    return {"id", "block_size", "requests"} <= entry.keys()


def _read(source: Source, options: Options) -> Requests:
    reader = _Reader()
    sessions = filter(None, source.parsed(reader.session))
    requests = list(islice(start_sessions(sessions, options.sessions_per_s), options.limit))
    return Requests(reader.block_tokens, requests)


CLAUDE_CODE = Format("claude-code", _holds, _read)
