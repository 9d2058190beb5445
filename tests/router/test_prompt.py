import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from warmroute_router.prompt import Prompt, read_prompt

CHAT = "/v1/chat/completions"

texts = st.text(max_size=40)
contents = texts | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), max_size=3)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": contents}),
    max_size=6,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def read(path: str, payload: object) -> Prompt:
    prompt = read_prompt(path, orjson.dumps(payload))
    assert prompt is not None
    return prompt


@given(messages, messages)
def test_the_key_of_a_turn_is_a_prefix_of_the_next_turns(earlier: list[object], later: list[object]) -> None:
    before = read(CHAT, {"model": "m", "messages": earlier})
    after = read(CHAT, {"model": "m", "messages": earlier + later})
    assert after.namespace == before.namespace
    assert after.key.startswith(before.key)


def test_the_key_follows_the_order_of_a_chat_template() -> None:
    key = read(
        CHAT,
        {
            "messages": [
                {"role": "system", "content": "SYSTEM"},
                {"role": "user", "content": [{"type": "text", "text": "QUESTION"}]},
                {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "CALL"}}]},
                {"role": "tool", "tool_call_id": "ID", "content": "RESULT"},
            ],
            "tools": [{"function": {"name": "TOOL"}}],
        },
    ).key
    order = [b"TOOL", b"SYSTEM", b"QUESTION", b"CALL", b"RESULT"]
    places = [key.index(word) for word in order]
    assert places == sorted(places)
    assert b"ID" in key


def test_roles_are_part_of_the_key() -> None:
    keys = {read(CHAT, {"messages": [{"role": role, "content": "hi"}]}).key for role in ("user", "system")}
    assert len(keys) == 2


def test_a_list_of_text_parts_is_the_text() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert (
        read(CHAT, {"messages": [{"role": "user", "content": parts}]}).key
        == read(CHAT, {"messages": [{"role": "user", "content": "one two"}]}).key
    )


def test_images_are_told_apart_by_their_bytes_and_weigh_little() -> None:
    def key(url: str) -> bytes:
        part = {"type": "image_url", "image_url": {"url": url}}
        return read(CHAT, {"messages": [{"role": "user", "content": [part]}]}).key

    large = "data:image/png;base64," + "A" * 100_000
    assert key(large) != key(large + "B")
    assert key(large) == key(large)
    assert len(key(large)) < 64


def test_a_cache_marker_that_moves_between_turns_is_not_part_of_the_key() -> None:
    part = {"type": "tool_result", "tool_use_id": "t", "content": "42"}
    marked = part | {"cache_control": {"type": "ephemeral"}}
    keys = {read("/v1/messages", {"messages": [{"role": "user", "content": [each]}]}).key for each in (part, marked)}
    assert len(keys) == 1


@pytest.mark.parametrize("field", ["model", "cache_salt", "lora_path"])
def test_a_namespace_for_each_model_adapter_and_salt(field: str) -> None:
    spaces = {read(CHAT, {field: value, "messages": []}).namespace for value in ("a", "b")}
    spaces.add(read(CHAT, {"messages": []}).namespace)
    assert len(spaces) == 3


def test_each_api_reads_its_own_fields() -> None:
    assert read("/v1/completions", {"prompt": "once upon"}).key == b"once upon"
    assert read("/v1/completions", {"prompt": ["once upon", "a time"]}).key.startswith(b"once upon")
    assert read("/v1/completions", {"prompt": [1, 258]}).key == b"\x01\0\0\0\x02\x01\0\0"
    assert read("/v1/completions", {"prompt": [[1], [2]]}).key.startswith(b"\x01\0\0\0")
    assert read("/generate", {"text": "once upon"}).key == b"once upon"
    assert read("/generate", {"input_ids": [1]}).key == b"\x01\0\0\0"
    spoken = read(CHAT, {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]}).key
    assert read("/v1/responses", {"instructions": "S", "input": "Q"}).key == spoken
    assert read("/v1/responses", {"instructions": "S", "input": [{"role": "user", "content": "Q"}]}).key == spoken
    assert read("/v1/messages", {"system": "S", "messages": [{"role": "user", "content": "Q"}]}).key == spoken


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, b""),
        (CHAT, b"{not json"),
        (CHAT, b"[]"),
        (CHAT, b'{"messages": "hello"}'),
        (CHAT, b'{"messages": [{"content": "no role"}]}'),
        (CHAT, b'{"messages": ["hello"]}'),
        (CHAT, b'{"messages": [{"role": "user", "content": 7}]}'),
        (CHAT, b'{"messages": [{"role": "user", "content": ["text"]}]}'),
        ("/v1/completions", b'{"prompt": 7}'),
        ("/v1/completions", b'{"prompt": [-1]}'),
        ("/v1/completions", b'{"prompt": [99999999999]}'),
        ("/v1/completions", b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}"),
        ("/v1/unknown", b'{"messages": []}'),
    ],
)
def test_what_is_not_understood_is_no_prompt(path: str, body: bytes) -> None:
    assert read_prompt(path, body) is None


@given(
    st.sampled_from([CHAT, "/v1/completions", "/v1/messages", "/v1/responses", "/generate"]),
    st.sampled_from(["messages", "prompt", "input", "text", "input_ids", "tools", "system"]),
    json_values,
)
def test_no_json_value_makes_it_fail(path: str, field: str, value: object) -> None:
    read_prompt(path, orjson.dumps({field: value}))
    read_prompt(path, orjson.dumps({"messages": [value], "prompt": [value], "input": [value], "text": [value]}))
    read_prompt(path, orjson.dumps({"messages": [{"role": "user", "content": [value]}]}))


@given(st.binary(max_size=60))
def test_no_bytes_make_it_fail(body: bytes) -> None:
    read_prompt(CHAT, body)


_LONG_TEXT = "x" * 3_000_000


def _picture(data: str, kind: str) -> dict[str, object]:
    if kind == "data url":
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    if kind == "anthropic":
        return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


@pytest.mark.parametrize("kind", ["data url", "anthropic", "audio"])
@pytest.mark.parametrize("spaces", [False, True], ids=["dense", "with spaces"])
@pytest.mark.parametrize("size", [1000, 300_000, 3_000_000])
def test_media_are_told_apart_and_keep_what_comes_before_and_after(kind: str, spaces: bool, size: int) -> None:
    def key(data: str, before: str = "look", after: str = "closely") -> bytes:
        parts = [{"type": "text", "text": before}, _picture(data, kind), {"type": "text", "text": after}]
        payload = {"model": "m", "messages": [{"role": "user", "content": parts}]}
        body = json.dumps(payload) if spaces else json.dumps(payload, separators=(",", ":"))
        prompt = read_prompt("/v1/chat/completions", body.encode())
        assert prompt is not None
        return prompt.key

    large = "A" * size
    assert key(large) == key(large)
    assert len(key(large)) < 200
    assert (
        len({key(large), key(large[:-1] + "B"), key(large + "A"), key(large, before="x"), key(large, after="x")}) == 5
    )


@pytest.mark.parametrize("kind", ["data url", "anthropic", "audio"])
def test_a_picture_is_the_same_in_each_turn_of_a_chat_that_grows(kind: str) -> None:
    first = {"role": "user", "content": [_picture("A" * 300_000, kind)]}
    more = {"role": "user", "content": [_picture("B" * 3_000_000, kind)]}
    keys = []
    for messages in ([first], [first, more]):
        prompt = read_prompt("/v1/chat/completions", json.dumps({"messages": messages}).encode())
        assert prompt is not None
        keys.append(prompt.key)
    assert keys[1].startswith(keys[0])


@pytest.mark.parametrize(
    "text",
    [";base64," + _LONG_TEXT, ";base64," + _LONG_TEXT + "\n tail", '"data":"' + _LONG_TEXT, ";base64,"],
)
def test_a_text_that_looks_like_media_is_still_read(text: str) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": text}, {"role": "user", "content": "end"}]}).encode()
    prompt = read_prompt("/v1/chat/completions", body)
    assert prompt is not None
    assert prompt.key.endswith(b"end")


@given(st.binary(max_size=100), st.binary(max_size=100), st.sampled_from([b";base64,", b'"data":"', b'"data": "']))
def test_bytes_that_are_no_json_are_no_prompt_however_long(before: bytes, after: bytes, mark: bytes) -> None:
    body = b"\xff" + before + mark + b"A" * 3_000_000 + after
    assert read_prompt("/v1/chat/completions", body) is None
