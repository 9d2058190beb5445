from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from warmroute_router import blocks
from warmroute_router.blocks import BLOCK_BYTES, hash_blocks
from xxhash import xxh3_64_intdigest


@given(st.binary(max_size=3 * BLOCK_BYTES), st.binary(max_size=2 * BLOCK_BYTES), st.binary(max_size=2 * BLOCK_BYTES))
def test_equal_hashes_are_equal_prefixes(common: bytes, left: bytes, right: bytes) -> None:
    a, b = common + left, common + right
    hashes_a, hashes_b = hash_blocks(a).hashes, hash_blocks(b).hashes
    assert len(hashes_a) == len(a) // BLOCK_BYTES
    for index, (hash_a, hash_b) in enumerate(zip(hashes_a, hashes_b, strict=False)):
        end = (index + 1) * BLOCK_BYTES
        assert (hash_a == hash_b) == (a[:end] == b[:end])


@given(st.binary(max_size=2 * BLOCK_BYTES), st.binary(max_size=2 * BLOCK_BYTES))
def test_the_digest_names_the_whole_prompt(a: bytes, b: bytes) -> None:
    assert (hash_blocks(a).digest == hash_blocks(b).digest) == (a == b)


@given(
    st.integers(0, 100), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=4), st.data()
)
def test_long_prompts_have_the_chain_of_hashes_that_short_ones_have(
    size: int, made: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Whatever is remembered of other prompts."""
    for first, second in made:
        key = bytes([first]) * 8192 + bytes([second]) * 8192 + data.draw(st.binary(min_size=size, max_size=size))
        chain, expected = xxh3_64_intdigest(b"namespace"), []
        for start in range(0, len(key) - BLOCK_BYTES + 1, BLOCK_BYTES):
            chain = xxh3_64_intdigest(key[start : start + BLOCK_BYTES], chain)
            expected.append(chain)
        made_of = hash_blocks(key, b"namespace")
        assert made_of.hashes.tolist() == expected
        assert made_of.digest == xxh3_64_intdigest(key[len(expected) * BLOCK_BYTES :], chain)


def test_what_is_remembered_is_bounded_and_the_last_used_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered: dict[bytes, array[int]] = {}
    monkeypatch.setattr(blocks, "_segments", remembered)
    monkeypatch.setattr(blocks, "_MOST_SEGMENTS", 3)
    for letter in b"abcada":
        hash_blocks(bytes([letter]) * 8192)
    kept = [hash_blocks(bytes([letter]) * 8192).hashes for letter in b"cda"]
    assert list(remembered.values()) == kept


def test_namespaces_share_nothing() -> None:
    key = b"x" * (4 * BLOCK_BYTES)
    one, other = hash_blocks(key, b"one"), hash_blocks(key, b"other")
    assert not set(one.hashes) & set(other.hashes)
    assert one.digest != other.digest


def test_equal_blocks_at_other_places_differ() -> None:
    hashes = hash_blocks(b"x" * (4 * BLOCK_BYTES)).hashes
    assert len(set(hashes)) == 4


def test_a_token_is_reckoned_as_four_bytes() -> None:
    assert [hash_blocks(b"x" * length).tokens for length in (0, 1, 4, 5, 1024)] == [0, 1, 1, 2, 256]
