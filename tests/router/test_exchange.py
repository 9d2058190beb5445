"""A request whose worker fails: who gets it next, what the client sees, and what is left behind."""

import asyncio
import gc
import os
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import httpx
import orjson
import pytest
from support.fleet import account_of
from support.peer import STREAM_HEAD, Handler, Peer, PeerConnection, answering, chunk, response
from support.router import CONFIG, RunningRouter, running_router, until
from warmroute_router.config import BreakerConfig, HealthConfig, RetryConfig, TimeoutConfig, WorkerSpec
from warmroute_router.fleet import State
from warmroute_router.upstream.connection import Connection

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
GOOD = response(b'{"good":1}')
# One try after the other, in the order of the workers: the first request goes to the first one.
IN_TURN = replace(CONFIG, policy="round_robin")
NO_PAUSE = RetryConfig(initial_backoff=0.001)


@asynccontextmanager
async def fleet(*handlers: Handler, **changes: Any) -> AsyncIterator[tuple[RunningRouter, list[Peer]]]:
    """A router in front of these; checks that nothing stays behind."""
    peers = [Peer(handler) for handler in handlers]
    config = replace(IN_TURN, **{"retries": NO_PAUSE, **changes})
    async with AsyncExitStack() as stack:
        for peer in peers:
            await stack.enter_async_context(peer.listening())
        router = await stack.enter_async_context(running_router(*(peer.url for peer in peers), config=config))
        yield router, peers
        await until(lambda: all(not worker.in_flight for worker in router.app.fleet.workers))
        router.assert_idle()
        assert all(not worker.pool.busy for worker in router.app.fleet.workers)
        assert router.app.proxy.bodies.held == 0


def chat(**fields: Any) -> bytes:
    return orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "word " * 300}], **fields})


async def post(router: RunningRouter, path: str = CHAT, body: bytes | None = None) -> httpx.Response:
    async with httpx.AsyncClient(timeout=20, verify=False) as client:  # it reads no certificates
        return await client.post(router.url + path, content=chat() if body is None else body)


async def dies(connection: PeerConnection) -> None:
    connection.writer.transport.abort()


async def closes_after_the_head(connection: PeerConnection) -> None:
    await connection.send(STREAM_HEAD)
    connection.writer.close()


async def hangs(connection: PeerConnection) -> None:
    await connection.closed_by_router()


def status(line: bytes, headers: bytes = b"") -> Handler:
    return answering(response(b'{"own":"words"}', line, b"content-type: application/x-own\r\n" + headers))


BEFORE_THE_FIRST_BYTE = {
    "dies": dies,
    "garbage": answering(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "half a head": answering(b"HTTP/1.1 200 OK\r\ncontent-le"),
    "a head, and no body": closes_after_the_head,
    "502": status(b"502 Bad Gateway"),
    "503": status(b"503 Service Unavailable"),
    "504": status(b"504 Gateway Timeout"),
    "429": status(b"429 Too Many Requests"),
}


async def closing(handler: Handler, connection: PeerConnection) -> None:
    await handler(connection)
    connection.writer.close()


@pytest.mark.parametrize("fault", BEFORE_THE_FIRST_BYTE.values(), ids=BEFORE_THE_FIRST_BYTE)
async def test_before_the_first_byte_another_worker_answers(fault: Handler) -> None:
    async def handler(connection: PeerConnection) -> None:
        await closing(fault, connection)

    async with fleet(handler, answering(GOOD)) as (router, (bad, good)):
        reply = await post(router)
        assert (reply.status_code, reply.content) == (200, b'{"good":1}')
        assert reply.headers["x-warmroute-worker"] == good.url
        assert [len(bad.seen), len(good.seen)] == [1, 1]
        assert bad.seen[0].body == good.seen[0].body
        assert router.app.fleet.workers[0].retries == 1
        assert router.app.tree.held.keys() == {1}, "the first one has not computed the prompt"


@pytest.mark.parametrize("fault", [dies, closes_after_the_head, status(b"503 Service Unavailable")])
async def test_what_may_have_had_an_effect_is_sent_once(fault: Handler) -> None:
    async with fleet(fault, answering(GOOD)) as (router, (bad, good)):
        reply = await post(router, "/v1/files")
        assert reply.status_code in (502, 503)
        assert [len(bad.seen), len(good.seen)] == [1, 0]


async def test_what_may_have_had_an_effect_does_not_go_over_a_kept_connection() -> None:
    async with fleet(answering(GOOD), health=HealthConfig(interval=3600.0)) as (router, (peer,)):
        for path, connections in ((CHAT, 3), (CHAT, 3), ("/v1/files", 4), ("/v1/files", 5)):
            await post(router, path)
            assert peer.connections - connections in (0, 1), "and two or three for the router's own questions"


async def test_nobody_is_asked_twice_and_the_last_answer_is_the_workers_own() -> None:
    busy = [status(b"503 Service Unavailable", b"retry-after: 7\r\n") for _ in range(3)]
    async with fleet(*busy) as (router, peers):
        reply = await post(router)
        assert (reply.status_code, reply.content) == (503, b'{"own":"words"}')
        assert (reply.headers["content-type"], reply.headers["retry-after"]) == ("application/x-own", "7")
        assert [len(peer.seen) for peer in peers] == [1, 1, 1]


async def test_there_are_no_more_tries_than_allowed() -> None:
    async with fleet(*[dies] * 5, retries=RetryConfig(max_retries=2)) as (router, peers):
        reply = await post(router)
        assert reply.status_code == 502
        assert reply.json()["error"]["code"] == "worker_failed"
        assert sum(len(peer.seen) for peer in peers) == 3


@pytest.mark.parametrize("line", [b"400 Bad Request", b"404 Not Found", b"422 Unprocessable", b"501 No"])
async def test_other_errors_pass_as_they_are(line: bytes) -> None:
    async with fleet(status(line), answering(GOOD)) as (router, (_, good)):
        reply = await post(router)
        assert (reply.status_code, reply.content) == (int(line[:3]), b'{"own":"words"}')
        assert reply.headers["content-type"] == "application/x-own"
        assert len(good.seen) == 0


async def test_a_500_is_asked_for_elsewhere_and_counts_where_the_other_one_answers() -> None:
    async with fleet(status(b"500 Oops"), answering(GOOD), policy="cache_aware") as (router, (bad, _)):
        assert [(await post(router)).status_code for _ in range(30)] == [200] * 30
        guards = [worker.guard for worker in router.app.fleet.workers]
        assert guards[0].opened <= 1
        assert guards[1].closed
        assert len(bad.seen) <= 5


async def test_a_500_of_two_workers_is_the_requests_own_fault() -> None:
    sick = [status(b"500 Oops") for _ in range(3)]
    async with fleet(*sick) as (router, peers):
        for _ in range(20):
            reply = await post(router)
            assert (reply.status_code, reply.content) == (500, b'{"own":"words"}')
        assert sum(len(peer.seen) for peer in peers) == 40
        assert all(worker.guard.closed for worker in router.app.fleet.workers)


async def test_after_the_first_byte_nothing_is_tried_again() -> None:
    async def dies_later(connection: PeerConnection) -> None:
        await connection.send(STREAM_HEAD + chunk(b'data: {"text":"hi"}\n\n'))
        connection.writer.close()

    async with fleet(dies_later, answering(GOOD)) as (router, (_, good)):
        reply = await post(router, body=chat(stream=True))
        first, event, last = reply.content.partition(b"\n\nevent: error\ndata: ")
        assert (first, len(good.seen)) == (b'data: {"text":"hi"}\n\n', 0)
        assert event
        assert orjson.loads(last)["error"]["code"] == "worker_failed"
        assert account_of(router.app.fleet.workers[0]).requests == {502: 1}


async def test_a_killed_worker_costs_those_who_wait_for_it_nothing() -> None:
    """Also those whose stream has a head, as engines send it before they begin with the prompt."""
    killed = asyncio.Event()

    async def killed_later(connection: PeerConnection) -> None:
        await connection.send(STREAM_HEAD)
        await killed.wait()
        connection.writer.transport.abort()

    async with fleet(killed_later, answering(GOOD), policy="least_load") as (router, (bad, good)):
        replies = [asyncio.create_task(post(router, body=chat(stream=True))) for _ in range(40)]
        await until(lambda: len(bad.seen) > 3)
        killed.set()
        assert [reply.status_code for reply in await asyncio.gather(*replies)] == [200] * 40
        assert len(good.seen) == 40


async def test_bad_requests_open_no_breaker() -> None:
    async def picky(connection: PeerConnection) -> None:
        good = b"fine" in connection.body
        await connection.send(GOOD if good else response(b"{}", b"400 Bad Request"))

    async with fleet(picky) as (router, _):
        for _ in range(30):
            assert (await post(router)).status_code == 400
        assert (await post(router, body=b'{"prompt":"fine"}')).status_code == 200
        assert router.app.fleet.workers[0].guard.closed


async def test_a_worker_that_says_it_is_full_is_left_alone_and_no_fault() -> None:
    async with fleet(status(b"503 Service Unavailable"), answering(GOOD), policy="cache_aware") as (router, peers):
        replies = [await post(router) for _ in range(20)]
        assert [reply.status_code for reply in replies] == [200] * 20
        assert len(peers[0].seen) <= 2
        assert router.app.fleet.workers[0].guard.opened == 0


async def test_faults_open_the_breaker_all_open_is_a_503_and_it_heals_by_itself() -> None:
    healed = False

    async def handler(connection: PeerConnection) -> None:
        await connection.send(GOOD if healed else response(b"{}", b"500 Internal Server Error"))

    breaker = BreakerConfig(failure_threshold=3, success_threshold=2, timeout=2.5)
    async with fleet(handler, breaker=breaker) as (router, (peer,)), httpx.AsyncClient(timeout=20) as client:

        async def ask() -> httpx.Response:
            return await client.post(router.url + CHAT, content=chat())

        assert [(await ask()).status_code for _ in range(4)] == [500, 500, 500, 503]
        reply = await ask()
        assert reply.json()["error"]["code"] == "circuit_breakers_open"
        assert reply.headers["retry-after"] in ("1", "2", "3")
        assert len(peer.seen) == 3
        healed = True
        await asyncio.sleep(2.5)
        assert [(await ask()).status_code for _ in range(3)] == [200, 200, 200]
        assert router.app.fleet.workers[0].guard.closed


async def test_a_half_open_breaker_lets_few_through() -> None:
    go_on = asyncio.Event()
    broken = True

    async def handler(connection: PeerConnection) -> None:
        if broken:
            await connection.send(response(b"{}", b"500 Internal Server Error"))
        else:
            await go_on.wait()
            await connection.send(GOOD)

    breaker = BreakerConfig(failure_threshold=2, success_threshold=2, timeout=0.2)
    async with fleet(handler, breaker=breaker) as (router, (peer,)):
        assert [(await post(router)).status_code for _ in range(2)] == [500, 500]
        broken = False
        await asyncio.sleep(0.2)
        replies = [asyncio.create_task(post(router)) for _ in range(10)]
        await until(lambda: sum(reply.done() for reply in replies) == 8)
        assert len(peer.seen) == 4
        go_on.set()
        assert sorted(reply.status_code for reply in await asyncio.gather(*replies)) == [200] * 2 + [503] * 8


@pytest.mark.parametrize(
    ("timeouts", "code"),
    [
        (TimeoutConfig(first_byte=0.2), "first_byte_timeout"),
        (TimeoutConfig(total=0.2), "request_timeout"),
    ],
)
async def test_a_worker_that_says_nothing_is_a_504_that_says_which(timeouts: TimeoutConfig, code: str) -> None:
    async with fleet(hangs, timeouts=timeouts) as (router, _):
        reply = await post(router)
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, code)
        assert f"--{code.removesuffix('_timeout').replace('_', '-')}-timeout-secs" in reply.json()["error"]["message"]
        assert account_of(router.app.fleet.workers[0]).requests == {504: 1}


async def test_a_connection_that_takes_too_long_is_a_504_that_says_so_or_a_try_elsewhere() -> None:
    full = socket.socket()  # its queue of connections is full: the kernel answers no more of them
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    url = f"http://127.0.0.1:{full.getsockname()[1]}"
    waiting = [socket.socket() for _ in range(4)]
    for each in waiting:
        each.setblocking(False)
        with suppress(BlockingIOError):
            each.connect(full.getsockname())
    timeouts = TimeoutConfig(connect=1.0)
    async with fleet(answering(GOOD), timeouts=timeouts) as (router, (peer,)):
        stuck = router.app.fleet.add(WorkerSpec(url))
        for worker in router.app.fleet.workers:
            worker.state = State.READY if worker is stuck else State.UNHEALTHY
        reply = await post(router)
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "connect_timeout")
        assert "--connect-timeout-secs" in reply.json()["error"]["message"]
        for worker in router.app.fleet.workers:
            worker.state = State.READY
        replies = [await post(router) for _ in range(2)]
        assert [each.status_code for each in replies] == [200, 200]
        assert len(peer.seen) == 2
    for each in (full, *waiting):
        each.close()


async def test_that_the_router_is_out_of_descriptors_is_not_the_workers_fault() -> None:
    async with fleet(answering(GOOD)) as (router, _):
        worker = router.app.fleet.workers[0]
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)  # the lowest number that is not taken
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        try:
            writer.write(b"GET /x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            answer = await reader.read(-1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            writer.close()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert orjson.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "router_exhausted"
        assert (worker.state, worker.guard.closed) == (State.READY, True)
        assert (await post(router)).status_code == 200


async def test_a_worker_that_says_nothing_in_time_is_replaced() -> None:
    async with fleet(hangs, answering(GOOD), timeouts=TimeoutConfig(first_byte=1.0)) as (router, _):
        assert (await post(router)).status_code == 200


@pytest.mark.parametrize(
    ("timeouts", "code"), [(TimeoutConfig(idle=1.0), "idle_timeout"), (TimeoutConfig(total=1.0), "request_timeout")]
)
async def test_a_stream_that_stalls_ends_with_an_error_event(timeouts: TimeoutConfig, code: str) -> None:
    async def stalls(connection: PeerConnection) -> None:
        await connection.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
        await connection.closed_by_router()

    async with fleet(stalls, answering(GOOD), timeouts=timeouts) as (router, (_, good)):
        reply = await post(router, body=chat(stream=True))
        assert reply.status_code == 200
        event = reply.content.partition(b"event: error\ndata: ")[2]
        assert orjson.loads(event)["error"]["code"] == code
        assert len(good.seen) == 0


async def test_no_timeout_by_default_cuts_a_long_generation() -> None:
    assert TimeoutConfig() == TimeoutConfig(connect=5.0, first_byte=None, idle=None, total=None)


async def test_a_slow_reader_does_not_make_its_worker_late() -> None:
    """While the router holds the worker back, the worker owes nothing."""
    size = 20_000_000

    async def handler(connection: PeerConnection) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size
        await connection.send(head + b"x" * size)

    async with fleet(handler, timeouts=TimeoutConfig(idle=1.0)) as (router, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port, limit=1024)
        writer.write(b"GET /big HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(2.5)
        assert head.startswith(b"HTTP/1.1 200")
        assert len(await reader.read(-1)) == size
        writer.close()


async def test_a_worker_that_hangs_with_its_health_loses_its_requests_to_another() -> None:
    """With default timeouts, that is with none: probes find out."""
    stuck = False

    async def handler(connection: PeerConnection) -> None:
        nonlocal stuck
        stuck = True
        await connection.closed_by_router()

    health = HealthConfig(endpoint="/probe", interval=0.1, timeout=1.0, failure_threshold=2)

    async def sick(connection: PeerConnection) -> None:
        if connection.request_line.startswith(b"GET /probe") and not stuck:
            await connection.send(response(b"{}"))
        else:
            await handler(connection)

    async def well(connection: PeerConnection) -> None:
        await connection.send(GOOD)

    async with fleet(sick, well, health=health) as (router, _):
        assert (await post(router)).status_code == 200
        assert router.app.fleet.workers[0].state is State.UNHEALTHY


@pytest.mark.parametrize("state", [State.UNHEALTHY, State.DRAINING])
async def test_it_loses_them_also_where_something_else_has_put_it_out_first(state: State) -> None:
    """As a connection that nobody took, or its source that says that it is not ready any more, or is about to go."""
    stuck = False

    async def sick(connection: PeerConnection) -> None:
        nonlocal stuck
        if connection.request_line.startswith(b"GET /probe") and not stuck:
            await connection.send(response(b"{}"))
            return
        stuck = True
        await connection.closed_by_router()

    health = HealthConfig(endpoint="/probe", interval=0.1, timeout=1.0, failure_threshold=2)
    async with fleet(sick, answering(GOOD), health=health) as (router, (bad, _)):
        worker = router.app.fleet.workers[0]
        reply = asyncio.create_task(post(router))
        await until(lambda: any(b"POST" in each.request_line for each in bad.seen))
        if state is State.DRAINING:
            router.app.fleet.drain(worker)
        else:
            worker.spec = replace(worker.spec, ready=False)
            worker.state = state
        assert (await reply).status_code == 200
        assert worker.state in (state, State.GONE)


async def test_one_that_is_put_out_and_answers_on_keeps_them() -> None:
    """Probes get nothing out of it, while one answer is on its way and another is waited for."""
    putting_out, go_on = asyncio.Event(), asyncio.Event()

    async def busy(connection: PeerConnection) -> None:
        if connection.request_line.startswith(b"GET /probe"):
            if putting_out.is_set():
                await connection.closed_by_router()
            await connection.send(response(b"{}"))
        elif b"stream" in connection.body:
            await connection.send(STREAM_HEAD)
            while not go_on.is_set():
                await connection.send(chunk(b"data: x\n\n"))
                await asyncio.sleep(0.01)
            await connection.send(b"0\r\n\r\n")
        else:
            await go_on.wait()
            await connection.send(GOOD)

    health = HealthConfig(endpoint="/probe", interval=0.1, timeout=1.0, failure_threshold=2)
    async with fleet(busy, health=health) as (router, (peer,)):
        worker = router.app.fleet.workers[0]
        stream = asyncio.create_task(post(router, body=chat(stream=True)))
        waiting = asyncio.create_task(post(router))
        await until(lambda: worker.in_flight == 2)
        worker.spec = replace(worker.spec, ready=False)
        worker.state = State.UNHEALTHY
        putting_out.set()
        before = peer.connections
        await until(lambda: peer.connections >= before + 4)  # more than `failure_threshold` probes have failed
        go_on.set()
        assert [(await stream).status_code, (await waiting).status_code] == [200, 200]
        assert worker.retries == 0


async def test_a_connection_that_breaks_has_its_worker_probed_at_once() -> None:
    async with fleet(dies, answering(GOOD), health=HealthConfig(interval=60.0)) as (router, peers):
        before = peers[0].connections
        assert (await post(router)).status_code == 200
        await until(lambda: peers[0].connections >= before + 2)  # for the request, and for the probe
        assert router.app.fleet.workers[0].state is State.READY, "it is well"


async def test_failed_probes_of_a_worker_that_answers_requests_do_not_count() -> None:
    talking = asyncio.Event()

    async def busy(connection: PeerConnection) -> None:
        if connection.request_line.startswith(b"GET /probe"):
            if talking.is_set():
                await connection.closed_by_router()
            else:
                await connection.send(response(b"{}"))
            return
        await connection.send(STREAM_HEAD)
        talking.set()
        for number in range(100):
            await connection.send(chunk(b"data: %d\n\n" % number))
            await asyncio.sleep(0.025)
        await connection.send(b"0\r\n\r\n")
        talking.clear()

    health = HealthConfig(endpoint="/probe", interval=0.2, timeout=0.5, failure_threshold=2)
    async with fleet(busy, health=health) as (router, _):
        states: set[State] = set()

        async def watch() -> None:
            while True:
                states.add(router.app.fleet.workers[0].state)
                await asyncio.sleep(0.01)

        watching = asyncio.create_task(watch())
        reply = await post(router, body=chat(stream=True))
        watching.cancel()
        assert reply.content.count(b"data: ") == 100
        assert states == {State.READY}


async def test_a_worker_that_answers_early_is_not_given_a_second_request_on_that_connection() -> None:
    """It would take the rest of the first one's body for it."""

    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith((b"GET /health", b"GET /metrics", b"GET /v1/models")):
            writer.write(response(b"{}"))
            await writer.drain()
            writer.close()
            return
        heads.append(head)
        writer.write(response(b"{}", b"413 Too Large"))
        await over.wait()
        writer.close()
        ended.append(None)

    heads: list[bytes] = []
    over, ended = asyncio.Event(), list[None]()
    server = await asyncio.start_server(early, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with running_router(url) as router:
        for _ in range(3):
            assert (await post(router, body=b"x" * 30_000_000)).status_code == 413
        assert [head.split(b" ", 1)[0] for head in heads] == [b"POST"] * 3
        await until(lambda: not router.app.fleet.workers[0].in_flight)
        over.set()
        await until(lambda: len(ended) == 3)
    server.close()


async def test_a_response_head_without_end_is_a_fault() -> None:
    async def endless(connection: PeerConnection) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\n")
        while True:
            await connection.send(b"x-filler: " + b"x" * 1000 + b"\r\n")

    async with fleet(endless) as (router, _):
        reply = await post(router)
        assert (reply.status_code, "no end" in reply.json()["error"]["message"]) == (502, True)


async def test_a_worker_with_a_key_of_its_own_gets_that_one_and_no_other() -> None:
    async with fleet(answering(GOOD), worker_api_key="of-the-worker") as (router, (peer,)):
        async with httpx.AsyncClient(headers={"authorization": "Bearer mine", "x-api-key": "mine"}) as client:
            await client.post(router.url + CHAT, content=chat())
        sent = [(name, value) for name, value in peer.seen[0].headers if name in (b"authorization", b"x-api-key")]
        assert sent == [(b"authorization", b"Bearer of-the-worker")]


async def test_what_a_client_did_not_read_is_given_up_at_once_and_not_by_the_garbage_collector() -> None:
    async def endless(connection: PeerConnection) -> None:
        await connection.send(STREAM_HEAD)
        while True:
            await connection.send(chunk(b"x" * 100_000))

    async with fleet(endless) as (router, _):
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
                writer.write(b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n")
                await reader.readexactly(1_000_000)
                writer.transport.abort()
            await until(lambda: not any(type(each) is Connection for each in gc.get_objects()))
        finally:
            gc.enable()


async def test_a_workers_headers_count_in_any_case_and_go_on_in_lower_case() -> None:
    body = b'{"usage": {"prompt_tokens": 8, "prompt_tokens_details": {"cached_tokens": 4}}}'
    head = b"HTTP/1.1 200 OK\r\nCoNtEnT-LeNgTh: %d\r\nCONTENT-TYPE: application/json\r\nX-Mixed: Yes\r\n\r\n"
    async with fleet(answering(head % len(body) + body)) as (router, _):
        reply = await post(router)
        assert (reply.status_code, reply.content) == (200, body)
        assert [name for name, _ in reply.headers.raw][:3] == [b"content-length", b"content-type", b"x-mixed"]
        assert account_of(router.app.fleet.workers[0]).delivered_tokens == 4
