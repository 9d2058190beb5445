"""More requests than may be in flight, through the whole router."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import httpx
import orjson
import pytest
from support.peer import STREAM_HEAD, Peer, PeerConnection, answering, chunk, response
from support.router import CONFIG, RunningRouter, running_router, until
from warmroute_router.config import AdmissionConfig

pytestmark = pytest.mark.anyio

PATH = "/v1/completions"


class Slow:
    """A worker's handler that begins a stream and ends it when told; counts how many are open at a time."""

    def __init__(self) -> None:
        self.open = 0
        self.most = 0
        self.order: list[str] = []
        self.go_on = asyncio.Semaphore(0)

    async def __call__(self, connection: PeerConnection) -> None:
        self.open += 1
        self.most = max(self.most, self.open)
        self.order.append(orjson.loads(connection.body)["prompt"])
        await connection.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
        await self.go_on.acquire()
        self.open -= 1
        await connection.send(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    def finish(self, streams: int = 1000) -> None:
        for _ in range(streams):
            self.go_on.release()


@asynccontextmanager
async def limited(*workers: Slow, **limits: object) -> AsyncIterator[tuple[RunningRouter, httpx.AsyncClient]]:
    config = replace(CONFIG, admission=AdmissionConfig(**limits))  # type: ignore[arg-type]
    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(Peer(worker).listening()) for worker in workers]
        router = await stack.enter_async_context(running_router(*(peer.url for peer in peers), config=config))
        any_number = httpx.Limits(max_connections=None)
        yield router, await stack.enter_async_context(httpx.AsyncClient(timeout=20, limits=any_number))
        admission = router.app.proxy.admission
        assert admission is not None
        await until(lambda: not admission.in_flight and not admission.waiting)
        router.assert_idle()


Asked = asyncio.Task[httpx.Response]


def ask(
    router: RunningRouter, client: httpx.AsyncClient, name: str, **headers: str
) -> "asyncio.Task[httpx.Response]":
    body = {"prompt": name, "stream": True}
    return asyncio.create_task(client.post(router.url + PATH, json=body, headers=headers))


async def test_the_cap_holds_to_the_last_byte_and_who_waits_is_served_in_order() -> None:
    worker = Slow()
    async with limited(worker, max_concurrent_requests=3, queue_size=20) as (router, client):
        admission = router.app.proxy.admission
        assert admission is not None
        asked: list[Asked] = []
        for number in range(12):
            asked.append(ask(router, client, str(number)))
            await until(lambda: len(worker.order) + admission.waiting == len(asked))
        assert (worker.open, admission.in_flight, admission.waiting) == (3, 3, 9)
        worker.finish()
        replies = await asyncio.gather(*asked)
        assert [reply.status_code for reply in replies] == [200] * 12
        assert worker.most == 3
        assert worker.order == [str(number) for number in range(12)]


async def test_beyond_the_queue_it_is_a_429_at_once() -> None:
    worker = Slow()
    async with limited(worker, max_concurrent_requests=2, queue_size=3) as (router, client):
        asked = [ask(router, client, str(number)) for number in range(20)]
        await until(lambda: sum(task.done() for task in asked) == 15)
        refused = [task.result() for task in asked if task.done()]
        assert {reply.status_code for reply in refused} == {429}
        assert all(1 <= int(reply.headers["retry-after"]) <= 60 for reply in refused)
        assert refused[0].json()["error"]["code"] == "queue_full"
        assert router.app.proxy.refused[429] == 15
        worker.finish()
        assert sorted(reply.status_code for reply in await asyncio.gather(*asked)) == [200] * 5 + [429] * 15


async def test_who_waits_too_long_gets_a_429() -> None:
    worker = Slow()
    async with limited(worker, max_concurrent_requests=1, queue_timeout=0.2) as (router, client):
        first = ask(router, client, "first")
        await until(lambda: bool(worker.order))
        late = await ask(router, client, "late")
        assert (late.status_code, late.json()["error"]["code"]) == (429, "queue_timeout")
        worker.finish()
        assert (await first).status_code == 200


async def test_a_client_that_leaves_the_queue_leaves_nothing_there() -> None:
    worker = Slow()
    async with limited(worker, max_concurrent_requests=1) as (router, client):
        admission = router.app.proxy.admission
        assert admission is not None
        first = ask(router, client, "first")
        await until(lambda: bool(worker.order))
        gone = ask(router, client, "gone")
        await until(lambda: admission.waiting == 1)
        gone.cancel()
        await until(lambda: admission.waiting == 0)
        worker.finish()
        assert (await first).status_code == 200
        assert worker.order == ["first"]


async def test_the_cap_of_each_worker_holds() -> None:
    workers = Slow(), Slow()
    async with limited(*workers, max_per_worker=2) as (router, client):
        admission = router.app.proxy.admission
        assert admission is not None
        asked = [ask(router, client, str(number)) for number in range(10)]
        await until(lambda: admission.waiting == 6)
        assert [worker.open for worker in workers] == [2, 2]
        for worker in workers:
            worker.finish()
        assert [reply.status_code for reply in await asyncio.gather(*asked)] == [200] * 10
        assert [worker.most for worker in workers] == [2, 2]


async def test_with_fairness_one_client_with_many_does_not_keep_out_one_with_few() -> None:
    worker = Slow()
    async with limited(worker, max_concurrent_requests=1, queue_size=4, fair_by="x-team") as (router, client):
        admission = router.app.proxy.admission
        assert admission is not None
        asked = [ask(router, client, f"many {number}", **{"x-team": "many"}) for number in range(5)]
        await until(lambda: admission.waiting == 4)
        few = ask(router, client, "few", **{"x-team": "few"})
        await until(lambda: sum(task.done() for task in asked) == 1)
        worker.finish()
        assert (await few).status_code == 200
        assert sorted(reply.status_code for reply in await asyncio.gather(*asked)) == [200] * 4 + [429]
        assert worker.order.index("few") <= 2


async def test_without_a_worker_nobody_waits_for_room() -> None:
    async with limited(max_per_worker=1) as (router, client):
        reply = await client.post(router.url + PATH, json={"prompt": "x"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_worker_available")


async def test_the_rate_is_that_of_requests_started() -> None:
    config = replace(CONFIG, admission=AdmissionConfig(rate=5.0, queue_size=2))
    clock = asyncio.get_running_loop().time
    async with (
        Peer(answering(response(b"{}"))).listening() as peer,
        running_router(peer.url, config=config) as router,
        httpx.AsyncClient(timeout=20) as client,
    ):
        began = clock()
        asked = [asyncio.create_task(client.get(router.url + "/x")) for _ in range(100)]
        codes = [reply.status_code for reply in await asyncio.gather(*asked)]
        # The bucket holds five, two wait for theirs, and each second earns five more.
        assert 7 <= codes.count(200) <= 5 + 5 * (clock() - began)
        assert codes.count(200) + codes.count(429) == 100
