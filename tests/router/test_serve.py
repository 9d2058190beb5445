"""The real command, in a process of its own."""

import asyncio
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import orjson
import pytest
from support.peer import STREAM_HEAD, Peer, PeerConnection, answering, chunk, response
from support.router import until
from warmroute_router import __version__

MODULE = [sys.executable, "-m", "warmroute_router"]
SCRIPT = [str(Path(sys.executable).with_name("warmroute"))]
FORMS = [pytest.param(MODULE, id="module"), pytest.param([*SCRIPT, "serve"], id="script")]
NOBODY = "http://127.0.0.1:9"
PATIENCE = 30.0
"""Seconds; only matters in failure."""


def command(*arguments: str, form: list[str] = MODULE) -> tuple[int, str, str]:
    done = subprocess.run([*form, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False)
    return done.returncode, done.stdout, done.stderr


def refusal(*arguments: str, code: int = 2, form: list[str] = MODULE) -> str:
    """The one line on stderr, beside which there is nothing."""
    returned, out, err = command(*arguments, form=form)
    assert (returned, out, err.count("\n")) == (code, "", 1), err
    assert err.endswith("\n")
    return err[:-1]


@pytest.mark.parametrize(
    "form",
    [MODULE, [*MODULE, "serve"], SCRIPT, [*SCRIPT, "serve"]],
    ids=["module", "module-serve", "script", "serve"],
)
def test_version(form: list[str]) -> None:
    assert command("--version", form=form) == (0, f"warmroute {__version__}\n", "")


def test_help_names_every_flag() -> None:
    code, out, err = command("--help")
    assert (code, err) == (0, "")
    flags = set(re.findall(r"--[a-z-]+", out))
    assert flags == {
        "--gossip-host",
        "--gossip-key",
        "--gossip-port",
        "--help",
        "--peers",
        "--peers-dns",
        "--state-file",
        "--version",
        "--worker-urls",
        "--policy",
        "--host",
        "--port",
        "--prometheus-host",
        "--prometheus-port",
        "--max-payload-size",
        "--api-key",
        "--log-level",
        "--no-usage-injection",
    }


@pytest.mark.parametrize("form", FORMS)
def test_an_unknown_policy_is_refused_and_the_known_ones_are_named(form: list[str]) -> None:
    line = refusal("--worker-urls", NOBODY, "--policy", "magic", form=form)
    assert line == (
        "warmroute serve: argument --policy: invalid choice: 'magic' "
        "(choose from 'cache_aware', 'least_load', 'power_of_two', 'prefix_hash', 'random', 'round_robin', 'session')"
    )


@pytest.mark.parametrize("form", FORMS)
def test_without_workers_it_does_not_start(form: list[str]) -> None:
    assert refusal(form=form) == "warmroute serve: the following arguments are required: --worker-urls"
    assert refusal("--worker-urls", form=form) == (
        "warmroute serve: argument --worker-urls: expected at least one argument"
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--worker-urls", "http://a", "A:80/"], "argument --worker-urls: worker 'A:80/' is given twice"),
        (["--worker-urls", "ftp://a"], "argument --worker-urls: worker 'ftp://a': the scheme must be http or https"),
        (["--port", "http"], "argument --port: 'http' is not a port (0 to 65535)"),
        (["--port", "65536"], "argument --port: '65536' is not a port (0 to 65535)"),
        (["--port=-1"], "argument --port: '-1' is not a port (0 to 65535)"),
        (["--prometheus-port", "1e3"], "argument --prometheus-port: '1e3' is not a port (0 to 65535)"),
        (["--max-payload-size", "0"], "argument --max-payload-size: '0' is not a number of bytes"),
        (["--max-payload-size", "1MB"], "argument --max-payload-size: '1MB' is not a number of bytes"),
        (["--max-payload-size=-5"], "argument --max-payload-size: '-5' is not a number of bytes"),
        (["--api-key", ""], "argument --api-key: the key is empty"),
        (["--peers", "a"], "argument --peers: 'a' is not HOST:PORT"),
        (["--peers", "a:0"], "argument --peers: 'a:0' is not HOST:PORT"),
        (["--peers", "::1:80"], "argument --peers: '::1:80': an IPv6 address goes into brackets, as [::1]:30001"),
        (["--peers", "a:1", "--peers-dns", "b"], "argument --peers-dns: not allowed with argument --peers"),
        (["--peers-dns", "a:http"], "argument --peers-dns: 'a:http' is not HOST:PORT"),
        (
            ["--peers", "a:1"],
            "routers that talk share a secret: give --gossip-key, or set WARMROUTE_GOSSIP_KEY",
        ),
        (["--peers", "a:1", "--gossip-key", ""], "argument --gossip-key: the key is empty"),
        (["--state-file", "/nowhere/at/all"], "argument --state-file: cannot be written: /nowhere/at/all"),
        (["--state-file", "/tmp"], "argument --state-file: cannot be written: /tmp"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_flag_that_cannot_be_is_refused_in_one_line(arguments: list[str], complaint: str) -> None:
    given = arguments if arguments[0] == "--worker-urls" else ["--worker-urls", NOBODY, *arguments]
    assert refusal(*given) == f"warmroute serve: {complaint}"


def test_an_unknown_command_is_refused_and_the_known_ones_are_named() -> None:
    line = refusal("sreve", form=SCRIPT)
    names = "'demo', 'serve', 'simulate', 'worker'"
    assert line == f"warmroute: argument command: invalid choice: 'sreve' (choose from {names})"


def test_no_command_is_refused() -> None:
    assert refusal(form=SCRIPT).startswith("warmroute: the following arguments are required: command")


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_port_that_is_taken_is_named() -> None:
    with taken_port() as port:
        line = refusal("--worker-urls", NOBODY, "--port", str(port), "--prometheus-port", "0", code=1)
    assert line == f"warmroute serve: cannot listen on 127.0.0.1:{port}: Address already in use"


def test_a_port_for_metrics_that_is_taken_ends_it_with_one_line() -> None:
    with taken_port() as port:
        line = refusal("--worker-urls", NOBODY, "--port", "0", "--prometheus-port", str(port), code=1)
    assert line.startswith("warmroute serve: ")
    assert line.endswith("Address already in use")


def test_a_port_for_metrics_that_is_taken_is_named() -> None:
    with taken_port() as port:
        line = refusal("--worker-urls", NOBODY, "--port", "0", "--prometheus-port", str(port), code=1)
        assert f"127.0.0.1:{port}" in line


def test_the_router_imports_nothing_of_the_worker_or_the_load_test() -> None:
    code = "import sys, warmroute_router.serve; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    imported = set(done.stdout.split())
    assert "warmroute_router" in imported
    heavy = {"torch", "numpy", "pydantic", "jinja2", "tokenizers", "safetensors", "gguf", "transformers"}
    assert imported & (heavy | {"warmroute_worker", "warmroute_loadtest"}) == set()


# Serving


class Served:
    def __init__(self, process: asyncio.subprocess.Process, announcement: str, port: int, metrics_port: int) -> None:
        self.process = process
        self.announcement = announcement
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.metrics_url = f"http://127.0.0.1:{metrics_port}/metrics"

    async def end(self) -> tuple[int, str, str]:
        """Wait for the process to end; its exit code, and what else it said on stdout and stderr."""
        async with asyncio.timeout(PATIENCE):
            out, err = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, out.decode(), err.decode()


@asynccontextmanager
async def serving(*arguments: str, form: list[str] = MODULE) -> AsyncIterator[Served]:
    """The command on free ports, once it answers."""
    process = await asyncio.create_subprocess_exec(
        *form,
        *("--port", "0", "--prometheus-port", "0", "--log-level", "warning"),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            announcement = (await process.stdout.readline()).decode()
        ports = [int(port) for port in re.findall(r"http://127\.0\.0\.1:(\d+)", announcement)]
        assert len(ports) == 2, announcement
        async with asyncio.timeout(PATIENCE):
            while not await accepts(ports[0]):  # noqa: ASYNC110 - it is announced a little before it listens
                await asyncio.sleep(0.01)
        yield Served(process, announcement, *ports)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:
        return False
    writer.close()
    return True


@pytest.mark.anyio
@pytest.mark.parametrize("form", FORMS)
async def test_it_announces_its_real_ports_and_serves_on_them(form: list[str]) -> None:
    async with (
        Peer(answering(response(b"engine"))).listening() as peer,
        serving("--worker-urls", peer.url, NOBODY, "--policy", "round_robin", form=form) as served,
        httpx.AsyncClient() as client,
    ):
        assert served.announcement == (
            f"warmroute {__version__}: {served.url}, policy round_robin, 2 workers; metrics on {served.metrics_url}\n"
        )
        assert "127.0.0.1:0" not in served.announcement
        reply = await client.get(served.url + "/any")
        assert (reply.status_code, reply.content) == (200, b"engine")
        assert reply.headers["x-warmroute-policy"] == "round_robin"
        # The answer is the worker's: the server below adds nothing of its own.
        assert not {"server", "date"} & set(reply.headers)
        served.process.send_signal(signal.SIGTERM)
        assert await served.end() == (0, "", "")


@pytest.mark.anyio
async def test_metrics_are_on_their_own_port_and_a_workers_on_the_public_one() -> None:
    async with (
        Peer(answering(response(b"engine_metric 1\n", headers=b"content-type: text/plain\r\n"))).listening() as peer,
        serving("--worker-urls", peer.url) as served,
        httpx.AsyncClient() as client,
    ):
        own = await client.get(served.metrics_url)
        assert own.status_code == 200
        assert f'warmroute_info{{policy="cache_aware",version="{__version__}"}} 1.0\n' in own.text
        assert f'warmroute_worker_up{{worker="{peer.url}"}} 1.0\n' in own.text
        assert peer.seen == []
        public = await client.get(served.url + "/metrics")
        assert (public.status_code, public.content) == (200, b"engine_metric 1\n")
        assert [seen.request_line for seen in peer.seen] == [b"GET /metrics HTTP/1.1"]
        counted = f'warmroute_worker_requests_total{{code="200",worker="{peer.url}"}} 1.0\n'
        assert counted in (await client.get(served.metrics_url)).text


@pytest.mark.anyio
async def test_flags_reach_the_application() -> None:
    async with (
        Peer(answering(response(b"{}"))).listening() as peer,
        serving("--worker-urls", peer.url, "--api-key", "k", "--max-payload-size", "10") as served,
        httpx.AsyncClient(headers={"authorization": "Bearer k"}) as client,
    ):
        assert (await client.get(served.url + "/x", headers={"authorization": "Bearer x"})).status_code == 401
        assert (await client.post(served.url + "/x", content=b"x" * 10)).status_code == 200
        assert (await client.post(served.url + "/x", content=b"x" * 11)).status_code == 413
        assert len(peer.seen) == 1


@pytest.mark.anyio
async def test_sigterm_lets_a_stream_end_and_takes_no_new_connection() -> None:
    go_on = asyncio.Event()

    async def answer(connection: PeerConnection) -> None:
        await connection.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
        await go_on.wait()
        await connection.send(chunk(b"data: 2\n\n") + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    body = orjson.dumps({"prompt": "x", "stream": True})
    async with (
        Peer(answer).listening() as peer,
        serving("--worker-urls", peer.url) as served,
        httpx.AsyncClient() as client,
        client.stream("POST", served.url + "/v1/completions", content=body) as reply,
    ):
        pieces = reply.aiter_raw()
        assert await anext(pieces) == b"data: 1\n\n"
        served.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            while await accepts(served.port):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert served.process.returncode is None
        go_on.set()
        assert b"".join([piece async for piece in pieces]) == b"data: 2\n\ndata: [DONE]\n\n"
        assert await served.end() == (0, "", "")


@pytest.mark.anyio
async def test_sigint_ends_it_without_a_traceback() -> None:
    async with Peer(answering(response(b"{}"))).listening() as peer, serving("--worker-urls", peer.url) as served:
        served.process.send_signal(signal.SIGINT)
        assert await served.end() == (0, "", "")


@pytest.mark.anyio
async def test_a_client_that_keeps_its_connection_does_not_hold_up_the_end() -> None:
    async with (
        Peer(answering(response(b"{}"))).listening() as peer,
        serving("--worker-urls", peer.url) as served,
        httpx.AsyncClient() as client,
    ):
        assert (await client.get(served.url + "/x")).status_code == 200
        await until(lambda: len(peer.seen) == 1)
        served.process.send_signal(signal.SIGTERM)
        assert await served.end() == (0, "", "")
