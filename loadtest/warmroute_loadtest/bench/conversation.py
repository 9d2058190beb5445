"""What one client says: a single prompt, or a chat whose history holds what was really answered."""

from collections.abc import Sequence
from typing import NamedTuple

from ..traces import TraceRequest
from ..traces.arrivals import next_turn
from .form import Form
from .words import Words


class Reply(NamedTuple):
    think: float
    """Seconds that the user takes for it."""
    body: bytes


class Conversation:
    """`turns`: of a session. A prompt is the one before it, the answer that the trace expected, and a question."""

    def __init__(self, number: int, turns: Sequence[TraceRequest], words: Words, form: Form) -> None:
        """`number` sets it apart from all others, whose words it must not share by accident."""
        self._number = number
        self._turns = turns
        self._words = words
        self._form = form
        self._said: list[str] = []
        self._answered = 0
        self.arrival = turns[0].arrival
        self.session = turns[0].session

    def opening(self) -> bytes:
        """The body of the first request."""
        self._said.append(self._words.prompt(self._turns[0], self._number))
        return self._form.body(self._said, self._turns[0].output_tokens)

    def reply(self, answer: str) -> Reply | None:
        """What comes after this answer; None at the end."""
        self._answered += 1
        if self._answered == len(self._turns):
            return None
        earlier, turn = self._turns[self._answered - 1 : self._answered + 1]
        tokens = turn.input_tokens - earlier.input_tokens - earlier.output_tokens
        self._said += [answer, self._words.own(max(0, tokens), self._number, self._answered)]
        think = turn.arrival - next_turn(earlier.arrival, earlier.output_tokens, think_s=0.0)
        return Reply(max(0.0, think), self._form.body(self._said, turn.output_tokens))
