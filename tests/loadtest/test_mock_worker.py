"""The mock worker's answers and cache, over HTTP. A block is 8 bytes, 4 tokens."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.mock import events, mock_worker, series, until_idle
from warmroute_loadtest.mock_worker.config import MockConfig
from warmroute_loadtest.processes import processes, url_in

BLOCKS = 6
BLOCK_TOKENS = 4
BLOCK_BYTES = 8
CACHE = partial(MockConfig, blocks=BLOCKS, block_tokens=BLOCK_TOKENS, block_bytes=BLOCK_BYTES)
HOUR = 3600.0
A, B, C, D = (letter * 8 for letter in "abcd")

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with mock_worker(CACHE(prefill_rate=10_000.0, tpot=0.002)) as client:
        yield client


async def ask(client: httpx.AsyncClient, prompt: str, max_tokens: int = 1) -> dict[str, Any]:
    """The usage of an answer."""
    reply = await client.post("/v1/completions", json={"prompt": prompt, "max_tokens": max_tokens})
    usage: dict[str, Any] = reply.raise_for_status().json()["usage"]
    return usage


async def cached(client: httpx.AsyncClient, prompt: str, max_tokens: int = 1) -> int:
    tokens: int = (await ask(client, prompt, max_tokens))["prompt_tokens_details"]["cached_tokens"]
    return tokens


# The cache


async def test_only_full_leading_blocks_are_reused(client: httpx.AsyncClient) -> None:
    first = await ask(client, A + B + "xyz", max_tokens=3)
    assert first == {
        "prompt_tokens": 10,  # two blocks, and three bytes are one and a half tokens
        "completion_tokens": 3,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert await cached(client, A + B + "xyz") == 8
    assert await cached(client, A + B[:7]) == 4
    assert await cached(client, A + C) == 4
    assert await cached(client, B) == 0  # a block is named by all that is before it


async def test_the_oldest_tail_is_evicted_first(client: httpx.AsyncClient) -> None:
    """Six blocks. An answer takes one while it lasts, so of A B, A C and D, which are four, all stay."""
    for prompt in (A + B, A + C, D):
        await ask(client, prompt)
    assert await cached(client, A + B) == 8
    await ask(client, "four blocks of another prompt...")  # and one of answer: C and D, which are older than A B, go
    assert await cached(client, A + B) == 4
    assert await cached(client, D) == 0


@dataclass
class NaiveCache:
    """One request at a time: prefixes with the time of their last use, and everything searched afresh."""

    used: dict[str, int] = field(default_factory=dict)
    clock: int = 0

    def cached_tokens(self, prompt: str, max_tokens: int) -> int:
        self.clock += 1
        prefixes = [prompt[:end] for end in range(BLOCK_BYTES, len(prompt) + 1, BLOCK_BYTES)]
        missing = next((n for n, prefix in enumerate(prefixes) if prefix not in self.used), len(prefixes))
        room = BLOCKS - need(prompt, max_tokens)
        others = sorted(self.used.keys() - set(prefixes), key=lambda other: (-self.used[other], len(other)))
        self.used = {prefix: self.used[prefix] for prefix in others[:room]} | dict.fromkeys(prefixes, self.clock)
        return missing * BLOCK_TOKENS


def need(prompt: str, max_tokens: int) -> int:
    """In blocks."""
    tokens = (len(prompt) * BLOCK_TOKENS + BLOCK_BYTES - 1) // BLOCK_BYTES
    return (tokens + max_tokens + BLOCK_TOKENS - 1) // BLOCK_TOKENS


prompts = st.builds(
    lambda letters, rest: "".join(letter * BLOCK_BYTES for letter in letters) + "z" * rest,
    st.lists(st.sampled_from("ab"), max_size=BLOCKS),
    st.integers(0, BLOCK_BYTES - 1),
)


@pytest.fixture(scope="module")
def worker() -> Iterator[httpx.Client]:
    """A process, as a user starts it, whose answers come at once."""
    flags = ("--blocks", str(BLOCKS), "--block-tokens", str(BLOCK_TOKENS), "--block-bytes", str(BLOCK_BYTES))
    with processes() as children:
        url = url_in(children.start("warmroute_loadtest.mock_worker", *flags))
        with httpx.Client(base_url=url, timeout=60) as client:
            yield client


@settings(max_examples=60)
@given(requests=st.lists(st.tuples(prompts, st.integers(0, 9)), max_size=14))
def test_the_cached_tokens_are_a_naive_caches(worker: httpx.Client, requests: list[tuple[str, int]]) -> None:
    naive = NaiveCache()
    worker.post("/flush_cache").raise_for_status()
    for prompt, max_tokens in requests:
        reply = worker.post("/v1/completions", json={"prompt": prompt, "max_tokens": max_tokens})
        if need(prompt, max_tokens) > BLOCKS:
            assert reply.status_code == 400
        else:
            usage = reply.raise_for_status().json()["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == naive.cached_tokens(prompt, max_tokens)


async def test_a_flush_empties_the_cache(client: httpx.AsyncClient) -> None:
    await ask(client, A + B)
    assert (await client.post("/flush_cache")).json() == {"success": True}
    assert await cached(client, A + B) == 0


async def test_no_flush_while_a_request_runs() -> None:
    """A worker that takes an hour for a token: one request has its whole memory, the other waits for it."""
    async with mock_worker(CACHE(tpot=HOUR)) as client:
        body = {"prompt": A, "max_tokens": 20, "stream": True}
        streaming = partial(client.stream, "POST", "/v1/completions", json=body)
        async with streaming() as running, streaming() as waiting:
            assert (running.status_code, waiting.status_code) == (200, 200)
            values = await series(client)
            assert (values["vllm:num_requests_running"], values["vllm:num_requests_waiting"]) == (1, 1)
            assert values["vllm:kv_cache_usage_perc"] == 1
            refused = await client.post("/flush_cache")
        await until_idle(client)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "the cache is not flushed while requests run or wait"


async def test_the_next_turn_of_a_chat_finds_the_last_one(client: httpx.AsyncClient) -> None:
    turns: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]  # <|user|>Hi: 10 bytes, one full block
    reply = (await client.post("/v1/chat/completions", json={"messages": turns, "max_completion_tokens": 1})).json()
    [choice] = reply["choices"]
    assert choice["message"] == {"role": "assistant", "content": "the "}
    assert choice["finish_reason"] == "length"
    assert reply["usage"]["prompt_tokens"] == 5
    parts = [
        {"type": "text", "text": "H"},
        {"type": "image_url", "image_url": {}},
        {"type": "text", "text": "i, you"},
    ]
    silent: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": []}
    next_turn = {"messages": [{"role": "user", "content": parts}, silent], "max_tokens": 1}
    usage = (await client.post("/v1/chat/completions", json=next_turn)).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}


async def test_requests_at_once_share_what_they_have_in_common(client: httpx.AsyncClient) -> None:
    """The first to be admitted computes the block, all others find it: prefill goes in the order of arrival."""
    found = await asyncio.gather(*(cached(client, A + letter * 2) for letter in "vwxyz"))
    assert sorted(found) == [0, 4, 4, 4, 4]


@pytest.mark.parametrize("rate", [0.0, 1e6])
async def test_without_a_cache_nothing_is_reused_and_everything_fits(rate: float) -> None:
    async with mock_worker(MockConfig(default_max_tokens=3, prefill_rate=rate)) as client:
        for _ in range(2):
            reply = await client.post("/v1/completions", json={"prompt": A * 1000})
            assert reply.json()["usage"] == {
                "prompt_tokens": 2000,
                "completion_tokens": 3,
                "total_tokens": 2003,
                "prompt_tokens_details": {"cached_tokens": 0},
            }


# Answers


def texts(streamed: list[Any]) -> list[str]:
    choices = [choice for event in streamed for choice in event["choices"]]
    return [choice["text"] if "text" in choice else choice["delta"]["content"] for choice in choices]


PACES = {"at once": MockConfig(), "paced": CACHE(prefill_rate=1e5, tpot=0.0005), "cache only": CACHE()}


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "text"])
@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("pace", PACES)
async def test_a_stream_is_the_whole_answer_in_events(pace: str, interval: int, chat: bool) -> None:
    config = {name: getattr(PACES[pace], name) for name in MockConfig.__dataclass_fields__}
    prompt = {"messages": [{"role": "user", "content": "Hi"}]} if chat else {"prompt": "Hi"}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    async with mock_worker(MockConfig(**(config | {"stream_interval": interval}))) as client:
        for tokens in (0, 1, 2, 8):
            body = prompt | {"max_tokens": tokens}
            whole = (await client.post(path, json=body)).json()
            reply = await client.post(path, json=body | {"stream": True, "stream_options": {"include_usage": True}})
            assert reply.headers["content-type"].startswith("text/event-stream")
            *parts, usage = events(reply.text)
            said = texts(parts)
            assert [len(text) // 4 for text in said] == {
                1: [[0], [1], [1, 1], [1] * 8][(0, 1, 2, 8).index(tokens)],
                3: [[0], [1], [1, 1], [1, 3, 3, 1]][(0, 1, 2, 8).index(tokens)],
            }[interval]
            message = whole["choices"][0]
            assert "".join(said) == (message["message"]["content"] if chat else message["text"])
            assert len("".join(said)) == 4 * tokens
            reasons = [part["choices"][0]["finish_reason"] for part in parts]
            assert reasons == [None] * (len(parts) - 1) + ["length"]
            assert usage["choices"] == []
            counted = usage["usage"] | {"prompt_tokens_details": None}
            assert counted == whole["usage"] | {"prompt_tokens_details": None}
            assert {part["id"] for part in parts} == {usage["id"]} != {whole["id"]}
            assert parts[0]["object"] == ("chat.completion.chunk" if chat else "text_completion")
            assert whole["object"] == ("chat.completion" if chat else "text_completion")


async def test_each_event_is_a_packet_of_its_own() -> None:
    """Of an answer that is there at once, too."""
    async with (
        mock_worker(MockConfig()) as client,
        client.stream("POST", "/v1/completions", json={"prompt": A, "stream": True}) as reply,
    ):
        packets = [packet async for packet in reply.aiter_raw()]
    assert len(packets) > 1
    assert b"".join(packets).count(b"data: ") == 16 + 1


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": False}}, {"stream_options": None}])
async def test_a_stream_tells_no_usage_unasked(client: httpx.AsyncClient, options: dict[str, Any]) -> None:
    reply = await client.post("/v1/completions", json={"prompt": A, "max_tokens": 3, "stream": True, **options})
    assert texts(events(reply.text)) == ["the ", "old ", "dog "]
    assert "usage" not in reply.text


async def test_a_stream_is_one_wherever_the_body_says_so() -> None:
    async with mock_worker(MockConfig()) as client:
        body = b'{"prompt": "%b", "x": {"stream": false}, "stream" : true}' % (b"a" * 5000)
        reply = await client.post("/v1/completions", content=body)
        assert len(events(reply.text)) == 16


async def test_a_prompt_that_can_never_fit_is_refused(client: httpx.AsyncClient) -> None:
    prompt = A + B + C + D  # four of six blocks: eight tokens are left
    assert (await ask(client, prompt, max_tokens=8))["total_tokens"] == 24
    reply = await client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 9})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")
    assert "room for 24" in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"prompt": [1, 2]}',
        b'{"prompt": "a", "max_tokens": -1}',
        b'{"prompt": "a", "max_tokens": "1"}',
        b'{"prompt": "a", "max_tokens": 10000000}',
        b'{"prompt": "a", "stream": true, "stream_options": 1}',
    ],
)
async def test_what_is_no_request_is_refused(client: httpx.AsyncClient, body: bytes) -> None:
    reply = await client.post("/v1/completions", content=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("messages", ["hi", [1], [{"content": "no role"}], [{"role": "user", "content": [1]}]])
async def test_what_is_no_chat_is_refused(client: httpx.AsyncClient, messages: object) -> None:
    reply = await client.post("/v1/chat/completions", json={"messages": messages})
    assert reply.status_code == 400


# What routers ask


async def test_it_says_what_it_serves() -> None:
    async with mock_worker(MockConfig(model='org/a "model"')) as client:
        assert (await client.get("/health")).status_code == 200
        assert [model["id"] for model in (await client.get("/v1/models")).json()["data"]] == ['org/a "model"']
        for path in ("/get_server_info", "/server_info", "/get_model_info"):
            about = (await client.get(path)).json()
            assert about["served_model_name"] == about["model_path"] == 'org/a "model"'
        reply = (await client.post("/v1/completions", json={"prompt": "a"})).json()
        assert reply["model"] == 'org/a "model"'
        assert 'model_name="org/a \\"model\\""' in (await client.get("/metrics")).text
        assert (await client.post("/abort_request", json={"rid": "1"})).status_code == 200


async def test_vllms_metrics_count_what_was_served() -> None:
    async with mock_worker(CACHE()) as client:
        for _ in range(3):
            await ask(client, A + B + "xx", max_tokens=2)
        exposition = (await client.get("/metrics")).text
        assert f'block_size="4",num_gpu_blocks="{BLOCKS}"}} 1\n' in exposition
        values = await series(client)
    assert time.time() - 3600 < values.pop("process_start_time_seconds") <= time.time()
    assert values == {
        "vllm:num_requests_running": 0,
        "vllm:num_requests_waiting": 0,
        "vllm:kv_cache_usage_perc": 0,
        "vllm:prefix_cache_queries_total": 27,
        "vllm:prefix_cache_hits_total": 16,
        "vllm:prompt_tokens_total": 27,
        "vllm:generation_tokens_total": 6,
        "vllm:request_success_total": 3,
        "vllm:cache_config_info": 1,
    }


async def test_sglangs_metrics_count_what_was_served() -> None:
    async with mock_worker(CACHE(metrics="sglang")) as client:
        for _ in range(3):
            await ask(client, A + B + "xx", max_tokens=2)
        assert f'page_size="4",num_pages="{BLOCKS}"}} 1\n' in (await client.get("/metrics")).text
        values = await series(client)
    del values["process_start_time_seconds"]
    assert values == {
        "sglang:num_running_reqs": 0,
        "sglang:num_queue_reqs": 0,
        "sglang:token_usage": 0,
        "sglang:cache_hit_rate": pytest.approx(16 / 27),
        "sglang:cached_tokens_total": 16,
        "sglang:prompt_tokens_total": 27,
        "sglang:generation_tokens_total": 6,
        "sglang:num_requests_total": 3,
        "sglang:cache_config_info": 1,
        "sglang:max_total_num_tokens": 24,
    }


async def test_a_worker_without_a_cache_tells_no_size() -> None:
    async with mock_worker(MockConfig()) as client:
        assert "vllm:cache_config_info" not in await series(client)
