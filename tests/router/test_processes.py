"""`--processes N`: several router processes behind one port, as real ones."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.peer import STREAM_HEAD, Peer, PeerConnection, answering, chunk, response
from support.proc import alive, children, clients
from support.router import until
from support.served import MODULE, PATIENCE, Served, accepts, command, serving

pytestmark = pytest.mark.anyio

STREAMED = orjson.dumps({"prompt": "x", "stream": True})
FRESH = httpx.Limits(max_keepalive_connections=0)
"""A connection for each request, so that the kernel chooses a process for each."""


async def running(served: Served, processes: int) -> set[int]:
    """The pids of the router's processes, once there are as many."""
    await until(lambda: len(children(served.process.pid)) == processes, PATIENCE)
    return children(served.process.pid)


async def counted(served: Served, client: httpx.AsyncClient, name: str) -> float:
    text = (await client.get(served.metrics_url)).text
    families = text_string_to_metric_families(text)
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


@asynccontextmanager
async def watching(served: Served, client: httpx.AsyncClient) -> AsyncIterator[list[float]]:
    """How many requests its metrics speak of, again and again."""
    seen: list[float] = []

    async def watch() -> None:
        while True:
            seen.append(await counted(served, client, "warmroute_worker_requests_total"))

    task = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Streams:
    """A worker whose streams end when they are told to, and clients that read them."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.peer = Peer(self._answer)

    async def _answer(self, connection: PeerConnection) -> None:
        if not connection.request_line.startswith(b"POST"):
            await connection.send(response(b"engine"))
            return
        await connection.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
        await self.go_on.wait()
        await connection.send(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


class Stream:
    """One client's stream, on a connection of its own, of which the first piece has come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.port = int(writer.get_extra_info("sockname")[1])

    async def is_whole(self) -> bool:
        try:
            return (await self._reader.read()).endswith(b"0\r\n\r\n")
        except ConnectionError:
            return False


@asynccontextmanager
async def streams(served: Served, count: int) -> AsyncIterator[list[Stream]]:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(
        STREAMED
    )
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            stack.callback(writer.close)
            writer.write(head + STREAMED)
            await reader.readuntil(b"data: 1\n\n")
            opened.append(Stream(reader, writer))
        yield opened


async def test_connections_spread_over_processes_that_know_of_each_others_load() -> None:
    worker = Streams()
    async with (
        worker.peer.listening(),
        serving("--worker-urls", worker.peer.url, "--processes", "3") as served,
        httpx.AsyncClient(limits=FRESH) as client,
        streams(served, 48) as opened,
    ):
        assert ", 3 processes; " in served.announcement
        shares = [clients(pid, served.port) for pid in await running(served, 3)]
        assert set.union(*shares) == {stream.port for stream in opened}
        assert all(shares)  # with 48 connections, once in 90 million times a process has none
        agreed = 0
        async with asyncio.timeout(PATIENCE):
            while agreed < 12:
                seen = (await client.get(served.url + "/workers")).json()["workers"]
                agreed = agreed + 1 if seen[0]["in_flight"] == 48 else 0
        assert await counted(served, client, "warmroute_in_flight_requests") == 48
        assert await counted(served, client, "warmroute_peers") == 2
        worker.go_on.set()
        assert all([await stream.is_whole() for stream in opened])
        for _ in range(20):
            assert (await client.get(served.url + "/x")).content == b"engine"
        assert await counted(served, client, "warmroute_worker_requests_total") == 68


async def test_a_process_that_is_killed_costs_its_own_connections_and_is_replaced() -> None:
    worker = Streams()
    async with (
        worker.peer.listening(),
        serving("--worker-urls", worker.peer.url, "--processes", "2") as served,
        httpx.AsyncClient(limits=FRESH, timeout=PATIENCE) as client,
    ):
        pids = await running(served, 2)
        for _ in range(30):
            await client.get(served.url + "/x")
        before = await counted(served, client, "warmroute_worker_requests_total")
        assert before == 30
        async with streams(served, 16) as opened, watching(served, client) as seen:
            victim = next(pid for pid in pids if clients(pid, served.port))
            lost = clients(victim, served.port)
            os.kill(victim, signal.SIGKILL)
            await until(lambda: not alive(victim), PATIENCE)
            # Those that its successor will have to take are among these.
            replies = await asyncio.gather(*(client.get(served.url + "/x") for _ in range(60)))
            assert [reply.status_code for reply in replies] == [200] * 60
            worker.go_on.set()
            for stream in opened:
                assert await stream.is_whole() == (stream.port not in lost)
        survivor, successor = sorted(await running(served, 2), key=lambda pid: pid not in pids)
        assert (survivor in pids, successor in pids) == (True, False)
        for _ in range(200):
            assert (await client.get(served.url + "/x")).content == b"engine"
        after = await counted(served, client, "warmroute_worker_requests_total")
        assert [*seen, after] == sorted([*seen, after])
        assert after == before + 60 + (16 - len(lost)) + 200
        served.process.send_signal(signal.SIGTERM)
        code, out, err = await served.end()
        assert (code, out) == (0, "")
        assert f"(pid {victim}) was killed by SIGKILL; starting another\n" in err


async def test_a_process_that_does_not_report_counts_with_its_last_report() -> None:
    async with (
        Peer(answering(response(b"engine"))).listening() as peer,
        serving("--worker-urls", peer.url, "--processes", "2") as served,
        httpx.AsyncClient(limits=FRESH) as client,
    ):
        for _ in range(10):
            await client.get(served.url + "/x")
        assert await counted(served, client, "warmroute_worker_requests_total") == 10
        stopped = min(await running(served, 2))
        os.kill(stopped, signal.SIGSTOP)
        try:
            assert await counted(served, client, "warmroute_worker_requests_total") == 10
        finally:
            os.kill(stopped, signal.SIGCONT)


async def test_the_cap_holds_for_all_processes_together() -> None:
    at_work = most = 0

    async def answer(connection: PeerConnection) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.01)
        at_work -= 1
        await connection.send(response(b"engine"))

    limits = ("--max-concurrent-requests", "4", "--queue-size", "1000")
    async with (
        Peer(answer).listening() as peer,
        serving("--worker-urls", peer.url, "--processes", "2", *limits) as served,
        httpx.AsyncClient(limits=FRESH, timeout=PATIENCE) as client,
    ):
        replies = await asyncio.gather(*(client.get(served.url + "/x") for _ in range(150)))
        assert [reply.status_code for reply in replies] == [200] * 150
        assert 2 <= most <= 4 + 1  # one more for the other process
        assert await counted(served, client, "warmroute_admitted_requests") == 0


async def test_sigterm_lets_the_streams_of_all_processes_end_and_leaves_nothing(tmp_path: Path) -> None:
    worker = Streams()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    files = ("--state-file", str(tmp_path / "state"), "--unix-socket", str(tmp_path / "socket"))
    async with (
        worker.peer.listening(),
        serving(
            *("--worker-urls", worker.peer.url, "--processes", "2", "--host", "127.0.0.1", *files),
            env={"TMPDIR": str(temporary)},
        ) as served,
        streams(served, 32) as opened,
    ):
        pids = await running(served, 2)
        assert all(clients(pid, served.port) for pid in pids)
        for pid in (*pids, served.process.pid):  # as systemd does it: the processes do not take it for a second one
            os.kill(pid, signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            while await accepts(served.port):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert all(alive(pid) for pid in pids)
        worker.go_on.set()
        assert all([await stream.is_whole() for stream in opened])
        assert await served.end() == (0, "", "")
        assert not any(alive(pid) for pid in pids)
        assert os.listdir(temporary) == []
        assert sorted(os.listdir(tmp_path)) == ["state", "temporary"]


async def test_a_second_signal_ends_all_processes_at_once() -> None:
    worker = Streams()
    async with (
        worker.peer.listening(),
        serving("--worker-urls", worker.peer.url, "--processes", "2", "--shutdown-delay-secs", "300") as served,
        httpx.AsyncClient(limits=FRESH) as client,
        streams(served, 4) as opened,
    ):
        pids = await running(served, 2)
        served.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            while (await client.get(served.url + "/health")).status_code == 200:  # or the two signals would be one
                pass
            served.process.send_signal(signal.SIGTERM)
            assert not any([await stream.is_whole() for stream in opened])
        assert (await served.end())[0] == 0
        assert not any(alive(pid) for pid in pids)


async def test_a_parent_that_is_killed_takes_its_processes_with_it(tmp_path: Path) -> None:
    async with (
        Peer(answering(response(b"engine"))).listening() as peer,
        serving("--worker-urls", peer.url, "--processes", "2", env={"TMPDIR": str(tmp_path)}) as served,
    ):
        pids = await running(served, 2)
        assert len(os.listdir(tmp_path)) == 1
        served.process.kill()
        await until(lambda: not any(alive(pid) for pid in pids), PATIENCE)
        assert os.listdir(tmp_path) == []


async def test_a_worker_added_by_api_is_known_to_all_processes() -> None:
    async with (
        Peer(answering(response(b"engine"))).listening() as peer,
        serving("--processes", "2", "--admin-port", "0") as served,
        httpx.AsyncClient(limits=FRESH) as client,
    ):
        reply = await client.post(served.urls[-1] + "/workers", json={"url": peer.url})
        assert reply.status_code == 201
        in_a_row = 0
        async with asyncio.timeout(PATIENCE):
            while in_a_row < 20:
                status = (await client.get(served.url + "/x")).status_code
                in_a_row = in_a_row + 1 if status == 200 else 0


def test_what_no_process_can_start_with_is_said_once(tmp_path: Path) -> None:
    file = tmp_path / "workers.json"
    file.write_text("{")
    code, out, err = command(
        *("--workers-file", str(file), "--processes", "2", "--port", "0", "--prometheus-port", "0"),
        *("--log-level", "warning"),
    )
    assert (code, out, err.count("\n")) == (1, "", 1), err
    assert err.startswith("warmroute serve: ")
    assert str(file) in err


def test_a_machine_on_which_nothing_can_be_written() -> None:
    """As in a container with a read-only root and no /tmp."""
    code, out, err = command(
        *("--worker-urls", "http://127.0.0.1:9", "--processes", "2", "--port", "0", "--prometheus-port", "0"),
        form=["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *MODULE],
    )
    assert (code, out, err.count("\n")) == (1, "", 1), err
    assert err.startswith("warmroute serve: ")
    assert "No usable temporary directory" in err
