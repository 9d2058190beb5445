from hypothesis import given
from hypothesis import strategies as st
from warmroute_router.blocks import BLOCK_BYTES, hash_blocks


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
