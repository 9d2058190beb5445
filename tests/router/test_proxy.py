"""The data path over real sockets: what goes in must come out, and nothing may stay behind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import httpx
import orjson
import pytest
from support.fleet import account_of
from support.peer import STREAM_HEAD, Handler, Peer, PeerConnection, answering, chunk, response
from support.router import CONFIG, RunningRouter, running_router, until
from warmroute_router.blocks import BLOCK_BYTES
from warmroute_router.fleet import State
from warmroute_router.prompt import read_prompt

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
HOP_BY_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"upgrade", b"trailer", b"proxy-connection"}


@asynccontextmanager
async def routed(handler: Handler, **changes: object) -> AsyncIterator[tuple[Peer, RunningRouter]]:
    config = replace(CONFIG, **changes)  # type: ignore[arg-type]
    async with Peer(handler).listening() as peer, running_router(peer.url, config=config) as router:
        yield peer, router
        await until(lambda: all(not worker.in_flight for worker in router.app.fleet.workers))
        router.assert_idle()


async def raw(router: RunningRouter, request: bytes) -> bytes:
    """Send bytes, and read until the router closes (ask for that with `connection: close`)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
    writer.write(request)
    try:
        return await reader.read(-1)
    finally:
        writer.close()


def chat_body(words: int = 4, **fields: Any) -> bytes:
    return orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "word " * words}], **fields})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{not json",
        b"\x00\xff\xfe",
        b'{"messages":[{"role":"user","content":"hi"}],  "rid":"x",\n"priority": 3, "unknown": {"b":1,"a":2}}',
        chat_body(200_000),
    ],
    ids=["empty", "not-json", "binary", "unknown-fields", "1MB"],
)
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_bodies_arrive_byte_for_byte(body: bytes, chunked: bool) -> None:
    async with routed(answering(response(b"{}"))) as (peer, router), httpx.AsyncClient() as client:

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(body), 50_000):
                yield body[start : start + 50_000]

        reply = await client.post(router.url + CHAT, content=pieces() if chunked else body)
        assert reply.status_code == 200
        assert peer.seen[0].body == body
        assert peer.seen[0].header(b"content-length") == str(len(body)).encode()


async def test_request_headers_pass_but_the_hop_by_hop_ones() -> None:
    sent = (
        b"GET /v1/some%20where?a=1&a=%2F HTTP/1.1\r\nHost: public.example\r\nAuthorization: Bearer secret\r\n"
        b"X-Custom: one\r\nX-Custom: two\r\nCookie: a=b\r\nAccept-Encoding: gzip\r\nX-Request-Id: rid-1\r\n"
        b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nX-Empty:\r\nX-Latin: caf\xe9\r\n"
        b"X-Forwarded-For: 10.0.0.1\r\nTE: trailers\r\nKeep-Alive: 5\r\nProxy-Connection: x\r\n"
        b"Connection: close, X-Per-Hop\r\nX-Per-Hop: gone\r\n\r\n"
    )
    async with routed(answering(response(b"{}"))) as (peer, router):
        answer = await raw(router, sent)
        seen = peer.seen[0]
        assert seen.request_line == b"GET /v1/some%20where?a=1&a=%2F HTTP/1.1"
        expected = [
            (b"host", peer.url.removeprefix("http://").encode()),
            (b"authorization", b"Bearer secret"),
            (b"x-custom", b"one"),
            (b"x-custom", b"two"),
            (b"cookie", b"a=b"),
            (b"accept-encoding", b"gzip"),
            (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            (b"x-empty", b""),
            (b"x-latin", b"caf\xe9"),
            (b"x-forwarded-for", b"10.0.0.1, 127.0.0.1"),
            (b"x-forwarded-host", b"public.example"),
            (b"x-forwarded-proto", b"http"),
            (b"x-request-id", b"rid-1"),
        ]
        assert seen.headers == expected
        assert b"x-request-id: rid-1\r\n" in answer


async def test_a_request_without_an_id_gets_one_and_the_answer_names_it() -> None:
    async with routed(answering(response(b"{}"))) as (peer, router), httpx.AsyncClient() as client:
        replies = [await client.get(router.url + "/x") for _ in range(2)]
        ids = [reply.headers["x-request-id"] for reply in replies]
        assert [seen.header(b"x-request-id") for seen in peer.seen] == [each.encode() for each in ids]
        assert len(set(ids)) == 2


async def test_response_status_headers_and_body_pass() -> None:
    headers = (
        b"Content-Type: text/plain; charset=latin-1\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nServer: engine\r\n"
        b"Date: yesterday\r\nX-Odd: caf\xe9\r\nKeep-Alive: timeout=5\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n"
    )
    async with routed(answering(response(b"caf\xe9", b"418 Teapot", headers))) as (peer, router):
        answer = await raw(router, b"DELETE /any/path HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        assert lines[0].startswith(b"HTTP/1.1 418 ")
        assert lines[1:7] == [
            b"content-type: text/plain; charset=latin-1",
            b"set-cookie: a=1",
            b"set-cookie: b=2",
            b"server: engine",
            b"date: yesterday",
            b"x-odd: caf\xe9",
        ]
        names = [line.partition(b":")[0] for line in lines[1:]]
        assert not {b"keep-alive", b"x-hop"} & set(names)
        assert names.count(b"connection") == 1
        assert names.count(b"content-length") == 1
        assert body == b"caf\xe9"
        assert f"x-warmroute-worker: {peer.url}".encode() in lines


async def test_the_receipt_tells_what_was_matched() -> None:
    async with routed(answering(response(b"{}"))) as (_, router), httpx.AsyncClient() as client:
        replies = [await client.post(router.url + CHAT, content=chat_body(400)) for _ in range(2)]
        matched = [int(reply.headers["x-warmroute-matched-tokens"]) for reply in replies]
        tokens = int(replies[0].headers["x-warmroute-prompt-tokens"])
        assert tokens == pytest.approx(2000 / 4, abs=5)
        assert matched == [0, tokens // 64 * 64]
        assert replies[0].headers["x-warmroute-policy"] == "cache_aware"


@pytest.mark.parametrize(
    ("method", "answer", "status", "body"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", 200, b""),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        ("GET", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", 304, b""),
        ("GET", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 200, b""),
        ("GET", b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + response(b"final"), 200, b"final"),
        (
            "GET",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx-trailer: 1\r\n\r\n",
            200,
            b"abc",
        ),
        ("OPTIONS", response(b"ok"), 200, b"ok"),
    ],
    ids=["head", "204", "304", "empty", "interim", "trailers", "options"],
)
async def test_every_way_to_end_a_response_keeps_the_connection(
    method: str, answer: bytes, status: int, body: bytes
) -> None:
    async with routed(answering(answer)) as (peer, router), httpx.AsyncClient() as client:
        for _ in range(3):
            reply = await client.request(method, router.url + "/x")
            assert (reply.status_code, reply.content) == (status, body)
            assert "x-trailer" not in reply.headers
            assert "link" not in reply.headers
        assert len(peer.seen) == 3
        assert router.app.fleet.workers[0].pool.idle == 1


async def test_a_response_that_ends_with_its_connection_is_whole() -> None:
    async def answer(connection: PeerConnection) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nsome ")
        await connection.send(b"text")
        connection.writer.close()

    async with routed(answer) as (_, router), httpx.AsyncClient() as client:
        reply = await client.get(router.url + "/x")
        assert (reply.status_code, reply.content) == (200, b"some text")
        assert router.app.fleet.workers[0].pool.idle == 0


async def test_a_stream_passes_event_by_event_in_order() -> None:
    step = asyncio.Event()
    events = [b"data: %d\n\n" % number for number in range(5)]

    async def answer(connection: PeerConnection) -> None:
        await connection.send(STREAM_HEAD)
        for event in events:
            await connection.send(chunk(event))
            await step.wait()  # the client has this event before the next is sent
            step.clear()
        await connection.send(b"0\r\n\r\n")

    async with (
        routed(answer) as (_, router),
        httpx.AsyncClient() as client,
        client.stream("POST", router.url + CHAT, content=chat_body(stream=True)) as reply,
    ):
        assert reply.headers["content-type"] == "text/event-stream"
        received = []
        async for piece in reply.aiter_raw():
            received.append(piece)
            step.set()
        assert received == events


async def test_load_is_reserved_at_the_decision_and_released_in_two_steps() -> None:
    first_byte, end = asyncio.Event(), asyncio.Event()

    async def answer(connection: PeerConnection) -> None:
        await first_byte.wait()
        await connection.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
        await end.wait()
        await connection.send(b"0\r\n\r\n")

    async with routed(answer) as (peer, router), httpx.AsyncClient() as client:
        worker = router.app.fleet.workers[0]
        body = chat_body(400, stream=True)
        posted = asyncio.create_task(client.post(router.url + CHAT, content=body))
        await until(lambda: bool(peer.seen))
        assert worker.in_flight == 1
        assert worker.waiting_tokens == pytest.approx(2000 / 4, abs=5)
        first_byte.set()
        await until(lambda: worker.waiting_tokens == 0)
        assert worker.in_flight == 1
        end.set()
        await posted
        router.assert_idle()


@pytest.mark.parametrize("moment", ["before the head", "between chunks"])
async def test_a_client_that_leaves_closes_the_workers_connection_at_once(moment: str) -> None:
    closed = asyncio.Event()

    async def answer(connection: PeerConnection) -> None:
        if moment == "between chunks":
            await connection.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
        await connection.closed_by_router()  # nothing more is ever sent
        closed.set()

    async with routed(answer) as (peer, router):
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
        body = chat_body(stream=True)
        writer.write(
            b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body)
        )
        if moment == "between chunks":
            await reader.readuntil(b"data: 1\n\n")
        else:
            await until(lambda: bool(peer.seen))
        writer.close()
        async with asyncio.timeout(10):
            await closed.wait()
        worker = router.app.fleet.workers[0]
        await until(lambda: account_of(worker).requests[499] == 1)
        assert worker.pool.idle == 0
        assert worker.state is State.READY


async def test_a_client_that_leaves_while_it_uploads_reaches_no_worker() -> None:
    async with routed(answering(response(b"{}"))) as (peer, router):
        _, writer = await asyncio.open_connection("127.0.0.1", router.port)
        writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nhalf" % CHAT.encode())
        await writer.drain()
        writer.close()
        await until(lambda: router.app.proxy.refused[499] == 1)
        assert peer.seen == []


async def test_a_stalled_reader_holds_back_the_worker() -> None:
    sent = 0
    piece = chunk(b"data: " + b"x" * 8186 + b"\n\n")

    async def answer(connection: PeerConnection) -> None:
        nonlocal sent
        await connection.send(STREAM_HEAD)
        with suppress(ConnectionError):
            while True:
                await connection.send(piece)  # waits once the router reads no more
                sent += len(piece)

    async with routed(answer) as (_, router):
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
        body = chat_body(stream=True)
        writer.write(
            b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body)
        )
        await reader.readuntil(b"\n\n")
        stalled_at = await _settled(lambda: sent)
        assert stalled_at < 32 * 1024 * 1024, "what the kernel's socket buffers hold on both sides, and little more"
        # The stall is no dead end: reading on lets the worker go on.
        for _ in range(2 * stalled_at // 65536):
            assert await reader.read(65536)
        await until(lambda: sent > stalled_at)
        writer.close()


async def _settled(value: "object") -> int:
    """The value, once it has not changed for a while."""
    assert callable(value)
    last = -1
    while last != value():
        last = value()
        await asyncio.sleep(0.3)
    return last


async def test_usage_is_counted_beside_the_prediction() -> None:
    usage = b'{"usage":{"prompt_tokens":1000,"prompt_tokens_details":{"cached_tokens":900}}}'
    async with routed(answering(response(usage))) as (_, router), httpx.AsyncClient() as client:
        for _ in range(2):
            await client.post(router.url + CHAT, content=chat_body(400))
        worker = router.app.fleet.workers[0]
        await until(lambda: account_of(worker).prompt_tokens == 2000)
        assert account_of(worker).delivered_tokens == 1800
        # Of the second prompt, 7 full blocks had been sent before; the first reply told how long a token is.
        prompt = read_prompt(CHAT, chat_body(400))
        assert prompt is not None
        share = 7 * BLOCK_BYTES / len(prompt.key)
        assert account_of(worker).available_tokens == account_of(worker).captured_tokens == round(share * 1000)
        assert account_of(worker).unreported_requests == 0


async def test_usage_in_the_last_chunk_of_a_stream_is_counted() -> None:
    async def answer(connection: PeerConnection) -> None:
        await connection.send(STREAM_HEAD + chunk(b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'))
        last = b'data: {"choices":[],"usage":{"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":7}}}\n\n'
        await connection.send(chunk(last[:40]))
        await connection.send(chunk(last[40:] + b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with routed(answer) as (_, router), httpx.AsyncClient() as client:
        await client.post(router.url + CHAT, content=chat_body(stream=True))
        worker = router.app.fleet.workers[0]
        await until(lambda: account_of(worker).prompt_tokens == 10)
        assert account_of(worker).delivered_tokens == 7


async def test_a_reply_that_says_nothing_of_the_cache_is_unknown() -> None:
    async with routed(answering(response(b'{"usage":{"prompt_tokens":10}}'))) as (_, router):
        async with httpx.AsyncClient() as client:
            await client.post(router.url + CHAT, content=chat_body())
        worker = router.app.fleet.workers[0]
        await until(lambda: account_of(worker).unreported_requests == 1)
        assert account_of(worker).prompt_tokens == account_of(worker).delivered_tokens == 0


async def test_a_connection_that_the_worker_closed_while_idle_costs_nobody_anything() -> None:
    async def answer(connection: PeerConnection) -> None:
        await connection.send(response(b"{}"))
        if len(peer_seen) == 1:
            connection.writer.transport.abort()

    peer_seen: list[PeerConnection] = []
    async with routed(answer) as (peer, router), httpx.AsyncClient() as client:
        peer_seen = peer.seen
        for _ in range(3):
            assert (await client.post(router.url + CHAT, content=chat_body())).status_code == 200


async def test_a_kept_connection_that_dies_under_a_request_is_replaced_once() -> None:
    """The worker reads the second request off the kept connection and closes it without a byte."""

    async def answer(connection: PeerConnection) -> None:
        if len(served) == 1 and not dropped:
            dropped.append(connection)
            connection.writer.close()
            return
        served.append(connection)
        await connection.send(response(b"{}"))

    served: list[PeerConnection] = []
    dropped: list[PeerConnection] = []
    async with routed(answer) as (peer, router), httpx.AsyncClient() as client:
        for _ in range(2):
            assert (await client.post(router.url + CHAT, content=chat_body())).status_code == 200
        assert (len(served), len(dropped), peer.connections) == (2, 1, 5)  # three more for probe, models and scrape


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"not http at all\r\n\r\n",
        b"HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n",
    ],
    ids=["nothing", "half-a-head", "garbage", "status-999"],
)
async def test_a_worker_that_breaks_off_before_the_head_is_a_502(answer: bytes) -> None:
    async def break_off(connection: PeerConnection) -> None:
        await connection.send(answer)
        connection.writer.close()

    async with routed(break_off) as (_, router), httpx.AsyncClient() as client:
        reply = await client.post(router.url + CHAT, content=chat_body())
        assert reply.status_code == 502
        assert reply.json()["error"]["code"] == "worker_failed"
        assert account_of(router.app.fleet.workers[0]).requests[502] == 1


async def test_a_worker_that_dies_in_a_stream_ends_it_with_an_error_event() -> None:
    async def die(connection: PeerConnection) -> None:
        await connection.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
        connection.writer.transport.abort()

    async with routed(die) as (_, router):
        body = chat_body(stream=True)
        request = b"POST %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (
            CHAT.encode(),
            len(body),
            body,
        )
        answer = await raw(router, request)
        assert b"data: 1\n\n" in answer
        event = answer.split(b"data: ")[-1].split(b"\n\n")[0]
        assert orjson.loads(event)["error"]["code"] == "worker_failed"


async def test_a_worker_that_dies_in_a_document_cuts_the_connection() -> None:
    async def die(connection: PeerConnection) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\nhalf")
        connection.writer.close()

    async with routed(die) as (_, router), httpx.AsyncClient() as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(router.url + CHAT, content=chat_body())


async def test_a_body_over_the_limit_is_a_413_and_reaches_no_worker() -> None:
    async with routed(answering(response(b"{}")), max_payload_size=1000) as (peer, router):
        declared = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 1001\r\n\r\n" % CHAT.encode()
        chunked = b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % CHAT.encode()
        for request in (declared, chunked + chunk(b"x" * 600) + chunk(b"x" * 600)):
            head, _, body = (await raw(router, request)).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 413 ")
            assert orjson.loads(body)["error"]["code"] == "payload_too_large"
        assert peer.seen == []
        async with httpx.AsyncClient() as client:
            assert (await client.post(router.url + CHAT, content=b"x" * 1000)).status_code == 200
        assert router.app.proxy.refused[413] == 2


async def test_no_worker_up_is_a_503_at_once() -> None:
    async with running_router("http://127.0.0.1:9") as router, httpx.AsyncClient() as client:
        reply = await client.post(router.url + CHAT, content=chat_body())
        assert reply.status_code == 503
        assert reply.headers["retry-after"] == "1"
        assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
        router.assert_idle()


async def test_a_refused_connection_sends_the_request_to_another_worker() -> None:
    async with Peer(answering(response(b"alive"))).listening() as alive:
        async with Peer(answering(response(b"dead"))).listening() as dead:
            router_context = running_router(alive.url, dead.url, config=replace(CONFIG, policy="round_robin"))
            router = await router_context.__aenter__()
        # `dead` listens no more, but the router believes that it is ready.
        async with httpx.AsyncClient() as client:
            replies = [await client.post(router.url + CHAT, content=chat_body()) for _ in range(4)]
        assert [reply.content for reply in replies] == [b"alive"] * 4
        assert router.app.fleet.workers[1].state is State.UNHEALTHY
        router.assert_idle()
        await router_context.__aexit__(None, None, None)


async def test_what_is_not_a_prompt_is_proxied_by_load_alone() -> None:
    async with routed(answering(response(b'{"error":"the engine answers"}', b"400 Bad"))) as (peer, router):
        async with httpx.AsyncClient() as client:
            for body in (b"{not json", b'{"messages": 7}'):
                reply = await client.post(router.url + CHAT, content=body)
                assert (reply.status_code, reply.content) == (400, b'{"error":"the engine answers"}')
        assert [seen.body for seen in peer.seen] == [b"{not json", b'{"messages": 7}']
        assert router.app.tree.blocks == 0


async def test_many_at_once_keep_to_their_own_answers_and_leave_nothing_behind() -> None:
    async def echo(connection: PeerConnection) -> None:
        await asyncio.sleep(0)
        await connection.send(response(connection.body))

    async with routed(echo) as (_, router), httpx.AsyncClient(limits=httpx.Limits(max_connections=20)) as client:
        bodies = [chat_body(number) for number in range(200)]
        replies = await asyncio.gather(*(client.post(router.url + CHAT, content=body) for body in bodies))
        assert [reply.content for reply in replies] == bodies
        assert account_of(router.app.fleet.workers[0]).requests[200] == 200


async def test_a_worker_whose_process_is_gone_has_its_prefixes_forgotten() -> None:
    async with Peer(answering(response(b"dead"))).listening() as dead:
        router_context = running_router(dead.url)
        router = await router_context.__aenter__()
        async with httpx.AsyncClient() as client:
            await client.post(router.url + CHAT, content=chat_body(400))
        assert router.app.tree.held[0] == 7
        router.app.fleet.workers[0].pool.close()
    async with httpx.AsyncClient() as client:
        reply = await client.post(router.url + CHAT, content=chat_body(400))
    assert reply.status_code == 503
    # The request itself was noted as sent there, and then taken back with all the rest.
    assert router.app.tree.blocks == 0
    await router_context.__aexit__(None, None, None)


async def test_other_methods_on_the_routers_own_paths_go_to_a_worker() -> None:
    async with routed(answering(response(b"worker"))) as (peer, router), httpx.AsyncClient() as client:
        for path in ("/v1/models", "/health"):
            assert (await client.post(router.url + path, content=b"{}")).content == b"worker"
        assert len(peer.seen) == 2


async def test_a_client_that_did_not_ask_for_usage_does_not_see_that_the_router_did() -> None:
    """The worker sends the usage event if it is asked for, split over two reads; the client's bytes are the same."""
    events = [b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n', b'data: {"choices":[],"note":"kept"}\n\n']
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":7}}}\n\n'

    async def answer(connection: PeerConnection) -> None:
        asked = orjson.loads(connection.body)
        await connection.send(STREAM_HEAD)
        for event in events:
            await connection.send(chunk(event))
        if asked.get("stream_options") == {"include_usage": True}:
            await connection.send(chunk(usage[:30]))
            await asyncio.sleep(0.01)
            await connection.send(chunk(usage[30:]))
        await connection.send(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    unseen = b"".join(events) + b"data: [DONE]\n\n"
    seen = b"".join(events) + usage + b"data: [DONE]\n\n"
    silent: dict[str, Any] = {"stream": True}
    asking: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    refusing: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": False}}
    async with routed(answer) as (peer, router), httpx.AsyncClient() as client:
        worker = router.app.fleet.workers[0]
        for fields, expected in ((silent, unseen), (asking, seen), (refusing, unseen)):
            reply = await client.post(router.url + CHAT, content=chat_body(**fields))
            assert reply.content == expected
        await until(lambda: account_of(worker).delivered_tokens == 14)
        assert account_of(worker).unreported_requests == 1, "who says no is left in peace"
        assert peer.seen[0].body.replace(b'"stream_options":{"include_usage":true},', b"") == chat_body(stream=True)
        assert peer.seen[1].body == chat_body(**asking)


async def test_usage_injection_can_be_turned_off_and_leaves_other_requests_alone() -> None:
    async with routed(answering(response(b"{}")), usage_injection=False) as (peer, router):
        async with httpx.AsyncClient() as client:
            await client.post(router.url + CHAT, content=chat_body(stream=True))
        assert peer.seen[0].body == chat_body(stream=True)
    async with routed(answering(response(b"{}"))) as (peer, router), httpx.AsyncClient() as client:
        for path, body in ((CHAT, chat_body()), ("/v1/responses", b'{"input":"x","stream":true}')):
            await client.post(router.url + path, content=body)
            assert peer.seen[-1].body == body


async def test_a_session_is_named_by_a_header_or_in_the_body() -> None:
    """Two workers, and prompts that share nothing: only the session keeps them together."""
    async with (
        Peer(answering(response(b"{}"))).listening() as one,
        Peer(answering(response(b"{}"))).listening() as two,
    ):
        config = replace(CONFIG, policy="session")
        async with running_router(one.url, two.url, config=config) as router, httpx.AsyncClient() as client:
            for named in ({"x-session-id": "a"}, {}):
                places = set()
                for number in range(8):
                    fields = {} if named else {"prompt_cache_key": "b"}
                    body = chat_body(100 + number, prefix=number, **fields)
                    reply = await client.post(router.url + CHAT, content=body, headers=named)
                    places.add(reply.headers["x-warmroute-worker"])
                assert len(places) == 1
            assert router.app.routing.decisions["session"] == 14
