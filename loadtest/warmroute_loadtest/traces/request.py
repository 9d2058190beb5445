"""What a trace is: requests with their arrival, their lengths and the names of their prefix blocks."""

from array import array
from dataclasses import dataclass
from typing import NamedTuple


class TraceError(Exception):
    """The trace cannot be read. The message is one line, for the person who named the trace."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One prompt and the length of its answer.

    arrival: seconds from the trace's start.
    block_ids: one uint64 for each *full* block of the prompt, first block first. An id stands for the block and
        everything before it: equal id, equal whole prefix, anywhere in the trace. The rest that fills no block has
        no id, as no engine can reuse it: `len(block_ids) <= input_tokens // block_tokens`, on every request.
    session: the conversation that the request belongs to, None where the trace does not say.
    """

    arrival: float
    block_ids: "array[int]"
    input_tokens: int
    output_tokens: int
    session: str | None


class Trace(NamedTuple):
    """Requests in the order of their arrival. Of equal arrivals, the one that the file names first comes first."""

    name: str
    block_tokens: int
    requests: list[TraceRequest]
    skipped: int
    """Malformed lines (of a JSON list: entries) that were left out."""

    @property
    def ceiling(self) -> float:
        """The hit rate that nobody can beat: one cache for all, unbounded, filled the moment a request arrives.

        It is the share of all prompt tokens that lie in leading blocks which earlier requests had too. Only full
        blocks count, so a prompt's last partial block is computed anew even where the whole prompt was seen before.
        0.0 for a trace without prompt tokens.
        """
        seen: set[int] = set()
        reused = total = 0
        for request in self.requests:
            known = leading(request.block_ids, seen)
            reused += known * self.block_tokens
            total += request.input_tokens
            seen.update(request.block_ids[known:])
        return reused / total if total else 0.0


def leading(block_ids: "array[int]", seen: set[int]) -> int:
    """How many blocks from the first on are in `seen`.

    An id names its whole prefix, so that whoever has block i has all before it: a binary search finds the end.
    """
    low, high = 0, len(block_ids)
    while low < high:
        middle = (low + high) // 2
        if block_ids[middle] in seen:
            low = middle + 1
        else:
            high = middle
    return low
