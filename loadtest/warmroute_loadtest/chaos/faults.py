"""What can be wrong with a worker, by name."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Health = Literal["up", "503", "hang", "close"]
"""How a worker answers probes; of its own, since a worker may be up and broken, or down and fine."""


class Kind(StrEnum):
    """A request meets one of these. `k` is `Fault.after`."""

    NONE = "none"
    # Before the first byte of an answer's body: somebody else can still have the request.
    REFUSE = "refuse"
    """The port refuses; idle connections are closed."""
    ACCEPT_AND_HANG = "accept_and_hang"
    """Takes connections, reads no bodies, answers nothing."""
    DIE_BEFORE_FIRST_BYTE = "die_before_first_byte"
    """Reads the request, then resets the connection."""
    DIE_AFTER_HEAD = "die_after_head"
    """The head of a good answer, then the connection is closed."""
    GARBAGE = "garbage"
    """Bytes that are not HTTP."""
    STATUS = "status"
    """An answer with `Fault.status` and a JSON error."""
    EARLY_RESPONSE = "early_response"
    """A `Fault.status` that comes before the request's body has been read."""
    CLOSE_ON_REUSE = "close_on_reuse"
    """Good answers, but a connection's second request finds it closed."""
    HUGE_HEADER = "huge_header"
    """A megabyte of one header, then a good answer."""
    # After it: whoever reads has a part of an answer.
    DIE_MID_STREAM = "die_mid_stream"
    """`k` pieces, then the connection is closed."""
    RST_MID_STREAM = "rst_mid_stream"
    """`k` pieces, then the connection is reset."""
    STALL = "stall"
    """`k` pieces, then nothing for ever."""
    BAD_CHUNKING = "bad_chunking"
    """`k` pieces, then a chunk whose size is not a number."""
    LENGTH_TOO_LONG = "length_too_long"
    """`Content-Length` promises more than comes."""
    LENGTH_TOO_SHORT = "length_too_short"
    """More comes than `Content-Length` promises."""
    HUGE = "huge"
    """A body of `Fault.size` bytes."""
    # No fault at all for whoever is patient, or keeps to the standard.
    TRICKLE = "trickle"
    """A good answer, one byte at a time, `Fault.seconds` between two."""
    SLOW = "slow"
    """`Fault.seconds`, then a good answer."""
    INTERIM = "interim"
    """A 100 and a 103, then a good answer."""
    CLOSE_IDLE = "close_idle"
    """Good answers; the connection is closed after `Fault.seconds` without a request."""


AFTER_FIRST_BYTE = frozenset(
    {
        Kind.DIE_MID_STREAM,
        Kind.RST_MID_STREAM,
        Kind.STALL,
        Kind.BAD_CHUNKING,
        Kind.LENGTH_TOO_LONG,
        Kind.LENGTH_TOO_SHORT,
        Kind.HUGE,
    }
)
"""A client sees a broken answer, since nothing can be repeated any more."""


@dataclass(frozen=True, slots=True)
class Fault:
    kind: Kind = Kind.NONE
    status: int = 503
    after: int = 2
    """Pieces of the answer that are sent before the fault; fewer than it has."""
    seconds: float = 0.01
    size: int = 1 << 30
    """Bytes."""


GOOD = Fault()
KILLED = Fault(Kind.REFUSE)
"""What a request meets whose worker's process ends."""
