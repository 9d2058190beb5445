"""Each fault is on the wire what its name says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson
import pytest
from warmroute_loadtest.chaos.answers import read_text
from warmroute_loadtest.chaos.fault_worker import FaultWorker
from warmroute_loadtest.chaos.faults import KILLED, Fault, Kind

PATIENCE = 10.0
SOON = 0.05
"""Seconds for which somebody who has nothing to say is listened to."""
CHAT = "/v1/chat/completions"


def request(*, stream: bool = False, token: str = "abc123", path: str = CHAT, usage: bool = False) -> bytes:
    payload: dict[str, object] = {"messages": [{"role": "user", "content": f"say id={token}"}], "stream": stream}
    body = orjson.dumps(payload | ({"stream_options": {"include_usage": True}} if usage else {}))
    return b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (path.encode(), len(body), body)


GET = b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n"


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, data: bytes) -> tuple[bytes, bytes]:
        """Send, and read one answer that is framed as it should be: its head, and its body without the framing."""
        self.writer.write(data)
        head = await self.reader.readuntil(b"\r\n\r\n")
        if b"chunked" not in head:
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            return head, await self.reader.readexactly(length)
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        assert await self.reader.readexactly(2) == b"\r\n"
        return head, body

    async def rest(self) -> bytes:
        """All that comes until the connection is closed. Raises ConnectionResetError where it is reset."""
        return await self.reader.read()


@asynccontextmanager
async def connected(worker: FaultWorker) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
    try:
        async with asyncio.timeout(PATIENCE):
            yield Client(reader, writer)
    finally:
        writer.transport.abort()


@asynccontextmanager
async def asked(fault: Fault, *, stream: bool = True) -> AsyncIterator[tuple[FaultWorker, Client]]:
    """A worker with the fault, and a client whose request is on its way."""
    async with FaultWorker("w") as worker, connected(worker) as client:
        worker.fault = fault
        client.writer.write(request(stream=stream))
        yield worker, client


def text_of(body: bytes) -> str:
    """Of a chat or a completion, streamed or whole."""
    if not body.startswith(b"data: "):
        choice = orjson.loads(body)["choices"][0]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])
    events = [line[6:] for line in body.split(b"\n\n") if line and line != b"data: [DONE]"]
    choices = [choice for event in events for choice in orjson.loads(event)["choices"]]
    return "".join(choice["delta"]["content"] if "delta" in choice else choice["text"] for choice in choices)


async def nothing_more(client: Client) -> bool:
    try:
        async with asyncio.timeout(SOON):
            return not await client.reader.read(1)
    except TimeoutError:
        return True


# Without a fault


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_an_answer_is_whole_and_names_its_request_and_its_worker(path: str, stream: bool) -> None:
    async with FaultWorker("w7") as worker, connected(worker) as client:
        worker.chunks = 3
        _, body = await client.ask(request(stream=stream, path=path, token="q-9"))
        assert text_of(body) == "id=q-9 worker=w7 q-9:0 q-9:1 q-9:2 end"
        assert read_text(text_of(body)) == ("q-9", "w7", 3)
        assert (worker.requests, worker.concurrent, worker.aborted) == (1, 0, 0)


@pytest.mark.anyio
async def test_a_stream_has_usage_at_its_end_where_it_was_asked_for() -> None:
    async with FaultWorker("w") as worker, connected(worker) as client:
        _, without = await client.ask(request(stream=True))
        _, body = await client.ask(request(stream=True, usage=True))
        assert b"usage" not in without
        last, done = body.split(b"\n\n")[-3:-1]
        assert orjson.loads(last[6:])["usage"]["prompt_tokens"] > 0
        assert done == b"data: [DONE]"
        assert len(worker.seen) == 2
        assert worker.seen[0].head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "text",
    ["", "id=a worker=w a:0 a:1 ", "id=a worker=w a:0 a:2 end", "id=a worker=w a:0 b:1 end", "id=a worker=w a:1 end"],
)
def test_a_text_that_is_cut_or_mixed_is_not_read(text: str) -> None:
    assert read_text(text) is None


@pytest.mark.anyio
async def test_a_chunked_request_is_read() -> None:
    async with FaultWorker("w") as worker, connected(worker) as client:
        chunks = b'b\r\n{"prompt":"\r\n6;x=y\r\n id=z"\r\n1\r\n}\r\n0\r\n\r\n'
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        _, body = await client.ask(head + chunks)
        assert text_of(body).startswith("id=z worker=w ")


@pytest.mark.anyio
async def test_probes_are_answered_apart_from_requests() -> None:
    async with FaultWorker("w", model="m") as worker, connected(worker) as client:
        worker.fault = Fault(Kind.ACCEPT_AND_HANG)
        paths = (b"/health", b"/get_server_info", b"/server_info", b"/get_model_info")
        for path in paths:
            head, _ = await client.ask(GET % path)
            assert head.startswith(b"HTTP/1.1 200 ")
        _, models = await client.ask(GET % b"/v1/models")
        assert [model["id"] for model in orjson.loads(models)["data"]] == ["m"]
        _, metrics = await client.ask(GET % b"/metrics")
        assert metrics.startswith(b"process_start_time_seconds ")
        assert worker.requests == 0
        worker.health = "503"
        assert (await client.ask(GET % b"/health"))[0].startswith(b"HTTP/1.1 503 ")
        worker.health = "close"
        client.writer.write(GET % b"/health")
        assert await client.rest() == b""


@pytest.mark.anyio
async def test_a_hanging_probe_is_not_answered() -> None:
    async with FaultWorker("w") as worker, connected(worker) as client:
        worker.health = "hang"
        client.writer.write(GET % b"/health")
        assert await nothing_more(client)
        assert worker.open_connections == 1


@pytest.mark.anyio
async def test_what_is_over_the_limit_waits() -> None:
    async with FaultWorker("w", concurrency=1) as worker, connected(worker) as one, connected(worker) as two:
        worker.fault = Fault(Kind.STALL)
        one.writer.write(request(stream=True))
        await one.reader.readuntil(b":0 ")
        worker.fault = Fault()
        two.writer.write(request(stream=True))
        assert await nothing_more(two)
        one.writer.transport.abort()
        await two.reader.readuntil(b"0\r\n\r\n")
        assert (worker.max_concurrent, worker.aborted) == (2, 1)


@pytest.mark.anyio
async def test_a_client_that_leaves_is_counted() -> None:
    async with asked(Fault(Kind.SLOW, seconds=PATIENCE)) as (worker, client):
        while not worker.concurrent:  # noqa: ASYNC110
            await asyncio.sleep(0)
        client.writer.transport.abort()
        while worker.concurrent:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert (worker.requests, worker.aborted) == (1, 1)


# Life


@pytest.mark.anyio
async def test_a_stop_resets_all_connections_and_the_port_refuses() -> None:
    async with asked(Fault(Kind.STALL)) as (worker, client), connected(worker) as idle:
        await client.reader.readuntil(b":0 ")
        worker.stop()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", worker.port)
        for each in (client, idle):
            with pytest.raises(ConnectionResetError):
                await each.rest()
        assert worker.aborted == 0


@pytest.mark.anyio
async def test_a_restart_comes_back_on_the_same_port_as_another_process() -> None:
    async with FaultWorker("w") as worker:
        port = worker.port
        async with connected(worker) as client:
            _, before = await client.ask(GET % b"/metrics")
        await worker.restart(gone=0.01)
        assert worker.port == port
        async with connected(worker) as client:
            _, after = await client.ask(GET % b"/metrics")
        assert before != after


@pytest.mark.anyio
async def test_refusing_begins_at_once_closes_idle_connections_and_ends_at_once() -> None:
    async with asked(Fault(Kind.STALL)) as (worker, client), connected(worker) as idle:
        for _ in range(2):
            await client.reader.readuntil(b"}\n\n\r\n")
        await idle.ask(GET % b"/health")
        worker.fault = Fault(Kind.REFUSE)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", worker.port)
        assert await idle.rest() == b""
        assert await nothing_more(client)
        worker.fault = Fault()
        async with connected(worker) as again:
            assert (await again.ask(request()))[0].startswith(b"HTTP/1.1 200 ")


# Faults


@pytest.mark.anyio
async def test_accept_and_hang_answers_nothing() -> None:
    async with asked(Fault(Kind.ACCEPT_AND_HANG)) as (worker, client):
        assert await nothing_more(client)
        assert worker.concurrent == 1


@pytest.mark.anyio
async def test_die_before_first_byte_is_a_reset() -> None:
    async with asked(Fault(Kind.DIE_BEFORE_FIRST_BYTE)) as (worker, client):
        with pytest.raises(ConnectionResetError):
            await client.rest()
        assert (worker.requests, worker.aborted) == (1, 0)


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [True, False])
async def test_die_after_head_sends_a_good_head_alone(stream: bool) -> None:
    async with asked(Fault(Kind.DIE_AFTER_HEAD), stream=stream) as (_, client):
        got = await client.rest()
        assert got.startswith(b"HTTP/1.1 200 OK\r\n")
        assert got.endswith(b"\r\n\r\n")


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [True, False])
async def test_die_mid_stream_sends_a_part(stream: bool) -> None:
    async with asked(Fault(Kind.DIE_MID_STREAM, after=3), stream=stream) as (_, client):
        head, _, part = (await client.rest()).partition(b"\r\n\r\n")
        if stream:
            assert part.count(b"data: ") == 3
            assert part.endswith(b"}\n\n\r\n")
        else:
            assert 0 < len(part) < int(head.rpartition(b"content-length: ")[2])


@pytest.mark.anyio
async def test_rst_mid_stream_sends_a_part_and_resets() -> None:
    async with asked(Fault(Kind.RST_MID_STREAM, after=1)) as (_, client):
        part = await client.reader.readuntil(b"worker=w ")
        assert part.count(b"data: ") == 1
        with pytest.raises(ConnectionResetError):
            await client.rest()


@pytest.mark.anyio
async def test_stall_sends_a_part_and_stays() -> None:
    async with asked(Fault(Kind.STALL, after=1)) as (worker, client):
        await client.reader.readuntil(b"}\n\n\r\n")
        assert await nothing_more(client)
        assert worker.open_connections == 1


@pytest.mark.anyio
async def test_garbage_is_not_http() -> None:
    async with asked(Fault(Kind.GARBAGE)) as (_, client):
        assert not (await client.rest()).startswith(b"HTTP/")


@pytest.mark.anyio
@pytest.mark.parametrize("code", [400, 404, 422, 429, 500, 502, 503, 504])
async def test_a_status_has_a_json_error_and_keeps_the_connection(code: int) -> None:
    async with FaultWorker("w") as worker, connected(worker) as client:
        worker.fault = Fault(Kind.STATUS, status=code)
        for _ in range(2):
            head, body = await client.ask(request())
            assert head.startswith(b"HTTP/1.1 %d " % code)
            assert (b"retry-after: 1\r\n" in head) == (code in (429, 503))
            assert orjson.loads(body)["error"]["code"] == f"mock_{code}"
        assert worker.connections == 1


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [Kind.TRICKLE, Kind.SLOW, Kind.INTERIM, Kind.HUGE_HEADER])
async def test_a_good_answer_comes_after_all(kind: Kind) -> None:
    async with FaultWorker("w") as worker:
        worker.chunks = 1
        worker.fault = Fault(kind, seconds=0.0001)
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port, limit=1 << 21)
        client = Client(reader, writer)
        writer.write(request())
        if kind is Kind.INTERIM:
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 103 ")
        head, body = await client.ask(b"")
        assert (len(head) > 1 << 20) == (kind is Kind.HUGE_HEADER)
        assert read_text(text_of(body)) == ("abc123", "w", 1)
        writer.transport.abort()


@pytest.mark.anyio
async def test_close_idle_answers_well_and_then_closes() -> None:
    async with FaultWorker("w") as worker, connected(worker) as client:
        worker.fault = Fault(Kind.CLOSE_IDLE, seconds=0.02)
        assert (await client.ask(request()))[0].startswith(b"HTTP/1.1 200 ")
        assert await client.rest() == b""


@pytest.mark.anyio
async def test_close_on_reuse_closes_when_the_second_request_comes() -> None:
    async with FaultWorker("w") as worker, connected(worker) as client:
        worker.fault = Fault(Kind.CLOSE_ON_REUSE)
        assert (await client.ask(request()))[0].startswith(b"HTTP/1.1 200 ")
        assert await nothing_more(client)
        client.writer.write(request())
        assert await client.rest() == b""


@pytest.mark.anyio
async def test_bad_chunking_breaks_after_good_chunks() -> None:
    async with asked(Fault(Kind.BAD_CHUNKING, after=2)) as (_, client):
        got = await client.reader.readuntil(b"\r\nzz\r\n")
        assert got.count(b"data: ") == 2


@pytest.mark.anyio
async def test_huge_is_as_long_as_it_says_and_waits_for_its_reader() -> None:
    size = 3 * 65536 + 5
    async with asked(Fault(Kind.HUGE, size=size)) as (_, client):
        head, _, body = (await client.reader.readuntil(b"\r\n\r\n")), b"", b""
        assert b"content-length: %d\r\n" % size in head
        body = await client.reader.readexactly(size)
        assert body == b"x" * size
    async with asked(Fault(Kind.HUGE)) as (worker, client):
        await client.reader.readexactly(1000)
        worker.stop()  # in the midst of it
        with pytest.raises(ConnectionResetError):
            await client.rest()


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [True, False])
async def test_a_wrong_length_promises_more_or_less_than_comes(stream: bool) -> None:
    async with asked(Fault(Kind.LENGTH_TOO_LONG), stream=stream) as (_, client):
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
        assert int(head.rpartition(b"content-length: ")[2]) == len(body) + 16
    async with asked(Fault(Kind.LENGTH_TOO_SHORT), stream=stream) as (_, client):
        head = await client.reader.readuntil(b"\r\n\r\n")
        length = int(head.rpartition(b"content-length: ")[2])
        assert len(await client.reader.readexactly(length + 1)) > length


@pytest.mark.anyio
async def test_an_early_response_does_not_wait_for_the_body() -> None:
    async with FaultWorker("w") as worker, connected(worker) as client:
        worker.fault = Fault(Kind.EARLY_RESPONSE, status=413)
        head, _ = await client.ask(b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 413 ")
        worker.fault = Fault()
        head, _ = await client.ask(b"{}" + request())
        assert head.startswith(b"HTTP/1.1 200 ")


@pytest.mark.anyio
async def test_the_journal_says_what_each_request_met() -> None:
    journal: list[tuple[str, Fault]] = []
    worker = FaultWorker("w", journal=lambda token, fault: journal.append((token, fault)))
    async with worker, connected(worker) as client:
        await client.ask(request(token="one"))
        worker.fault = Fault(Kind.STATUS, status=500)
        await client.ask(request(token="two"))
        assert journal == [("one", Fault()), ("two", Fault(Kind.STATUS, status=500))]
        worker.stop()
        assert journal[2:] == [("two", KILLED)]
