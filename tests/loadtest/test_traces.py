import gzip
import inspect
import json
import lzma
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
import warmroute_loadtest.traces as traces
from hypothesis import given, settings
from hypothesis import strategies as st
from warmroute_loadtest.traces import FORMATS, Trace, TraceError, TraceRequest, load_trace
from warmroute_router.blocks import hash_blocks
from warmroute_router.prompt import read_prompt

SLICE = Path(traces.__file__).parent / "data" / "mooncake_slice.jsonl"

MOONCAKE: list[dict[str, Any]] = [
    {"timestamp": 1000, "input_length": 1300, "output_length": 7, "hash_ids": [0, 1, 2]},
    {"timestamp": 1000, "input_length": 1024, "output_length": 8, "hash_ids": [0, 1]},
    {"timestamp": 4000, "input_length": 600, "output_length": 9, "hash_ids": [0, 3]},
]
BAILIAN: list[dict[str, Any]] = [
    {
        "chat_id": 5,
        "parent_chat_id": -1,
        "timestamp": 61.5,
        "input_length": 40,
        "output_length": 3,
        "hash_ids": [7, 8, 9],
    },
    {
        "chat_id": 6,
        "parent_chat_id": 5,
        "timestamp": 62.0,
        "input_length": 64,
        "output_length": 4,
        "hash_ids": [7, 8, 1, 2],
    },
    {"chat_id": 9, "parent_chat_id": 6, "timestamp": 64.0, "input_length": 16, "output_length": 5, "hash_ids": [7]},
    {"chat_id": 8, "parent_chat_id": 3, "timestamp": 61.0, "input_length": 15, "output_length": 6, "hash_ids": [4]},
]
CALL: dict[str, Any] = {"type": "n", "out": 11}
CLAUDE: list[dict[str, Any]] = [
    {
        "id": name,
        "block_size": 64,
        "hash_id_scope": "local",
        "requests": [
            {**CALL, "t": 0.0, "in": 130, "hash_ids": [1, 2]},
            {"type": "subagent", "t": 5.0, "requests": [{**CALL, "t": 2.5, "in": 64, "hash_ids": [9]}]},
            {**CALL, "t": 6.0, "in": 200, "hash_ids": [1, 2, 3]},
        ],
    }
    for name in ("a", "b")
]
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,130,10
2023-11-16 18:17:04.4799600,64,20
2023-11-16 18:18:03.9799600,63,30
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
5,GPT-4,100,0,100,API log
45,ChatGPT,64,126,190,Conversation log
"""
LONG = "Be kind, and say what you do not know. " * 20
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": LONG},
    {"role": "user", "content": "Hello!"},
    {"role": "assistant", "content": "a" * 100},
    {"role": "user", "content": "More."},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]},
    {"role": "tool", "content": "42", "tool_call_id": "c1"},
]
SHAREGPT: dict[str, Any] = {
    "id": "x_0",
    "conversations": [
        {"from": "system", "value": LONG},
        {"from": "human", "value": "Hello!"},
        {"from": "gpt", "value": "a" * 100},
    ],
}


def lines(entries: Iterable[object]) -> bytes:
    return b"".join(orjson.dumps(entry) + b"\n" for entry in entries)


def load(folder: Path, content: bytes | str, **options: Any) -> Trace:
    path = folder / "trace"  # says nothing of the format
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_trace(path, **options)


def ids(trace: Trace) -> list[list[int]]:
    return [list(request.block_ids) for request in trace.requests]


def arrivals(trace: Trace) -> list[float]:
    return [request.arrival for request in trace.requests]


def request(block_ids: Sequence[int], input_tokens: int) -> TraceRequest:
    return TraceRequest(0.0, array("Q", block_ids), input_tokens, 1, None)


def naive_ceiling(prompts: Iterable[tuple[Sequence[int], int]], block_tokens: int) -> float:
    """By the words: how much of each prompt, from its start, has some earlier prompt had in full?"""
    earlier: set[int] = set()
    reused = total = 0
    for block_ids, length in prompts:
        full = [block for place, block in enumerate(block_ids) if (place + 1) * block_tokens <= length]
        for block in full:
            if block not in earlier:
                break
            reused += block_tokens
        total += length
        earlier |= set(full)
    return reused / total


def test_the_public_names() -> None:
    assert sorted(traces.__all__) == ["FORMATS", "Trace", "TraceError", "TraceRequest", "load_trace"]
    assert all(hasattr(traces, name) for name in traces.__all__)


def test_the_ceiling_counts_full_blocks_only() -> None:
    prompts = [request([1, 2], 25), request([1, 2], 25), request([1, 3], 20), request([], 5)]
    assert Trace("t", 10, prompts, 0).ceiling == (20 + 10) / 75
    assert Trace("t", 10, [], 0).ceiling == 0.0
    assert Trace("t", 10, [request([], 0)], 0).ceiling == 0.0


def test_the_ceiling_of_the_slice_is_what_a_naive_count_says() -> None:
    raw = [json.loads(line) for line in SLICE.read_text().splitlines()]
    trace = load_trace(SLICE)
    assert len(trace.requests) == len(raw) == 400
    assert trace.skipped == 0
    naive = naive_ceiling([(row["hash_ids"], row["input_length"]) for row in raw], 512)
    assert trace.ceiling == pytest.approx(naive, abs=1e-12)
    assert 0.05 < naive < 0.95
    assert [request.input_tokens for request in trace.requests] == [row["input_length"] for row in raw]
    for request, row in zip(trace.requests, raw, strict=True):
        assert list(request.block_ids) == row["hash_ids"][: row["input_length"] // 512]


def test_the_slice_is_spread_over_its_ticks() -> None:
    stamps = [json.loads(line)["timestamp"] / 1000 for line in SLICE.read_text().splitlines()]
    times = arrivals(load_trace(SLICE))
    assert times == sorted(times)
    assert len(set(times)) == len(times)
    for time, stamp in zip(times, stamps, strict=True):
        later = [other for other in stamps if other > stamp]
        assert stamp <= time < (min(later) if later else stamp + 4)


def test_mooncake(tmp_path: Path) -> None:
    trace = load(tmp_path, lines(MOONCAKE))
    assert (trace.name, trace.block_tokens, trace.skipped) == ("trace", 512, 0)
    assert ids(trace) == [[0, 1], [0, 1], [0]]
    # Two in a gap of 3 s; the last stamp has no gap of its own.
    assert arrivals(trace) == [0.0, 1.5, 3.0]
    assert [request.output_tokens for request in trace.requests] == [7, 8, 9]
    assert trace.ceiling == (1024 + 512) / (1300 + 1024 + 600)


def test_mooncake_with_sessions_delays_and_text(tmp_path: Path) -> None:
    text = "0123456789abcdef" * 300  # 4,800 bytes: 1,200 tokens
    rows = [
        {"created_time": 0, "session_id": "s", "input_tokens": 512, "output_tokens": 100, "hash_ids": [3]},
        {"delay": 500, "session_id": "s", "text_input": text, "output_length": 50},
        {"delay_ms": 9, "session_id": "t", "input_text": text + "!", "output_length": 50},
    ]
    trace = load(tmp_path, lines(rows))
    by_session = {(request.session, request.input_tokens): request for request in trace.requests}
    assert by_session.keys() == {("s", 512), ("s", 1200), ("t", 1201)}
    # 100 tokens at 50 a second, then the delay.
    assert by_session["s", 1200].arrival == 2.5
    # Nothing was before it: it starts a session.
    assert by_session["t", 1201].arrival == 0.0
    first, other = by_session["s", 1200].block_ids, by_session["t", 1201].block_ids
    assert len(first) == 1200 // 512
    assert first == other
    assert list(first) == list(hash_blocks(text.encode()).hashes[7::8])


def test_bailian(tmp_path: Path) -> None:
    trace = load(tmp_path, lines(BAILIAN))
    assert trace.block_tokens == 16
    assert arrivals(trace) == [0.0, 0.5, 1.0, 3.0]
    assert ids(trace) == [[], [7, 8], [7, 8, 1, 2], [7]]
    # A turn whose parent is not in the file is a session of its own.
    assert [request.session for request in trace.requests] == ["8", "5", "5", "5"]
    assert trace.ceiling == (32 + 16) / (40 + 64 + 16 + 15)


def test_claude_code(tmp_path: Path) -> None:
    trace = load(tmp_path, lines(CLAUDE))
    assert trace.block_tokens == 64
    mine = [request for request in trace.requests if request.session == "a"]
    theirs = [request for request in trace.requests if request.session == "b"]
    start = theirs[0].arrival
    assert start > 0
    # A sub-agent's clock starts with it.
    assert [request.arrival for request in mine] == [0.0, 6.0, 7.5]
    assert [request.arrival - start for request in theirs] == pytest.approx([0.0, 6.0, 7.5])
    assert [request.input_tokens for request in mine] == [130, 200, 64]
    assert [len(request.block_ids) for request in mine] == [2, 3, 1]
    assert mine[0].block_ids == mine[1].block_ids[:2]
    everything = [{block for request in session for block in request.block_ids} for session in (mine, theirs)]
    assert [len(blocks) for blocks in everything] == [4, 4]
    assert not everything[0] & everything[1]
    assert trace.ceiling == 128 * 2 / ((130 + 200 + 64) * 2)


def test_claude_code_as_one_document_and_with_global_ids(tmp_path: Path) -> None:
    one = load(tmp_path, json.dumps(CLAUDE[0], indent=2))
    assert ids(one) == ids(load(tmp_path, lines(CLAUDE[:1])))
    shared = load(tmp_path, lines({**session, "hash_id_scope": "global"} for session in CLAUDE))
    assert len({block for request in shared.requests for block in request.block_ids}) == 4


def test_azure(tmp_path: Path) -> None:
    trace = load(tmp_path, AZURE)
    assert arrivals(trace) == pytest.approx([0.0, 0.5, 60.0], abs=1e-5)
    assert [(request.input_tokens, request.output_tokens) for request in trace.requests] == [
        (130, 10),
        (64, 20),
        (63, 30),
    ]
    blocks = [block for prompt in ids(trace) for block in prompt]
    assert len(blocks) == len(set(blocks)) == 130 // trace.block_tokens + 64 // trace.block_tokens
    assert trace.ceiling == 0.0


def test_burstgpt_rounds_to_seconds_and_no_coarser(tmp_path: Path) -> None:
    trace = load(tmp_path, b"\xef\xbb\xbf" + BURSTGPT.replace("\n", "\r\n").encode())
    assert arrivals(trace) == [0.0, 0.5, 40.0]
    assert [(request.input_tokens, request.output_tokens) for request in trace.requests] == [
        (472, 18),
        (100, 0),
        (64, 126),
    ]
    assert trace.ceiling == 0.0


def test_a_limit_cuts_a_csv_without_moving_what_is_left(tmp_path: Path) -> None:
    assert load(tmp_path, BURSTGPT, limit=1).requests == load(tmp_path, BURSTGPT).requests[:1]
    assert load(tmp_path, BURSTGPT, limit=2).requests == load(tmp_path, BURSTGPT).requests[:2]


def key_hashes(messages: list[Any], **fields: Any) -> list[int]:
    prompt = read_prompt("/v1/chat/completions", orjson.dumps({"messages": messages, **fields}))
    assert prompt is not None
    return list(hash_blocks(prompt.key, prompt.namespace).hashes)


def test_openai_messages(tmp_path: Path) -> None:
    trace = load(tmp_path, lines([{"messages": CHAT, "model": "m"}]))
    assert trace.block_tokens == 64
    assert ids(trace) == [key_hashes(CHAT[:2], model="m"), key_hashes(CHAT[:4], model="m")]
    # The answer of 100 letters is 25 tokens: half a second at 50 a second, and 10 s to think.
    assert arrivals(trace) == [0.0, 10.5]
    assert [request.output_tokens for request in trace.requests] == [25, -(-len('[{"id":"c1"}]') // 4)]
    assert {request.session for request in trace.requests} == {"1"}
    first, second = trace.requests
    assert 0 <= first.input_tokens - len(LONG) // 4 < 10
    assert second.block_ids[: len(first.block_ids)] == first.block_ids
    assert trace.ceiling == len(first.block_ids) * 64 / (first.input_tokens + second.input_tokens)


def test_the_other_conversations_are_the_same_prompts(tmp_path: Path) -> None:
    sharegpt = load(tmp_path, json.dumps([SHAREGPT, {"id": "y", "conversations": []}]))
    tau = load(tmp_path, json.dumps([{"task_id": 3, "trial": 1, "reward": 1.0, "traj": CHAT[:3]}], indent=1))
    swe = load(tmp_path, json.dumps({"trajectory": [], "history": CHAT[:3]}))
    for trace, session in ((sharegpt, "x_0"), (tau, "3/1"), (swe, "1")):
        assert ids(trace) == [key_hashes(CHAT[:2])]
        assert [request.session for request in trace.requests] == [session]
        assert trace.skipped == 0


def test_sessions_start_as_a_poisson_process(tmp_path: Path) -> None:
    content = lines({"messages": [*CHAT[:1], {"role": "user", "content": str(n)}, CHAT[2]]} for n in range(2000))
    trace = load(tmp_path, content, sessions_per_s=4.0)
    assert arrivals(trace)[0] == 0.0
    assert arrivals(trace)[-1] == pytest.approx(2000 / 4, rel=0.1)
    gaps = [later - earlier for earlier, later in zip(arrivals(trace), arrivals(trace)[1:], strict=False)]
    # Exponential: a share of 1 - 1/e of the gaps is below their mean.
    assert sum(gap < 0.25 for gap in gaps) / len(gaps) == pytest.approx(0.632, abs=0.04)
    assert load(tmp_path, content, sessions_per_s=4.0) == trace


@pytest.mark.parametrize("content", [lines(CLAUDE), lines(MOONCAKE), lines([{"messages": CHAT}] * 3)])
def test_a_limit_keeps_the_first_to_arrive(tmp_path: Path, content: bytes) -> None:
    whole = load(tmp_path, content)
    for limit in (1, 2, 99):
        assert load(tmp_path, content, limit=limit).requests == whole.requests[:limit]


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_packed_files_are_known_by_their_content(tmp_path: Path, pack: Any) -> None:
    assert load(tmp_path, pack(lines(MOONCAKE))) == load(tmp_path, lines(MOONCAKE))
    with pytest.raises(TraceError, match="trace: "):
        load(tmp_path, pack(lines(MOONCAKE))[:-9])


def test_the_files_order_decides_between_equal_arrivals(tmp_path: Path) -> None:
    rows = [{**MOONCAKE[0], "output_length": length} for length in (5, 3, 4)]
    trace = load(tmp_path, lines(rows))
    assert arrivals(trace) == [0.0, 0.0, 0.0]
    assert [request.output_tokens for request in trace.requests] == [5, 3, 4]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"{", "unexpected end"),
        (b"[]", "not an object"),
        (b'{"timestamp": 1, "input_length": 5, "hash_ids": [1]}', "no output_length"),
        (b'{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [1, 2]}', "2 blocks of 512 tokens"),
        (b'{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [-1]}', "negative"),
        (b'{"timestamp": 1, "input_length": -5, "output_length": 1, "hash_ids": []}', "-5 is no number of tokens"),
        (b'{"timestamp": 1e99, "input_length": 5, "output_length": 1, "hash_ids": []}', "is no time"),
        (b'{"timestamp": true, "input_length": 5, "output_length": 1, "hash_ids": []}', "True is no number"),
    ],
)
def test_malformed_lines_are_counted_up_to_one_percent(tmp_path: Path, bad: bytes, reason: str) -> None:
    good = lines(MOONCAKE[:1] * 99)
    trace = load(tmp_path, good + bad + b"\n")
    assert (len(trace.requests), trace.skipped) == (99, 1)
    with pytest.raises(TraceError, match=r"line 101 is malformed .*; so are 2 of 101 lines") as raised:
        load(tmp_path, good + b"\n" + bad + b"\n" + bad)
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_first_line_that_is_malformed(tmp_path: Path) -> None:
    assert load(tmp_path, b"#\n" + lines(MOONCAKE[:1] * 200)).skipped == 1
    assert load(tmp_path, b'[{"a"\n' + lines(MOONCAKE[:1] * 200)).skipped == 1
    with pytest.raises(TraceError, match=r"line 1 is malformed .*; so are 2 of 2 lines"):
        load(tmp_path, b"hello\nworld\n")
    with pytest.raises(TraceError, match=r"line 1 is malformed .*; so are 1 of 4 lines"):
        load(tmp_path, b"{\n" + lines(MOONCAKE))


def test_a_malformed_entry_of_a_document_is_named_as_one(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"entry 2 is malformed \(no from\); so are 1 of 2 entries"):
        load(tmp_path, json.dumps([SHAREGPT, {"id": "y", "conversations": [{"value": "v"}]}]))


def test_a_malformed_csv_row(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"line 5 is malformed .*; so are 2 of 5 lines"):
        load(tmp_path, AZURE + "2023-11-16 18:18:04,1\nnoon,1,1\n")


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", {}, "none of claude-code, bailian"),
        (b'{"a": 1}\n', {}, "none of claude-code, bailian"),
        (b"", {"format": "mooncake"}, "no request in it"),
        (lines([{"messages": CHAT[:2]}]), {}, "no request in it"),
        (lines(MOONCAKE), {"format": "csv"}, "unknown format 'csv': use auto, claude-code, bailian, mooncake"),
        (lines(MOONCAKE), {"format": "bailian"}, "line 1 is malformed"),
        (lines(MOONCAKE), {"limit": 0}, "limit must be at least 1, not 0"),
        (lines(MOONCAKE), {"sessions_per_s": 0.0}, "sessions_per_s must be more than 0"),
        (lines(MOONCAKE), {"sessions_per_s": float("nan")}, "sessions_per_s must be more than 0"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path: Path, content: bytes, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError) as raised:
        load(tmp_path, content, **options)
    assert message in str(raised.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="nowhere: No such file"):
        load_trace(tmp_path / "nowhere")
    with pytest.raises(TraceError, match="Is a directory"):
        load_trace(tmp_path)


EXAMPLES = {
    "claude-code": lines(CLAUDE),
    "bailian": lines(BAILIAN),
    "mooncake": lines(MOONCAKE),
    "azure": AZURE.encode(),
    "burstgpt": BURSTGPT.encode(),
    "tau-bench": json.dumps([{"task_id": 3, "trial": 1, "traj": CHAT}]).encode(),
    "sharegpt": json.dumps([SHAREGPT]).encode(),
    "messages": lines([{"messages": CHAT}]),
    "swe-agent": json.dumps({"history": CHAT}).encode(),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_keeps_the_promises_of_a_trace(tmp_path: Path, name: str) -> None:
    trace = load(tmp_path, EXAMPLES[name])
    assert trace == load(tmp_path, EXAMPLES[name], format=name)
    assert arrivals(trace) == sorted(arrivals(trace))
    assert arrivals(trace)[0] == 0.0
    for each in trace.requests:
        assert each.block_ids.typecode == "Q"
        assert len(each.block_ids) <= each.input_tokens // trace.block_tokens
    prompts = [(each.block_ids, each.input_tokens) for each in trace.requests]
    assert trace.ceiling == pytest.approx(naive_ceiling(prompts, trace.block_tokens))


def test_the_default_rate_is_documented() -> None:
    assert inspect.signature(load_trace).parameters["sessions_per_s"].default == 1.0


FIELDS = sorted(
    {field for row in (*MOONCAKE, *BAILIAN, *CLAUDE, CALL, *CHAT, SHAREGPT) for field in row}
    | {
        "traj",
        "history",
        "messages",
        "trial",
        "task_id",
        "t",
        "in",
        "from",
        "value",
        "text_input",
        "session_id",
        "delay",
    }
    | {"TIMESTAMP", "ContextTokens", "GeneratedTokens", "Timestamp", "Request tokens", "Response tokens"}
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["subagent", "assistant", "gpt"])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6),
    max_leaves=12,
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A good file with a piece of it cut out and something else put there."""
    content = draw(st.sampled_from(list(EXAMPLES.values())))
    start = draw(st.integers(0, len(content)))
    end = draw(st.integers(start, min(len(content), start + 40)))
    return content[:start] + draw(st.binary(max_size=6) | VALUES.map(orjson.dumps)) + content[end:]


@st.composite
def deformed(draw: st.DrawFn) -> bytes:
    """Entries with the right fields and anything in them."""
    known = draw(st.sampled_from([*MOONCAKE, *BAILIAN, *CLAUDE, SHAREGPT, {"messages": CHAT}]))
    entries = [{**known, **draw(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3))} for _ in range(2)]
    return lines(entries) if draw(st.booleans()) else orjson.dumps(entries)


@settings(max_examples=300)
@given(content=st.binary(max_size=80) | damaged() | deformed(), format=st.sampled_from(["auto", *FORMATS]))
def test_no_bytes_raise_anything_but_a_trace_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, format: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(content)
    try:
        trace = load_trace(path, format=format)
    except TraceError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert trace.requests
        assert 0.0 <= trace.ceiling <= 1.0
