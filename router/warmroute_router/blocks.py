"""Blocks: a prompt as a chain of hashes, each of which names the whole prefix up to it.

Long prompts are mostly others and some more. So what the hashes of a segment of one were is remembered, under a hash
of the segment: to find that takes a fourth of the time that hashing its blocks again would.
"""

import math
from array import array
from typing import NamedTuple

from xxhash import xxh3_64_intdigest, xxh3_128_digest

BLOCK_BYTES = 256
BYTES_PER_TOKEN = 4
"""A first estimate, good for English text: what a prompt weighs before an engine has said how long it was."""
BLOCK_TOKENS = BLOCK_BYTES // BYTES_PER_TOKEN
_SEGMENT_BYTES = 32 * BLOCK_BYTES
_MOST_SEGMENTS = 8192
"""Some 4 MB, for 64 MB of text."""
_segments: "dict[bytes, array[int]]" = {}
"""By the segment's 128-bit hash, seeded by the chain before it: the hashes of its blocks. Last used, last dropped."""


class PromptBlocks(NamedTuple):
    """What routing knows of a prompt.

    hashes: one uint64 for each full block; equal at i implies equal before i.
    digest: the chain's last link, over the rest that fills no block: names the whole prompt.
    tokens: the prompt's length, estimated from its bytes.
    block_tokens: tokens of one full block, by the same estimate.
    session: what the client calls its session, hashed; 0 where it calls it nothing.
    streamed: whether the answer comes as it is made, so that its first byte tells that the prompt is computed.
    model: its name, as the client says; empty where it says none.
    """

    hashes: "array[int]"
    digest: int
    tokens: int
    block_tokens: float = BLOCK_TOKENS
    session: int = 0
    streamed: bool = True
    model: str = ""


def hash_blocks(
    key: bytes,
    namespace: bytes = b"",
    *,
    tokens_per_byte: float = 1 / BYTES_PER_TOKEN,
    session: int = 0,
    streamed: bool = True,
    model: str = "",
) -> PromptBlocks:
    chain = xxh3_64_intdigest(namespace)
    hashes = array("Q")
    full = len(key) - len(key) % BLOCK_BYTES
    rest = full - full % _SEGMENT_BYTES
    for start in range(0, rest, _SEGMENT_BYTES):
        hashes += _hash_segment(key[start : start + _SEGMENT_BYTES], chain)
        chain = hashes[-1]
    if full > rest:
        hashes += _chained(key[rest:full], chain)
        chain = hashes[-1]
    digest = xxh3_64_intdigest(key[full:], chain)
    tokens = math.ceil(len(key) * tokens_per_byte)
    return PromptBlocks(hashes, digest, tokens, BLOCK_BYTES * tokens_per_byte, session, streamed, model)


def _chained(blocks: bytes, chain: int) -> "array[int]":
    hashes = array("Q")
    append = hashes.append
    for start in range(0, len(blocks), BLOCK_BYTES):
        chain = xxh3_64_intdigest(blocks[start : start + BLOCK_BYTES], chain)
        append(chain)
    return hashes


def _hash_segment(segment: bytes, chain: int) -> "array[int]":
    name = xxh3_128_digest(segment, chain)
    hashes = _segments.pop(name, None)
    if hashes is None:
        hashes = _chained(segment, chain)
        if len(_segments) >= _MOST_SEGMENTS:
            del _segments[next(iter(_segments))]
    _segments[name] = hashes
    return hashes
