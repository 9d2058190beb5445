"""Real engines, one of which is killed while clients wait for it: none of them notices."""

import asyncio

import httpx
import pytest
from warmroute_loadtest.processes import processes, url_in

pytestmark = pytest.mark.anyio

REQUESTS = 12
OPTIONS = ("--model", "smollm2-135m", "--port", "0", "--threads", "1", "--max-total-tokens", "2048")


async def test_who_waits_for_a_worker_that_is_killed_is_answered_by_the_other_one() -> None:
    with processes() as children:
        started = [children.spawn("warmroute_worker", *OPTIONS, "--max-running-requests", "1") for _ in range(2)]
        workers = [url_in(await asyncio.to_thread(children.announcement, process)) for process in started]
        flags = ("--port", "0", "--prometheus-port", "0", "--log-level", "error", "--worker-urls", *workers)
        url = url_in(await asyncio.to_thread(children.start, "warmroute_router", *flags))
        async with httpx.AsyncClient(timeout=120) as client:

            async def ask(number: int) -> httpx.Response:
                text = f"Question {number}: what is {number} plus {number}?"
                body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, "temperature": 0}
                return await client.post(f"{url}/v1/chat/completions", json=body)

            async def loads() -> list[int]:
                told = (await client.get(f"{url}/workers")).json()["workers"]
                return [worker["in_flight"] for worker in told]

            asked = [asyncio.create_task(ask(number)) for number in range(REQUESTS)]
            async with asyncio.timeout(60):
                while min(await loads()) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            started[0].kill()
            replies = await asyncio.gather(*asked)
            assert [reply.status_code for reply in replies] == [200] * REQUESTS
            assert all(reply.json()["usage"]["completion_tokens"] > 0 for reply in replies)
            moved = sum(reply.headers["x-warmroute-worker"] == workers[1] for reply in replies)
            assert moved > REQUESTS // 2
            assert await loads() == [0, 0]
