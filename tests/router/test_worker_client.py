import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from support.peer import STREAM_HEAD, Handler, Peer, PeerConnection, answering, chunk, response
from support.ports import closed_port
from warmroute_router.config import TlsConfig, WorkerSpec
from warmroute_router.tls import worker_context
from warmroute_router.upstream.worker_client import Answer, Unanswered, WorkerClient

pytestmark = pytest.mark.anyio

PATIENCE = 30.0
"""Seconds; only matters in failure."""
MODELS = "/v1/models"


@asynccontextmanager
async def asking(handler: Handler) -> AsyncIterator[tuple[Peer, WorkerClient, WorkerSpec]]:
    client = WorkerClient(worker_context(TlsConfig()))
    try:
        async with Peer(handler, asks_handler=True).listening() as peer:
            yield peer, client, WorkerSpec(peer.url)
    finally:
        await client.close()


async def refusal(
    client: WorkerClient,
    spec: WorkerSpec,
    *,
    timeout: float = PATIENCE,  # noqa: ASYNC109
    limit: int = 100,
) -> Unanswered:
    with pytest.raises(Unanswered) as caught:
        await client.get(spec, MODELS, timeout=timeout, limit=limit)
    return caught.value


async def test_an_answer_has_its_status_and_its_body() -> None:
    async with asking(answering(response(b"later", status=b"503 Service Unavailable"))) as (peer, client, spec):
        assert await client.get(spec, MODELS, timeout=PATIENCE) == Answer(503, b"later")
        sent = peer.seen[0]
        assert sent.request_line == b"GET /v1/models HTTP/1.1"
        assert sent.header(b"host") == peer.url.removeprefix("http://").encode()
        assert sent.header(b"accept-encoding") == b"identity"


async def test_a_path_in_the_workers_url_stays() -> None:
    async with asking(answering(response(b"{}"))) as (peer, client, spec):
        await client.get(WorkerSpec(f"{spec.url}/Engine%20A"), MODELS, timeout=PATIENCE)
        assert peer.seen[0].request_line == b"GET /Engine%20A/v1/models HTTP/1.1"


@pytest.mark.parametrize(
    ("own", "clients", "sent"),
    [
        ("worker-key", None, [b"Bearer worker-key"]),
        ("worker-key", "Bearer client-key", [b"Bearer worker-key"]),
        (None, "Bearer client-key", [b"Bearer client-key"]),
        (None, None, []),
    ],
)
async def test_exactly_one_key_is_sent(own: str | None, clients: str | None, sent: list[bytes]) -> None:
    async with asking(answering(response(b"{}"))) as (peer, client, spec):
        keyed = WorkerSpec(spec.url, api_key=own)
        await client.get(keyed, MODELS, timeout=PATIENCE, authorization=clients)
        assert [value for name, value in peer.seen[0].headers if name.lower() == b"authorization"] == sent


async def test_a_key_that_no_header_can_carry_is_not_shown() -> None:
    async with asking(answering(response(b"{}"))) as (peer, client, spec):
        for key in ("s3cret\r\nx: y", "s3crét", "s3cret\x00"):
            error = await refusal(client, WorkerSpec(spec.url, api_key=key))
            assert str(error) == "no request can be made with its URL, name and key"
        assert not peer.connections or not peer.seen


async def test_the_name_behind_an_address_goes_into_the_host_header() -> None:
    async with asking(answering(response(b"{}"))) as (peer, client, spec):
        await client.get(WorkerSpec(spec.url, server_name="gpu.example"), MODELS, timeout=PATIENCE)
        port = spec.url.rpartition(":")[2]
        assert [value for name, value in peer.seen[0].headers if name.lower() == b"host"] == [
            f"gpu.example:{port}".encode()
        ]


async def test_what_is_packed_stays_packed() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    headers = b"content-encoding: gzip\r\n"
    async with asking(answering(response(bomb, headers=headers))) as (_, client, spec):
        assert await client.get(spec, MODELS, timeout=PATIENCE, limit=len(bomb)) == Answer(200, bomb)


@pytest.mark.parametrize(
    "length", [b"transfer-encoding: chunked", b"content-length: 1000000000000", b"x: to the end"]
)
async def test_an_answer_without_end_is_cut_at_the_limit(length: bytes) -> None:
    async def answer(connection: PeerConnection) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n\r\n")
        piece = chunk(bytes(65_536)) if b"chunked" in length else bytes(65_536)
        try:
            while True:
                await connection.send(piece)
        except ConnectionError:
            cut.set()

    cut = asyncio.Event()
    async with asking(answer) as (_, client, spec):
        error = await refusal(client, spec, limit=100_000)
        assert (str(error), error.refused) == ("the answer is longer than 100000 bytes", False)
        async with asyncio.timeout(PATIENCE):
            await cut.wait()


async def test_the_limit_itself_is_not_over_it() -> None:
    async with asking(answering(response(bytes(100)))) as (_, client, spec):
        assert (await client.get(spec, MODELS, timeout=PATIENCE, limit=100)).body == bytes(100)
        await refusal(client, spec, limit=99)


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\nx-slow: ", STREAM_HEAD], ids=["silent", "head", "body"])
async def test_a_worker_that_trickles_is_cut_by_the_time(start: bytes) -> None:
    async def answer(connection: PeerConnection) -> None:
        await connection.send(start)
        piece = chunk(b"x") if start == STREAM_HEAD else b"x"
        with suppress(ConnectionError):
            while start and not connection.writer.is_closing():
                await connection.send(piece)
                await asyncio.sleep(0.005)
        await connection.closed_by_router()
        left.set()

    left = asyncio.Event()
    async with asking(answer) as (_, client, spec):
        error = await refusal(client, spec, timeout=1.0, limit=1_000_000)
        assert (str(error), error.refused) == ("no answer within 1 s", False)
        async with asyncio.timeout(PATIENCE):
            await left.wait()


async def test_a_redirect_is_an_answer_and_not_an_order() -> None:
    async with Peer(answering(response(b"{}"))).listening() as other:
        location = b"location: %b/\r\n" % other.url.encode()
        handler = answering(response(b"", status=b"307 Temporary Redirect", headers=location))
        async with asking(handler) as (_, client, spec):
            assert await client.get(spec, MODELS, timeout=PATIENCE) == Answer(307, b"")
        assert other.connections == 0


async def test_the_environments_proxies_are_not_for_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Peer(answering(response(b"proxied"))).listening() as proxy:
        for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(variable, proxy.url)
        async with asking(answering(response(b"direct"))) as (_, client, spec):
            assert (await client.get(spec, MODELS, timeout=PATIENCE)).body == b"direct"
        assert proxy.connections == 0


async def test_cookies_are_not_kept_and_neither_are_connections() -> None:
    async with asking(answering(response(b"{}", headers=b"set-cookie: a=b; path=/\r\n"))) as (peer, client, spec):
        for _ in range(2):
            await client.get(spec, MODELS, timeout=PATIENCE)
        assert [sent.header(b"cookie") for sent in peer.seen] == [None, None]
        assert peer.connections == 2


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_closed_port_is_told_from_other_failures(host: str) -> None:
    with closed_port() as port:
        async with asking(answering(response(b"{}"))) as (_, client, _spec):
            assert (await refusal(client, WorkerSpec(f"http://{host}:{port}"))).refused


async def test_what_the_caller_was_busy_with_is_no_refusal() -> None:
    async with asking(answering(b"garbage\r\n\r\n")) as (_, client, spec):
        try:
            raise ConnectionRefusedError
        except ConnectionRefusedError:
            assert not (await refusal(client, spec)).refused


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        b"x" * 200_000,
        b"HTTP/1.1 200 OK\r\n" + b"x-long: " + b"x" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nhello",
        b"\x16\x03\x01\x00\x05hello",
    ],
    ids=["nothing", "words", "long", "long-head", "short", "two-lengths", "chunk", "upgrade", "tls"],
)
async def test_what_is_not_an_answer_is_a_failure_and_not_a_refusal(answer: bytes) -> None:
    async def answer_and_close(connection: PeerConnection) -> None:
        await connection.send(answer)
        connection.writer.close()

    async with asking(answer_and_close) as (_, client, spec):
        error = await refusal(client, spec)
        assert not error.refused
        assert 0 < len(str(error)) <= 200


@pytest.mark.parametrize("url", ["http://a..b", f"http://{'a' * 64}.example", "http://gpu.invalid"])
async def test_a_name_that_cannot_be_looked_up_is_a_failure(url: str) -> None:
    async with asking(answering(response(b"{}"))) as (_, client, _spec):
        assert not (await refusal(client, WorkerSpec(url))).refused


async def test_workers_that_hang_take_no_place_from_others() -> None:
    async def hang(connection: PeerConnection) -> None:
        if len(hanging.seen) == 150:
            all_there.set()
        await connection.closed_by_router()

    all_there = asyncio.Event()
    async with asking(hang) as (hanging, client, spec), asyncio.timeout(PATIENCE):
        waits = [asyncio.create_task(client.get(spec, MODELS, timeout=PATIENCE)) for _ in range(150)]
        await all_there.wait()
        async with Peer(answering(response(b"{}")), asks_handler=True).listening() as other:
            assert (await client.get(WorkerSpec(other.url), MODELS, timeout=PATIENCE)).status == 200
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)
        assert all(wait.cancelled() for wait in waits)
