"""The whole line: real model workers and the router as separate processes, started as a user starts them."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from warmroute_loadtest.processes import processes, url_in

SYSTEM = (
    "You answer questions about a lending library in one short sentence. "
    "A book can be kept for three weeks. A reader who is late pays fifty cents a day. "
    "The library is open from nine to six, and on Saturdays until two. It is closed on Sundays and holidays. "
    "Books that are not on the shelf can be reserved at the front desk or by telephone."
)


@pytest.fixture(scope="module")
def stack() -> Iterator[tuple[str, list[str]]]:
    """The URLs of a cache aware router and of its two workers."""
    with processes() as children:
        options = ("--model", "smollm2-135m", "--port", "0", "--threads", "1", "--max-total-tokens", "2048")
        started = [children.spawn("warmroute_worker", *options) for _ in range(2)]
        workers = [url_in(children.announcement(process)) for process in started]
        router = children.start(
            "warmroute_router", "--port", "0", "--prometheus-port", "0", "--worker-urls", *workers
        )
        yield url_in(router), workers


def ask(url: str, messages: list[dict[str, str]]) -> httpx.Response:
    body = {"model": "smollm2-135m", "messages": messages, "max_tokens": 12, "temperature": 0}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120).raise_for_status()


def cached(reply: httpx.Response) -> int:
    tokens: int = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


def test_the_second_turn_lands_where_the_first_is_cached(stack: tuple[str, list[str]]) -> None:
    url, workers = stack
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "How long can I keep a book?"}]
    first = ask(url, messages)
    usage = first.json()["usage"]
    assert cached(first) == 0
    messages += [first.json()["choices"][0]["message"], {"role": "user", "content": "And on Sundays?"}]
    second = ask(url, messages)
    assert second.headers["x-warmroute-worker"] == first.headers["x-warmroute-worker"] in workers
    # The prompt of the first turn, and its answer as far as it was computed: all but the last token, which was only
    # sampled. An answer that ended by itself ended in an end-of-turn token, which the template repeats.
    computed = usage["prompt_tokens"] + usage["completion_tokens"] - 1
    assert cached(second) == computed
    assert int(second.headers["x-warmroute-matched-tokens"]) > 0


def test_what_the_router_counts_is_what_the_engines_said(stack: tuple[str, list[str]]) -> None:
    url, _ = stack
    state: list[dict[str, Any]] = httpx.get(f"{url}/workers").json()["workers"]
    assert {worker["state"] for worker in state} == {"ready"}
    assert [worker["in_flight"] + worker["waiting_tokens"] for worker in state] == [0, 0]
    assert [model["id"] for model in httpx.get(f"{url}/v1/models").json()["data"]] == ["smollm2-135m"]


def test_another_system_prompt_goes_to_the_idle_worker_when_the_first_is_busy(stack: tuple[str, list[str]]) -> None:
    url, _ = stack
    with httpx.Client(timeout=120) as client:
        body = {
            "messages": [{"role": "user", "content": "Count slowly. " * 60}],
            "max_tokens": 60,
            "stream": True,
            "ignore_eos": True,
        }
        with client.stream("POST", f"{url}/v1/chat/completions", json=body) as busy:
            pieces = busy.iter_bytes()  # kept: httpx closes a stream whose iterator is dropped
            next(pieces)
            other = ask(url, [{"role": "system", "content": "Be brief. " * 40}, {"role": "user", "content": "Hi"}])
            assert other.headers["x-warmroute-worker"] != busy.headers["x-warmroute-worker"]
