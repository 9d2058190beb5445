"""The worker's API over real sockets."""

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.router import until
from support.toy import CONTEXT
from support.worker import RunningWorker, running_worker
from warmroute_worker.core import FinishReason

pytestmark = pytest.mark.anyio

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 6, "ignore_eos": True}


async def post(worker: RunningWorker, path: str, body: object) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as client:
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        return await client.post(worker.url + path, content=content)


def paused(worker: RunningWorker) -> threading.Event:
    """Until this is set, what runs stays at its first token; requests and aborts are taken in all the same."""
    go_on, engine = threading.Event(), worker.engine
    step = engine.step

    def wait_or_step() -> None:
        if engine.num_running and not go_on.is_set():
            time.sleep(0.001)
        else:
            step()

    engine.step = wait_or_step  # type: ignore[method-assign]
    return go_on


def events(reply: httpx.Response) -> list[dict[str, Any]]:
    """The stream's payloads, once its form has been checked."""
    assert reply.headers["content-type"].startswith("text/event-stream")
    *lines, done, end = reply.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    assert all(line.startswith("data: ") for line in lines)
    return [orjson.loads(line[6:]) for line in lines]


def text_of(payloads: Sequence[dict[str, Any]]) -> str:
    choices = [payload["choices"][0] for payload in payloads if payload["choices"]]
    return "".join(choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in choices)


async def test_a_chat_whole_and_streamed_says_the_same(toy_folder: Path) -> None:
    async with running_worker(toy_folder) as worker:
        whole = (await post(worker, CHAT, HELLO)).json()
        assert whole["object"] == "chat.completion"
        assert whole["model"] == toy_folder.name
        choice = whole["choices"][0]
        assert choice["message"]["role"] == "assistant"
        assert choice["finish_reason"] == "length"
        # The template: <s> user : h e l l o <s> assistant :
        prompt_tokens = 1 + len("user:hello") + 1 + len("assistant:")
        assert whole["usage"] == {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 6,
            "total_tokens": prompt_tokens + 6,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        payloads = events(await post(worker, CHAT, HELLO | {"stream": True}))
        assert payloads[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert text_of(payloads) == choice["message"]["content"]
        reasons = [payload["choices"][0]["finish_reason"] for payload in payloads]
        assert reasons == [None] * (len(payloads) - 1) + ["length"]
        assert {payload["object"] for payload in payloads} == {"chat.completion.chunk"}
        assert len({payload["id"] for payload in payloads}) == 1
        assert all("usage" not in payload for payload in payloads)


async def test_usage_comes_in_the_last_chunk_when_it_is_asked_for(toy_folder: Path) -> None:
    async with running_worker(toy_folder) as worker:
        for cached in (0, 21):
            asked = HELLO | {"stream": True, "stream_options": {"include_usage": True}}
            payloads = events(await post(worker, CHAT, asked))
            assert payloads[-1]["choices"] == []
            assert payloads[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": cached}
            assert payloads[-1]["usage"]["completion_tokens"] == 6
            assert all("usage" not in payload for payload in payloads[:-1])


async def test_completions_take_text_a_list_of_one_and_token_ids(toy_folder: Path) -> None:
    async with running_worker(toy_folder) as worker:
        asked = {"temperature": 0, "max_tokens": 5, "ignore_eos": True}
        replies = [
            (await post(worker, COMPLETIONS, asked | {"prompt": prompt})).json()
            for prompt in ("abc", ["abc"], [64, 65, 66])  # the ids of these letters in the toy's alphabet
        ]
        assert {reply["object"] for reply in replies} == {"text_completion"}
        assert len({reply["choices"][0]["text"] for reply in replies}) == 1
        assert [reply["usage"]["prompt_tokens"] for reply in replies] == [3, 3, 3]
        assert [reply["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in replies] == [0, 2, 2]
        default = (await post(worker, COMPLETIONS, {"prompt": "abc", "ignore_eos": True})).json()
        assert default["usage"]["completion_tokens"] == 16
        payloads = events(await post(worker, COMPLETIONS, asked | {"prompt": "abc", "stream": True}))
        assert text_of(payloads) == replies[0]["choices"][0]["text"]


async def test_content_in_parts_is_the_text(toy_folder: Path) -> None:
    async with running_worker(toy_folder) as worker:
        parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
        replies = [
            (await post(worker, CHAT, HELLO | {"messages": [{"role": "user", "content": content}]})).json()
            for content in ("hello", parts)
        ]
        assert replies[0]["choices"] == replies[1]["choices"]


async def test_two_salts_share_no_cache(toy_folder: Path) -> None:
    async with running_worker(toy_folder) as worker:
        cached = [
            (await post(worker, CHAT, HELLO | {"cache_salt": salt})).json()["usage"]["prompt_tokens_details"]
            for salt in ("a", "b", "a")
        ]
        assert [each["cached_tokens"] for each in cached] == [0, 0, 21]


async def test_a_stop_string_cuts_the_answer_and_nothing_of_it_is_streamed(toy_folder: Path) -> None:
    async with running_worker(toy_folder) as worker:
        asked = HELLO | {"max_tokens": 24}
        text = (await post(worker, CHAT, asked)).json()["choices"][0]["message"]["content"]
        stop = text[3:6]
        whole = (await post(worker, CHAT, asked | {"stop": [stop]})).json()["choices"][0]
        assert whole["message"]["content"] == text[: text.index(stop)]
        assert whole["finish_reason"] == "stop"
        payloads = events(await post(worker, CHAT, asked | {"stop": stop, "stream": True}))
        assert text_of(payloads) == text[: text.index(stop)]


async def test_an_answer_ends_where_the_context_ends(toy_folder: Path) -> None:
    async with running_worker(toy_folder) as worker:
        for limit in ({"max_tokens": 10_000}, {"max_tokens": None}):
            reply = (await post(worker, CHAT, HELLO | limit)).json()
            assert reply["usage"]["total_tokens"] == CONTEXT
            assert reply["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("pool", [40, 512])
async def test_a_prompt_that_does_not_fit_is_refused(toy_folder: Path, pool: int) -> None:
    async with running_worker(toy_folder, "--max-total-tokens", str(pool)) as worker:
        limit = min(pool, CONTEXT)
        fits = await post(worker, COMPLETIONS, {"prompt": "x" * (limit - 1), "max_tokens": 5})
        assert fits.json()["usage"]["completion_tokens"] == 1
        too_long = await post(worker, COMPLETIONS, {"prompt": "x" * limit})
        assert too_long.status_code == 400
        error = too_long.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
        assert str(limit) in error["message"]
        async with httpx.AsyncClient() as client:
            models = (await client.get(worker.url + "/v1/models")).json()
        assert models["data"][0]["max_model_len"] == limit


@pytest.mark.parametrize(
    ("path", "change", "param"),
    [
        (CHAT, {"max_tokens": 0}, "max_tokens"),
        (CHAT, {"max_tokens": -1}, "max_tokens"),
        (CHAT, {"max_tokens": "6"}, "max_tokens"),
        (CHAT, {"max_tokens": 1.5}, "max_tokens"),
        (CHAT, {"max_completion_tokens": 0}, "max_completion_tokens"),
        (CHAT, {"n": 2}, "n"),
        (CHAT, {"temperature": -1}, "temperature"),
        (CHAT, {"temperature": "hot"}, "temperature"),
        (CHAT, {"top_p": 0}, "top_p"),
        (CHAT, {"top_p": 1.1}, "top_p"),
        (CHAT, {"seed": "x"}, "seed"),
        (CHAT, {"stop": ["a"] * 5}, "stop"),
        (CHAT, {"stop": ""}, "stop"),
        (CHAT, {"stop": 3}, "stop"),
        (CHAT, {"stream": "yes"}, "stream"),
        (CHAT, {"stream_options": 1}, "stream_options"),
        (CHAT, {"logprobs": True}, "logprobs"),
        (CHAT, {"tools": [{"type": "function"}]}, "tools"),
        (CHAT, {"response_format": {"type": "json_object"}}, "response_format"),
        (CHAT, {"frequency_penalty": 0.5}, "frequency_penalty"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": "hello"}, "messages"),
        (CHAT, {"messages": [{"content": "no role"}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, "messages"),
        (CHAT, {"model": 7}, "model"),
        (COMPLETIONS, {"prompt": 7}, "prompt"),
        (COMPLETIONS, {"prompt": []}, "prompt"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, "prompt"),
        (COMPLETIONS, {"prompt": [1, "a"]}, "prompt"),
        (COMPLETIONS, {"prompt": [260]}, "prompt"),
        (COMPLETIONS, {"prompt": [-1]}, "prompt"),
        (COMPLETIONS, {"prompt": ""}, "prompt"),
        (COMPLETIONS, {"echo": True}, "echo"),
        (COMPLETIONS, {}, "prompt"),
    ],
)
async def test_bad_input_is_a_400_that_names_the_field(
    worker: RunningWorker, path: str, change: dict[str, object], param: str
) -> None:
    reply = await post(worker, path, (HELLO if path == CHAT else {"max_tokens": 1}) | change)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert set(error) == {"message", "type", "param", "code"}


async def test_other_errors_have_the_same_shape(worker: RunningWorker) -> None:
    for body in (b"{not json", b"", b"[1]"):
        assert (await post(worker, CHAT, body)).status_code == 400
    unknown = await post(worker, CHAT, HELLO | {"model": "gpt-9"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    async with httpx.AsyncClient() as client:
        missing = await client.get(worker.url + "/nope", headers={"x-request-id": "mine"})
        assert missing.headers["x-request-id"] == "mine"
        assert (missing.status_code, set(missing.json())) == (404, {"error"})
        wrong = await client.get(worker.url + CHAT)
        assert (wrong.status_code, set(wrong.json())) == (405, {"error"})


async def test_a_bug_has_the_same_shape_too(worker: RunningWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr("warmroute_worker.protocol.ChatMessage.for_template", broken)
        reply = await post(worker, CHAT, HELLO)
    assert (reply.status_code, reply.json()["error"]["type"]) == (500, "server_error")


async def test_an_extreme_sampling_does_no_harm(worker: RunningWorker) -> None:
    for extreme in ({"temperature": 1e-42}, {"temperature": 1, "top_p": 1e-300}, {"seed": -5, "temperature": 2}):
        assert (await post(worker, CHAT, HELLO | extreme)).json()["usage"]["completion_tokens"] == 6


async def test_models_health_and_request_ids(worker: RunningWorker) -> None:
    async with httpx.AsyncClient() as client:
        models = (await client.get(worker.url + "/v1/models")).json()
        assert models["object"] == "list"
        assert [model["max_model_len"] for model in models["data"]] == [CONTEXT]
        assert (await client.get(worker.url + "/health")).status_code == 200
        name = models["data"][0]["id"]
        for stream in (False, True):
            body = HELLO | {"model": name, "stream": stream}
            named = await client.post(worker.url + CHAT, json=body, headers={"x-request-id": "mine"})
            assert named.headers["x-request-id"] == "mine"
        first, second = [(await client.post(worker.url + CHAT, json=HELLO)).headers["x-request-id"] for _ in "ab"]
        assert first != second


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_its_request_at_once(toy_folder: Path, stream: bool) -> None:
    async with running_worker(toy_folder) as worker:
        paused(worker)
        body = orjson.dumps(HELLO | {"stream": stream})
        _, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(worker.url).port)
        writer.write(
            b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body)
        )
        await until(lambda: worker.engine.num_running == 1)
        writer.close()
        await worker.idle()
        metrics = worker.engine.metrics
        await until(lambda: metrics.aborted_requests == 1)
        assert metrics.requests == 0


async def test_a_client_that_leaves_the_queue_is_forgotten(toy_folder: Path) -> None:
    async with running_worker(toy_folder, "--max-running-requests", "1") as worker:
        go_on = paused(worker)
        running = asyncio.create_task(post(worker, CHAT, HELLO))
        await until(lambda: worker.engine.num_running == 1)
        queued = asyncio.create_task(post(worker, CHAT, HELLO))
        await until(lambda: worker.engine.num_waiting == 1)
        queued.cancel()
        await until(lambda: worker.engine.num_waiting == 0)
        assert not running.done()
        go_on.set()
        assert (await running).json()["usage"]["completion_tokens"] == 6


async def test_a_stopping_worker_breaks_its_answers_off_and_says_so(toy_folder: Path) -> None:
    async with running_worker(toy_folder, "--max-running-requests", "1") as worker:
        paused(worker)
        streamed = asyncio.create_task(post(worker, CHAT, HELLO | {"stream": True}))
        await until(lambda: worker.engine.num_running == 1)
        whole = asyncio.create_task(post(worker, CHAT, HELLO))
        await until(lambda: worker.engine.num_waiting == 1)
        worker.engine.close()
        *_, last = events(await streamed)
        assert last["error"]["type"] == "server_error"
        assert ((await whole).status_code, (await whole).json()["error"]["type"]) == (503, "server_error")
        late = await post(worker, CHAT, HELLO)
        assert (late.status_code, late.json()["error"]["message"]) == (503, "the worker has stopped")
        async with httpx.AsyncClient() as client:
            assert (await client.get(worker.url + "/health")).status_code == 503


async def test_flush_forgets_the_cache_and_is_refused_while_something_runs(toy_folder: Path) -> None:
    async with running_worker(toy_folder) as worker:

        async def cached() -> int:
            usage = (await post(worker, CHAT, HELLO)).json()["usage"]
            tokens: int = usage["prompt_tokens_details"]["cached_tokens"]
            return tokens

        assert [await cached(), await cached()] == [0, 21]
        await worker.idle()
        assert (await post(worker, "/flush_cache", b"")).json() == {"success": True}
        assert await cached() == 0
        go_on = paused(worker)
        running = asyncio.create_task(post(worker, CHAT, HELLO))
        await until(lambda: worker.engine.num_running == 1)
        refused = await post(worker, "/flush_cache", b"")
        go_on.set()
        await running
        assert refused.status_code == 400
        assert "while requests run" in refused.json()["error"]["message"]


async def test_metrics_equal_the_sum_of_the_usages(toy_folder: Path) -> None:
    async with running_worker(toy_folder, "--page-size", "4", "--max-total-tokens", "400") as worker:
        bodies = [HELLO | {"messages": [{"role": "user", "content": "hello" * n}]} for n in (1, 2, 3, 2)]
        usages = [(await post(worker, CHAT, body)).json()["usage"] for body in bodies]
        async with httpx.AsyncClient() as client:
            text = (await client.get(worker.url + "/metrics")).text
        samples = {
            (sample.name, sample.labels["model_name"]): sample
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        for prefix in ("sglang:", "sglang_"):

            def value(name: str, prefix: str = prefix) -> float:
                number: float = samples[prefix + name, toy_folder.name].value
                return number

            assert value("prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in usages)
            assert value("generation_tokens_total") == 4 * 6
            cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
            assert value("cached_tokens_total") == cached > 0
            assert value("num_running_reqs") == value("num_queue_reqs") == value("token_usage") == 0
            assert value("time_to_first_token_seconds_count") == 4
            config = samples[prefix + "cache_config_info", toy_folder.name].labels
            assert (config["page_size"], config["num_pages"]) == ("4", "100")


async def test_a_failed_engine_step_is_a_500_or_an_error_event(
    toy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_worker(toy_folder) as worker:

        def broken(*_: object) -> None:
            raise RuntimeError("out of memory")

        with monkeypatch.context() as patched:
            patched.setattr(worker.engine._model, "forward", broken)
            whole = await post(worker, CHAT, HELLO)
            assert (whole.status_code, whole.json()["error"]["type"]) == (500, "server_error")
            streamed = await post(worker, CHAT, HELLO | {"stream": True})
            assert (streamed.status_code, streamed.json()["error"]["type"]) == (500, "server_error")
        assert (await post(worker, CHAT, HELLO)).status_code == 200


async def test_many_clients_at_once(toy_folder: Path) -> None:
    async with running_worker(toy_folder, "--max-total-tokens", "160", "--chunked-prefill-size", "32") as worker:
        bodies = [HELLO | {"messages": [{"role": "user", "content": "hello" * (n % 5)}]} for n in range(20)]
        alone = {n: (await post(worker, CHAT, bodies[n])).json()["choices"] for n in range(5)}
        together = await asyncio.gather(*(post(worker, CHAT, body) for body in bodies))
        for n, reply in enumerate(together):
            assert reply.json()["choices"] == alone[n % 5]
            assert reply.json()["choices"][0]["finish_reason"] == FinishReason.LENGTH
