"""Made workloads, each a pure function of its parameters and a seed.

`rate` is requests per second (in `multi_turn`, sessions per second), of a Poisson process. A prompt is said by its
blocks alone: whatever two prompts share is shared in whole blocks, the block in which they part is each one's own.
Lengths called `..._tokens` are exact where prompts share them, and elsewhere vary evenly by half to either side.
"""

import random
from array import array
from collections.abc import Callable, Iterable, Iterator

from warmroute_router.blocks import BLOCK_TOKENS

from .arrivals import next_turn, start_sessions
from .request import Trace, TraceRequest


class _Prompts:
    """Draws lengths, and hands out ids that nobody else has."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self._used = 0

    def about(self, tokens: int) -> int:
        return self.draw.randint(tokens - tokens // 2, tokens + tokens // 2)

    def grown(self, prefix: "array[int]", tokens: int) -> "array[int]":
        """The ids of a prompt of so many tokens that begins with this prefix's full blocks."""
        new = max(0, tokens // BLOCK_TOKENS - len(prefix))
        self._used += new
        return prefix + array("Q", range(self._used - new, self._used))

    def prefixes(self, count: int, tokens: int, base: "array[int] | None" = None) -> "list[array[int]]":
        return [self.grown(array("Q") if base is None else base, tokens) for _ in range(count)]

    def ask(self, prefix: "array[int]", prefix_tokens: int, question_tokens: int, output_tokens: int) -> TraceRequest:
        """A question on a prefix, and never asked before. It arrives at 0."""
        tokens = prefix_tokens + question_tokens
        return TraceRequest(0.0, self.grown(prefix, tokens), tokens, output_tokens, None)


def multi_turn(
    sessions: int = 200,
    turns: int = 8,
    system_prompts: int = 4,
    system_tokens: int = 1024,
    question_tokens: int = 128,
    output_tokens: int = 256,
    think_s: float = 10.0,
    rate: float = 1.0,
    seed: int = 0,
) -> Trace:
    """Chats on a few system prompts; each turn's prompt is all that was said before it, and a new question."""
    prompts = _Prompts(seed)
    systems = prompts.prefixes(system_prompts, system_tokens)

    def session(number: int) -> Iterator[TraceRequest]:
        ids, length, arrival = prompts.draw.choice(systems), system_tokens, 0.0
        for _ in range(turns):
            length += prompts.about(question_tokens)
            ids = prompts.grown(ids, length)
            answer = prompts.about(output_tokens)
            yield TraceRequest(arrival, ids, length, answer, f"chat-{number}")
            length += answer
            arrival = next_turn(arrival, answer, think_s)

    chats = (list(session(number)) for number in range(sessions))
    return Trace("multi_turn", BLOCK_TOKENS, list(start_sessions(chats, rate, seed)), 0)


def shared_prompt(
    requests: int = 1000,
    system_tokens: int = 2048,
    question_tokens: int = 128,
    output_tokens: int = 256,
    rate: float = 10.0,
    seed: int = 0,
) -> Trace:
    """One system prompt under everything: present on every worker, so that only load should decide."""
    return _hot_prefixes("shared_prompt", requests, [1.0], system_tokens, question_tokens, output_tokens, rate, seed)


def rag(
    requests: int = 1000,
    documents: int = 20,
    system_tokens: int = 256,
    document_tokens: int = 4096,
    question_tokens: int = 64,
    output_tokens: int = 256,
    rate: float = 10.0,
    seed: int = 0,
) -> Trace:
    """Few documents and many questions on each, behind one short system prompt."""
    prompts = _Prompts(seed)
    context = system_tokens + document_tokens
    (system,) = prompts.prefixes(1, system_tokens)
    books = prompts.prefixes(documents, context, system)
    asked = (
        prompts.ask(prompts.draw.choice(books), context, prompts.about(question_tokens), prompts.about(output_tokens))
        for _ in range(requests)
    )
    return _timed("rag", asked, rate, seed)


def few_shot(
    requests: int = 1000,
    tasks: int = 16,
    shots: int = 5,
    shot_tokens: int = 256,
    question_tokens: int = 64,
    output_tokens: int = 64,
    rate: float = 10.0,
    seed: int = 0,
) -> Trace:
    """Tasks with 1 to `shots` examples before the question; fewer examples are a prefix of more."""
    prompts = _Prompts(seed)
    examples = prompts.prefixes(tasks, shots * shot_tokens)

    def ask() -> TraceRequest:
        shown = prompts.draw.randint(1, shots) * shot_tokens
        prefix = prompts.draw.choice(examples)[: shown // BLOCK_TOKENS]
        return prompts.ask(prefix, shown, prompts.about(question_tokens), prompts.about(output_tokens))

    return _timed("few_shot", (ask() for _ in range(requests)), rate, seed)


def unique(
    requests: int = 1000, input_tokens: int = 1024, output_tokens: int = 256, rate: float = 10.0, seed: int = 0
) -> Trace:
    """Nothing is shared: what a cache-aware policy must not make worse."""
    prompts = _Prompts(seed)
    asked = (
        prompts.ask(array("Q"), 0, prompts.about(input_tokens), prompts.about(output_tokens)) for _ in range(requests)
    )
    return _timed("unique", asked, rate, seed)


def zipf(
    requests: int = 1000,
    prefixes: int = 100,
    skew: float = 1.0,
    prefix_tokens: int = 2048,
    question_tokens: int = 128,
    output_tokens: int = 256,
    rate: float = 10.0,
    seed: int = 0,
) -> Trace:
    """Hot prefixes: the k-th is asked for in proportion to 1 / k ** skew."""
    weights = [(rank + 1) ** -skew for rank in range(prefixes)]
    return _hot_prefixes("zipf", requests, weights, prefix_tokens, question_tokens, output_tokens, rate, seed)


def generated_shared_prefix(
    groups: int = 64,
    prompts_per_group: int = 16,
    system_tokens: int = 2048,
    question_tokens: int = 128,
    output_tokens: int = 256,
    rate: float = 10.0,
    seed: int = 0,
) -> Trace:
    """sglang's `generated-shared-prefix` with its defaults: exact lengths, all groups' prompts shuffled together."""
    prompts = _Prompts(seed)
    asked = [
        prompts.ask(system, system_tokens, question_tokens, output_tokens)
        for system in prompts.prefixes(groups, system_tokens)
        for _ in range(prompts_per_group)
    ]
    prompts.draw.shuffle(asked)
    return _timed("generated_shared_prefix", asked, rate, seed)


def prefix_repetition(
    requests: int = 1000,
    prefixes: int = 10,
    prefix_tokens: int = 256,
    suffix_tokens: int = 256,
    output_tokens: int = 128,
    rate: float = 10.0,
    seed: int = 0,
) -> Trace:
    """vLLM's `prefix_repetition` with its defaults: exact lengths, every prefix equally often, all shuffled."""
    prompts = _Prompts(seed)
    bases = prompts.prefixes(prefixes, prefix_tokens)
    asked = [
        prompts.ask(bases[number % prefixes], prefix_tokens, suffix_tokens, output_tokens)
        for number in range(requests)
    ]
    prompts.draw.shuffle(asked)
    return _timed("prefix_repetition", asked, rate, seed)


WORKLOADS: dict[str, Callable[..., Trace]] = {
    workload.__name__: workload
    for workload in (
        multi_turn,
        shared_prompt,
        rag,
        few_shot,
        unique,
        zipf,
        generated_shared_prefix,
        prefix_repetition,
    )
}


def _hot_prefixes(
    name: str,
    requests: int,
    weights: list[float],
    prefix_tokens: int,
    question_tokens: int,
    output_tokens: int,
    rate: float,
    seed: int,
) -> Trace:
    prompts = _Prompts(seed)
    prefixes = prompts.prefixes(len(weights), prefix_tokens)
    asked = (
        prompts.ask(prefix, prefix_tokens, prompts.about(question_tokens), prompts.about(output_tokens))
        for prefix in prompts.draw.choices(prefixes, weights, k=requests)
    )
    return _timed(name, asked, rate, seed)


def _timed(name: str, asked: Iterable[TraceRequest], rate: float, seed: int) -> Trace:
    """Single requests are sessions of one."""
    return Trace(name, BLOCK_TOKENS, list(start_sessions(([request] for request in asked), rate, seed)), 0)
