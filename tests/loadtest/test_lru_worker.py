"""The worker without a model, over HTTP: its cache against cases worked out by hand. A block is 8 bytes, 4 tokens."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import httpx
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families
from warmroute_loadtest.lru_worker import PacedWorker, main
from warmroute_loadtest.processes import processes, url_in
from warmroute_loadtest.simulator.worker import Happening

BLOCKS = 6
SHAPE = ("--blocks", str(BLOCKS), "--block-tokens", "4", "--block-bytes", "8")
A, B, C, D = (letter * 8 for letter in "abcd")

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    pace = ("--prefill-rate", "10000", "--tpot", "0.002")
    with processes() as children:
        yield url_in(children.start("warmroute_loadtest.lru_worker", *SHAPE, *pace))


@pytest.fixture
async def client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Of a worker whose cache is empty."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        (await client.post("/flush_cache")).raise_for_status()
        yield client


async def ask(client: httpx.AsyncClient, prompt: str, max_tokens: int = 1) -> dict[str, Any]:
    """The usage of an answer."""
    reply = await client.post("/v1/completions", json={"prompt": prompt, "max_tokens": max_tokens})
    usage: dict[str, Any] = reply.raise_for_status().json()["usage"]
    return usage


async def cached(client: httpx.AsyncClient, prompt: str, max_tokens: int = 1) -> int:
    tokens: int = (await ask(client, prompt, max_tokens))["prompt_tokens_details"]["cached_tokens"]
    return tokens


def events(body: str) -> list[Any]:
    """What a stream's events hold, but for the last, which says that it is the last."""
    *data, last, rest = body.split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    return [orjson.loads(event.removeprefix("data: ")) for event in data]


async def gauges(client: httpx.AsyncClient) -> dict[str, float]:
    families = text_string_to_metric_families((await client.get("/metrics")).text)
    return {sample.name: sample.value for family in families for sample in family.samples}


async def idle(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(60):
        while (await gauges(client))["vllm:num_requests_running"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


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


async def test_a_flush_empties_the_cache(client: httpx.AsyncClient) -> None:
    await ask(client, A + B)
    assert (await client.post("/flush_cache")).json() == {"success": True}
    assert await cached(client, A + B) == 0


async def test_no_flush_while_a_request_runs() -> None:
    """A worker that takes an hour for a token: one request has its whole memory, the other waits for it."""
    with processes() as children:
        url = url_in(children.start("warmroute_loadtest.lru_worker", *SHAPE, "--tpot", "3600"))
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            body = {"prompt": A, "max_tokens": 20, "stream": True}
            streaming = partial(client.stream, "POST", "/v1/completions", json=body)
            async with streaming() as running, streaming() as waiting:
                assert (running.status_code, waiting.status_code) == (200, 200)
                values = await gauges(client)
                assert (values["vllm:num_requests_running"], values["vllm:num_requests_waiting"]) == (1, 1)
                refused = await client.post("/flush_cache")
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "the cache is not flushed while requests run or wait"


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": False}}])
async def test_a_stream_tells_no_usage_unasked(client: httpx.AsyncClient, options: dict[str, Any]) -> None:
    reply = await client.post("/v1/completions", json={"prompt": A, "max_tokens": 3, "stream": True, **options})
    assert reply.headers["content-type"].startswith("text/event-stream")
    choices = [choice for event in events(reply.text) for choice in event["choices"]]
    assert [(choice["text"], choice["finish_reason"]) for choice in choices] == [
        ("word ", None),
        ("word word ", "length"),
    ]
    assert "usage" not in reply.text


async def test_a_stream_tells_usage_last(client: httpx.AsyncClient) -> None:
    body = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 2}  # <|user|>Hello!: 14 bytes
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    reply = await client.post("/v1/chat/completions", json=body | streaming)
    *text, last = events(reply.text)
    assert "".join(event["choices"][0]["delta"]["content"] for event in text) == "word word "
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_the_next_turn_of_a_chat_finds_the_last_one(client: httpx.AsyncClient) -> None:
    turns: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]  # <|user|>Hi: 10 bytes, one full block
    reply = (await client.post("/v1/chat/completions", json={"messages": turns, "max_completion_tokens": 1})).json()
    assert reply["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": "word "}, "finish_reason": "length"}
    ]
    assert reply["usage"]["prompt_tokens"] == 5
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i, you"}]
    next_turn = {"messages": [{"role": "user", "content": parts}], "max_tokens": 1}
    usage = (await client.post("/v1/chat/completions", json=next_turn)).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}


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
        b'{"prompt": "a", "stream_options": 1}',
    ],
)
async def test_what_is_no_request_is_refused(client: httpx.AsyncClient, body: bytes) -> None:
    reply = await client.post("/v1/completions", content=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"


async def test_who_leaves_gives_the_memory_back_at_the_jobs_end(client: httpx.AsyncClient) -> None:
    """The one who left has all six blocks. The other waits for them, and is served."""
    body = {"prompt": A + B, "max_tokens": 16, "stream": True}
    async with client.stream("POST", "/v1/completions", json=body) as leaving:
        await anext(leaving.aiter_bytes())
    assert await cached(client, A + C + D, max_tokens=8) == 4
    await idle(client)
    assert await cached(client, A + C + D) == 12


async def test_requests_at_once_share_what_they_have_in_common(client: httpx.AsyncClient) -> None:
    """The first to be admitted computes the block, all others find it: prefill goes in the order of arrival."""
    found = await asyncio.gather(*(cached(client, A + letter * 2) for letter in "vwxyz"))
    assert sorted(found) == [0, 4, 4, 4, 4]


async def test_it_says_what_the_router_asks(client: httpx.AsyncClient) -> None:
    assert (await client.get("/health")).status_code == 200
    assert [model["id"] for model in (await client.get("/v1/models")).json()["data"]] == ["mock"]
    exposition = (await client.get("/metrics")).text
    assert f'vllm:cache_config_info{{block_size="4",num_gpu_blocks="{BLOCKS}"}} 1\n' in exposition
    values = await gauges(client)
    assert (values["vllm:num_requests_running"], values["vllm:num_requests_waiting"]) == (0, 0)
    assert time.time() - 3600 < values["process_start_time_seconds"] <= time.time()


async def test_a_late_loop_lets_everything_happen_in_order() -> None:
    """The loop sleeps through all of the first request. The second comes to a worker that has answered that one."""
    worker = PacedWorker(blocks=4, block_tokens=4, prefill_rate=10_000.0, tpot=0.001)
    first = worker.submit([1], input_tokens=4, output_tokens=2)
    time.sleep(0.05)  # noqa: ASYNC251
    await asyncio.sleep(0.001)
    second = worker.submit([1, 2], input_tokens=8, output_tokens=1)
    assert all(moment.done() for moment in first.moments.values())
    assert second.job.cached_blocks == 1  # admitted at once: nobody is in its way
    await second.reached(Happening.END)
    assert (worker.running, worker.waiting) == (0, 0)


def test_sizes_that_cannot_be_are_told_in_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--blocks", "0"])
    assert capfd.readouterr().err.splitlines()[-1] == "lru_worker: every size and rate must be above zero"
