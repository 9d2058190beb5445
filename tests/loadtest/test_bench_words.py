"""Text from the ids of blocks."""

from array import array

from hypothesis import given
from hypothesis import strategies as st
from warmroute_loadtest.bench.words import WORDS, Words
from warmroute_loadtest.traces import TraceRequest
from warmroute_worker.model.loader import open_checkpoint

BLOCK = 8
"""Tokens: 32 bytes of text."""

id_lists = st.lists(st.integers(0, 2**64 - 1), max_size=6)


def request(ids: list[int], rest: int) -> TraceRequest:
    return TraceRequest(0.0, array("Q", ids), len(ids) * BLOCK + rest, 1, None)


def block_of(text: str, place: int) -> str:
    return text[place * BLOCK * 4 : (place + 1) * BLOCK * 4]


def test_there_are_256_words() -> None:
    words = WORDS.split()
    assert len(words) == len(set(words)) == 256
    assert {len(word) for word in words} == {3}


@given(ids=id_lists, rest=st.integers(0, 40), number=st.integers(0, 10**6), seed=st.integers(0, 10**6))
def test_a_prompt_is_as_long_as_asked_and_made_of_words(ids: list[int], rest: int, number: int, seed: int) -> None:
    text = Words(BLOCK, seed).prompt(request(ids, rest), number)
    assert len(text) == 4 * (len(ids) * BLOCK + rest)
    assert set(text.split()) <= set(WORDS.split())
    assert text == "".join(f" {word}" for word in text.split())


@given(one=id_lists, other=id_lists)
def test_equal_ids_give_equal_text_and_others_do_not(one: list[int], other: list[int]) -> None:
    mine = Words(BLOCK, 0).prompt(request(one, 3), 1)
    theirs = Words(BLOCK, 0).prompt(request(other, 3), 2)
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        assert (block_of(mine, place) == block_of(theirs, place)) == (left == right)


def test_the_rest_is_each_requests_own() -> None:
    words = Words(BLOCK, 0)
    prompts = [words.prompt(request([7], 8), number) for number in range(500)]
    assert {prompt[: BLOCK * 4] for prompt in prompts} == {prompts[0][: BLOCK * 4]}
    assert len(set(prompts)) == 500
    assert words.own(20, 1) != words.own(20, 1, part=1)


def test_another_seed_gives_other_text() -> None:
    assert Words(BLOCK, 0).prompt(request([7], 8), 0) == Words(BLOCK, 0).prompt(request([7], 8), 0)
    one, other = (Words(BLOCK, seed).prompt(request([7], 8), 0) for seed in (0, 1))
    assert block_of(one, 0) != block_of(other, 0)
    assert block_of(one, 1) != block_of(other, 1)


def test_what_is_kept_is_bounded() -> None:
    words = Words(1 << 20, 0)  # 4 MB of text each
    assert words._block.cache_parameters()["maxsize"] == 16


def test_a_real_tokenizer_reads_a_token_for_each_word() -> None:
    tokenizer = open_checkpoint("smollm2-135m").tokenizer
    assert len(tokenizer.encode(" " + WORDS)) == 256
    assert len(tokenizer.encode(Words(BLOCK, 0).prompt(request(list(range(50)), 5), 0))) == 405
