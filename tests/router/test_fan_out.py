"""What is meant for every worker reaches every worker."""

import httpx
import pytest
from support.peer import Peer, answering, response
from support.router import running_router, until

pytestmark = pytest.mark.anyio

BUSY = response(b"", b"400 Bad Request")


async def test_an_abort_reaches_whoever_runs_the_request() -> None:
    async with (
        Peer(answering(response(b""))).listening() as one,
        Peer(answering(response(b""))).listening() as other,
        running_router(one.url, other.url) as router,
        httpx.AsyncClient() as client,
    ):
        reply = await client.post(router.url + "/abort_request", json={"rid": "r-1"})
        assert reply.json() == {"workers": [{"url": peer.url, "status": 200} for peer in (one, other)]}
        assert reply.status_code == 200
        for peer in (one, other):
            assert [(seen.request_line, seen.body) for seen in peer.seen] == [
                (b"POST /abort_request HTTP/1.1", b'{"rid":"r-1"}')
            ]
        router.assert_idle()


async def test_a_flushed_cache_is_forgotten_where_it_was_flushed() -> None:
    async with (
        Peer(answering(response(b""))).listening() as one,
        Peer(answering(BUSY)).listening() as other,
        running_router(one.url, other.url) as router,
        httpx.AsyncClient() as client,
    ):
        for number in range(4):
            await client.post(router.url + "/v1/completions", json={"prompt": f"{number}" * 1000})
        held = router.app.tree.held
        assert held[0] > 0
        reply = await client.post(router.url + "/flush_cache")
        assert (reply.status_code, [worker["status"] for worker in reply.json()["workers"]]) == (400, [200, 400])
        assert held[0] == 0


async def test_without_workers_there_is_nobody_to_tell() -> None:
    async with running_router("http://127.0.0.1:9") as router, httpx.AsyncClient() as client:
        reply = await client.post(router.url + "/flush_cache")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_worker_available")
        await until(lambda: router.app.proxy.bodies.held == 0)
