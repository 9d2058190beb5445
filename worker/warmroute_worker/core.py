"""The engine's nouns: a request on its way from tokens to text, and the spans of tokens that one step computes."""

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from .prefix_cache import Node
from .text import OutputText


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    max_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


class Usage(NamedTuple):
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Output(NamedTuple):
    """What one step adds to an answer."""

    text: str
    finish_reason: FinishReason | None
    usage: Usage


@dataclass(eq=False, slots=True)
class Request:
    """Lives in one engine. Its tokens are the prompt and then the output; `computed` of them have their K and V.

    `row[:capacity]` are the pool slots that it may use, of which `row[:shared]` belong to the prefix cache (they are
    locked at `node`) and the rest to the request alone.
    """

    prompt: "array[int]"
    params: SamplingParams
    output: OutputText
    deliver: Callable[[Output], None]
    """Called by the engine's thread."""
    salt: str = ""
    tokens: "array[int]" = field(init=False)
    computed: int = 0
    cached_tokens: int | None = None
    """Prompt tokens adopted from the cache at the first admission, fixed from then on."""
    row: int | None = None
    capacity: int = 0
    shared: int = 0
    node: Node | None = None
    told: int = 0
    """So many of its first slots are as attention was told them in an earlier step."""
    passed_over: int = 0
    arrived: float = field(default_factory=time.monotonic)
    finished: FinishReason | None = None

    def __post_init__(self) -> None:
        self.tokens = self.prompt[:]

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - len(self.prompt)

    @property
    def prefilling(self) -> bool:
        """More than the newest token is still to be computed."""
        return self.computed < len(self.tokens) - 1 or not self.output_tokens

    @property
    def usage(self) -> Usage:
        return Usage(len(self.prompt), self.cached_tokens or 0, self.output_tokens)


class Span(NamedTuple):
    """`tokens[start:end]` of a request, to be computed in one step."""

    request: Request
    start: int
    end: int

    @property
    def samples(self) -> bool:
        """Whether this span reaches the newest token, so that the next one can be sampled."""
        return self.end == len(self.request.tokens)
