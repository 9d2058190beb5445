"""The bytes of answers, in OpenAI's shapes."""

from functools import cache, lru_cache

_SENTENCE = b"the old dog ran out and saw its own red hat lie far off the sea "
"""Sixteen tokens of four bytes."""
_TOKEN_BYTES = 4
_WORDS = len(_SENTENCE) // _TOKEN_BYTES


def text(start: int, tokens: int) -> bytes:
    """So many tokens of an answer, from one of them on."""
    first = start % _WORDS * _TOKEN_BYTES
    return (_SENTENCE * (tokens // _WORDS + 2))[first : first + tokens * _TOKEN_BYTES]


@cache
def opening(chat: bool, streamed: bool) -> bytes:
    """What comes before the choices; takes a number, the time, and the model's name as JSON."""
    name = b"chatcmpl" if chat else b"cmpl"
    kind = (b"chat.completion.chunk" if streamed else b"chat.completion") if chat else b"text_completion"
    return b'{"id":"%b-%%d","object":"%b","created":%%d,"model":%%b,"choices":[' % (name, kind)


def whole(opened: bytes, tokens: int, usage: bytes, *, chat: bool) -> bytes:
    said = b'"message":{"role":"assistant","content":"%b"}' if chat else b'"text":"%b"'
    form = b'%b{"index":0,' + said + b',"logprobs":null,"finish_reason":"length"}],"usage":%b}'
    return form % (opened, text(0, tokens), usage)


def event(opened: bytes, start: int, tokens: int, *, chat: bool, last: bool) -> bytes:
    """A part of the text."""
    return b"data: %b%b]}\n\n" % (opened, _part(chat, start == 0, last, start % _WORDS, tokens))


@lru_cache(maxsize=128)
def _part(chat: bool, first: bool, last: bool, start: int, tokens: int) -> bytes:
    """Its choice: there are few, since words come again."""
    role = b'"role":"assistant",' if first else b""
    said = (
        b'"delta":{%b"content":"%b"}' % (role, text(start, tokens)) if chat else b'"text":"%b"' % text(start, tokens)
    )
    return b'{"index":0,%b,"finish_reason":%b}' % (said, b'"length"' if last else b"null")


def usage_event(opened: bytes, usage: bytes) -> bytes:
    return b'data: %b],"usage":%b}\n\n' % (opened, usage)


DONE = b"data: [DONE]\n\n"


def usage(prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> bytes:
    return (
        b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}'
        % (prompt_tokens, completion_tokens, prompt_tokens + completion_tokens, cached_tokens)
    )
