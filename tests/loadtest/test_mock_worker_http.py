"""The mock worker's HTTP, by raw bytes where a client would not send them, and its failures."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest
from support.mock import events, mock_worker, series, until_idle
from warmroute_loadtest.mock_worker.config import MockConfig
from warmroute_loadtest.mock_worker.connection import MAX_BODY, Connection

HOUR = 3600.0
PATIENCE = 30.0
PROMPT = {"prompt": "Once upon a time", "max_tokens": 4}

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with mock_worker(MockConfig()) as client:
        yield client


class Raw:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def answer(self) -> tuple[int, dict[bytes, bytes], bytes]:
        """The next one: its status, headers and body, chunks taken apart."""
        async with asyncio.timeout(PATIENCE):
            status, *lines = (await self.reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[:-2]
            headers = dict(line.lower().split(b": ") for line in lines)
            if b"transfer-encoding" not in headers:
                body = await self.reader.readexactly(int(headers.get(b"content-length", 0)))
                return int(status.split()[1]), headers, body
            chunks = []
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                chunks.append((await self.reader.readexactly(size + 2))[:-2])
            assert await self.reader.readexactly(2) == b"\r\n"
            return int(status.split()[1]), headers, b"".join(chunks)

    async def rest(self) -> bytes:
        """All until the other side closes."""
        async with asyncio.timeout(PATIENCE):
            return await self.reader.read()


@asynccontextmanager
async def raw(client: httpx.AsyncClient, sent: bytes) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    try:
        writer.write(sent)
        yield Raw(reader, writer)
    finally:
        writer.close()


def post(payload: dict[str, Any], headers: bytes = b"", version: bytes = b"1.1") -> bytes:
    body = orjson.dumps(payload)
    line = b"POST /v1/completions HTTP/%b\r\nhost: mock\r\n" % version
    return b"%b%bcontent-length: %d\r\n\r\n%b" % (line, headers, len(body), body)


@pytest.mark.parametrize("config", [MockConfig(), MockConfig(tpot=0.001)], ids=["at once", "paced"])
async def test_pipelined_requests_are_answered_in_their_order(config: MockConfig) -> None:
    """Three hundred, more than wait at once; streams among them, and the last says that it is the last."""
    lengths = [number % 5 for number in range(300)]
    asked = [post({"prompt": "a", "max_tokens": n, "stream": n % 2 == 0}) for n in lengths]
    asked.append(post({"prompt": "a", "max_tokens": 7}, b"connection: close\r\n"))
    async with mock_worker(config) as client, raw(client, b"".join(asked)) as connection:
        for length in lengths:
            status, _, body = await connection.answer()
            assert status == 200
            if length % 2:
                assert orjson.loads(body)["usage"]["completion_tokens"] == length
            else:
                assert sum(len(event["choices"][0]["text"]) for event in events(body.decode())) == 4 * length
        _, headers, body = await connection.answer()
        assert headers[b"connection"] == b"close"
        assert orjson.loads(body)["usage"]["completion_tokens"] == 7
        assert await connection.rest() == b""


class Transport(asyncio.Transport):
    """One that nobody reads."""

    _reading = True

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True

    def is_closing(self) -> bool:
        return False


async def test_who_comes_between_two_answers_waits_too() -> None:
    """And with too many that wait, no more are read until some are answered."""
    served: list[bytes] = []
    connection, transport = Connection(lambda _, request: served.append(request.path)), Transport()
    connection.connection_made(transport)

    async def answer() -> None:
        connection.done()
        connection.data_received(b"GET /late HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0)

    connection.data_received(b"".join(b"GET /%d HTTP/1.1\r\n\r\n" % number for number in range(60)))
    assert (served, transport.is_reading()) == ([b"/0"], True)
    connection.data_received(b"".join(b"GET /%d HTTP/1.1\r\n\r\n" % number for number in range(60, 100)))
    assert not transport.is_reading()
    await answer()
    assert served == [b"/0", b"/1"]
    while not transport.is_reading():
        connection.done()
        await asyncio.sleep(0)
    assert 2 < len(served) < 100
    while len(served) < 101:
        connection.done()
        await asyncio.sleep(0)
    assert served == [*(b"/%d" % number for number in range(100)), b"/late"]


async def test_a_request_that_comes_byte_by_byte_is_one(client: httpx.AsyncClient) -> None:
    async with raw(client, b"") as connection:
        for byte in post(PROMPT):
            connection.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        status, _, body = await connection.answer()
    assert (status, orjson.loads(body)["usage"]["prompt_tokens"]) == (200, 4)


async def test_a_body_in_chunks_is_read(client: httpx.AsyncClient) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"prompt": "Once upon'
        yield b' a time"}'

    reply = await client.post("/v1/completions", content=pieces())
    assert reply.json()["usage"]["prompt_tokens"] == 4


async def test_who_asks_whether_to_go_on_is_told_so(client: httpx.AsyncClient) -> None:
    head, body = post(PROMPT, b"Expect: 100-continue\r\n").split(b"\r\n\r\n")
    async with raw(client, head + b"\r\n\r\n") as connection:
        assert (await connection.answer())[0] == 100
        connection.writer.write(body)
        assert (await connection.answer())[0] == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_http_1_0_is_answered_without_chunks_until_the_end(client: httpx.AsyncClient, stream: bool) -> None:
    asked = post(PROMPT | {"stream": stream}, b"connection: keep-alive\r\n", version=b"1.0")
    async with raw(client, asked) as connection:
        head, _, body = (await connection.rest()).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert b"connection: close" in head
    if stream:
        assert len(events(body.decode())) == 4
    else:
        assert orjson.loads(body)["usage"]["completion_tokens"] == 4


async def test_head_is_get_without_a_body(client: httpx.AsyncClient) -> None:
    for path in ("/health", "/metrics", "/v1/models"):
        got, headed = await client.get(path), await client.head(path)
        assert headed.status_code == got.status_code == 200
        assert headed.content == b""
        assert headed.headers["content-length"] == got.headers["content-length"]
    assert (await client.head("/nowhere")).status_code == 404
    assert (await client.get("/health?full=1")).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("HEAD", "/v1/completions", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("DELETE", "/flush_cache", "POST"),
    ],
)
async def test_the_wrong_method_is_told_the_right_one(
    client: httpx.AsyncClient, method: str, path: str, allowed: str
) -> None:
    reply = await client.request(method, path)
    assert (reply.status_code, reply.headers["allow"]) == (405, allowed)


async def test_an_unknown_path_is_not_found(client: httpx.AsyncClient) -> None:
    reply = await client.post("/v1/embeddings", json={})
    assert reply.status_code == 404
    assert "/v1/embeddings" in reply.json()["error"]["message"]


@pytest.mark.parametrize("sent", [b"nonsense\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
async def test_what_is_no_http_is_refused(client: httpx.AsyncClient, sent: bytes) -> None:
    async with raw(client, sent) as connection:
        status, headers, body = await connection.answer()
        assert (status, headers[b"connection"]) == (400, b"close")
        assert orjson.loads(body)["error"]["type"] == "invalid_request_error"
        assert await connection.rest() == b""


async def test_an_upgrade_is_answered_without_it(client: httpx.AsyncClient) -> None:
    upgrade = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
    async with raw(client, b"GET /v1/models HTTP/1.1\r\n" + upgrade + b"\r\n") as connection:
        status, headers, _ = await connection.answer()
        assert (status, headers[b"connection"]) == (200, b"close")
        assert await connection.rest() == b""


async def test_a_body_that_is_too_long_is_refused(client: httpx.AsyncClient) -> None:
    reply = await client.post("/v1/completions", content=bytes(MAX_BODY + 1))
    assert reply.status_code == 413


# Clients that leave


@pytest.mark.parametrize("stream", [False, True])
async def test_who_leaves_gives_the_memory_back_at_once(stream: bool) -> None:
    """The one who leaves has all of it, for hours."""
    config = MockConfig(blocks=4, block_tokens=4, block_bytes=4, tpot=HOUR)
    async with mock_worker(config) as client:
        async with raw(client, post({"prompt": "abcd", "max_tokens": 12, "stream": stream})):
            while (await series(client))["vllm:num_requests_running"] == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            assert (await series(client))["vllm:kv_cache_usage_perc"] == 1
        await until_idle(client)
        values = await series(client)
        assert values["vllm:kv_cache_usage_perc"] == values["vllm:request_success_total"] == 0


async def test_who_leaves_the_queue_is_not_served() -> None:
    async with mock_worker(MockConfig(tpot=HOUR, max_running=1)) as client, raw(client, post(PROMPT)):
        while (await series(client))["vllm:num_requests_running"] == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        async with raw(client, post(PROMPT)):
            while (await series(client))["vllm:num_requests_waiting"] == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        async with asyncio.timeout(PATIENCE):
            while (await series(client))["vllm:num_requests_waiting"]:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert (await series(client))["vllm:num_requests_running"] == 1


async def test_a_client_that_does_not_read_is_waited_for(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And gets all of it in the end: some 7 MB, more than buffers take."""
    tokens = 40_000
    full: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
    pause = Connection.pause_writing

    def pause_writing(connection: Connection) -> None:
        pause(connection)
        if not full.done():
            full.set_result(connection)

    monkeypatch.setattr(Connection, "pause_writing", pause_writing)
    async with raw(client, post({"prompt": "a", "max_tokens": tokens, "stream": True})) as connection:
        async with asyncio.timeout(PATIENCE):
            mine = await full
        await asyncio.sleep(0.1)
        assert mine._transport.get_write_buffer_size() < 256 * 1024
        status, _, body = await connection.answer()
    assert status == 200
    assert sum(len(event["choices"][0]["text"]) for event in events(body.decode())) == 4 * tokens


# Failures


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_status_is_an_error_in_openais_shape(status: int) -> None:
    async with mock_worker(MockConfig(fail_rate=1.0, fail=status)) as client:
        reply = await client.post("/v1/completions", json=PROMPT)
        assert reply.status_code == status
        assert reply.json()["error"]["type"] == ("server_error" if status >= 500 else "invalid_request_error")
        assert (await client.get("/health")).status_code == 200
        assert (await series(client))["vllm:request_success_total"] == 0


async def test_a_share_fails_and_the_seed_says_which() -> None:
    async def statuses(seed: int) -> list[int]:
        async with mock_worker(MockConfig(fail_rate=0.3, fail=503, seed=seed)) as client:
            return [(await client.post("/v1/completions", json=PROMPT)).status_code for _ in range(200)]

    first, again, other = await statuses(1), await statuses(1), await statuses(2)
    assert first == again != other
    assert set(first) == {200, 503}
    assert first.count(503) == pytest.approx(60, abs=30)


async def test_a_reset_sends_nothing() -> None:
    async with (
        mock_worker(MockConfig(fail_rate=1.0, fail="reset")) as client,
        raw(client, post(PROMPT)) as connection,
    ):
        with pytest.raises(ConnectionResetError):
            await connection.rest()


async def test_a_hang_never_answers_and_runs_nothing() -> None:
    async with mock_worker(MockConfig(fail_rate=1.0, fail="hang")) as client, raw(client, post(PROMPT)) as connection:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await connection.reader.read(1)
        assert (await series(client))["vllm:num_requests_running"] == 0


@pytest.mark.parametrize("tpot", [0.0, 0.001])
async def test_a_cut_breaks_off_in_the_middle(tpot: float) -> None:
    async with mock_worker(MockConfig(fail_rate=1.0, fail="cut", tpot=tpot)) as client:
        body = {"prompt": "a", "max_tokens": 10}
        with pytest.raises(httpx.RemoteProtocolError, match="without sending complete"):
            await client.post("/v1/completions", json=body)
        async with raw(client, post(body | {"stream": True})) as connection:
            sent = await connection.rest()
        assert sent.count(b"data: ") == 5
        assert b"[DONE]" not in sent
        assert not sent.endswith(b"0\r\n\r\n")
        await until_idle(client)
