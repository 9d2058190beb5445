"""The real command, in a process of its own."""

import asyncio
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import httpx
import orjson
import pytest
from support.peer import STREAM_HEAD, Peer, PeerConnection, answering, chunk, response
from support.router import until
from support.served import MODULE, PATIENCE, Served, accepts, command, serving
from warmroute_router import __version__

SCRIPT = [str(Path(sys.executable).with_name("warmroute"))]
FORMS = [pytest.param(MODULE, id="module"), pytest.param([*SCRIPT, "serve"], id="script")]
NOBODY = "http://127.0.0.1:9"
FLAGS = """
--admin-api-key
--admin-api-key-file
--admin-host
--admin-port
--allowed-workers
--api-key
--api-key-file
--ca-cert-paths
--cb-failure-threshold
--cb-success-threshold
--cb-timeout-duration-secs
--cb-window-duration-secs
--client-cert-path
--client-key-path
--connect-timeout-secs
--disable-circuit-breaker
--disable-retries
--engine-stats-interval
--fair-by
--first-byte-timeout-secs
--gossip-host
--gossip-key
--gossip-port
--health-check-endpoint
--health-check-interval-secs
--health-check-timeout-secs
--health-failure-threshold
--health-success-threshold
--help
--host
--idle-timeout-secs
--log-level
--max-concurrent-requests
--max-concurrent-requests-per-worker
--max-payload-size
--no-usage-injection
--peers
--peers-dns
--policy
--port
--processes
--prometheus-host
--prometheus-port
--queue-size
--queue-timeout-secs
--rate-limit-tokens-per-second
--request-timeout-secs
--retry-backoff-multiplier
--retry-budget
--retry-initial-backoff-ms
--retry-jitter-factor
--retry-max-backoff-ms
--retry-max-retries
--selector
--service-discovery
--service-discovery-api
--service-discovery-model-label
--service-discovery-namespace
--service-discovery-port
--shutdown-delay-secs
--shutdown-grace-period-secs
--state-file
--tls-cert-path
--tls-key-path
--unix-socket
--version
--worker-api-key
--worker-dns
--worker-urls
--workers-file
"""


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
    assert sorted(flags) == FLAGS.split()


@pytest.mark.parametrize("form", FORMS)
def test_an_unknown_policy_is_refused_and_the_known_ones_are_named(form: list[str]) -> None:
    line = refusal("--worker-urls", NOBODY, "--policy", "magic", form=form)
    assert line == (
        "warmroute serve: argument --policy: invalid choice: 'magic' "
        "(choose from 'cache_aware', 'least_load', 'power_of_two', 'prefix_hash', 'random', 'round_robin', 'session')"
    )


@pytest.mark.parametrize("form", FORMS)
def test_without_workers_it_does_not_start(form: list[str]) -> None:
    assert refusal(form=form) == (
        "warmroute serve: no workers: give --worker-urls, --worker-dns, --workers-file or --service-discovery; "
        "or --admin-port or --admin-api-key, to add them while it runs"
    )
    assert refusal("--worker-urls", form=form) == (
        "warmroute serve: argument --worker-urls: expected at least one argument"
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--worker-urls", "http://a", "A:80/"], "argument --worker-urls: http://a is given twice"),
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
    names = "'bench', 'demo', 'mock-worker', 'report', 'serve', 'simulate', 'worker'"
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


def test_a_port_for_metrics_that_is_taken_is_named() -> None:
    with taken_port() as port:
        ports = ("--port", "0", "--prometheus-port", str(port))
        line = refusal("--worker-urls", NOBODY, *ports, "--log-level", "warning", code=1)
    assert line == f"warmroute serve: cannot listen on 127.0.0.1:{port}: Address already in use"


def test_the_router_imports_nothing_of_the_worker_or_the_load_test() -> None:
    code = "import sys, warmroute_router.serve; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    imported = set(done.stdout.split())
    assert "warmroute_router" in imported
    heavy = {"torch", "numpy", "pydantic", "jinja2", "tokenizers", "safetensors", "gguf", "transformers"}
    assert imported & (heavy | {"warmroute_worker", "warmroute_loadtest"}) == set()


# Serving


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
        assert "process_resident_memory_bytes " in own.text
        tasks = re.search(r"^warmroute_tasks ([\d.]+)$", own.text, re.MULTILINE)
        assert tasks is not None
        assert float(tasks[1]) > 1
        assert peer.seen == []
        public = await client.get(served.url + "/metrics")
        assert (public.status_code, public.content) == (200, b"engine_metric 1\n")
        assert [seen.request_line for seen in peer.seen] == [b"GET /metrics HTTP/1.1"]
        counted = f'warmroute_worker_requests_total{{code="200",model="unknown",worker="{peer.url}"}} 1.0\n'
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


# Stopping


class Streaming:
    """A worker whose streams end when they are told to."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.peer = Peer(self._answer)
        self.cut = 0
        """Streams that the router has hung up on."""

    async def _answer(self, connection: PeerConnection) -> None:
        if not connection.request_line.startswith(b"POST"):
            await connection.send(response(b"{}"))
            return
        await connection.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
        going = asyncio.create_task(self.go_on.wait())
        closed = asyncio.create_task(connection.closed_by_router())
        await asyncio.wait([going, closed], return_when=asyncio.FIRST_COMPLETED)
        self.cut += closed.done()
        for task in (going, closed):
            task.cancel()
        await asyncio.gather(going, closed, return_exceptions=True)
        await connection.send(chunk(b"data: 2\n\n") + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


STREAMED = orjson.dumps({"prompt": "x", "stream": True})


@asynccontextmanager
async def streaming(
    served: Served, client: httpx.AsyncClient
) -> AsyncIterator[tuple[httpx.Response, AsyncIterator[bytes]]]:
    """A stream of which one piece has come; the reply, and the pieces that follow."""
    async with client.stream("POST", served.url + "/v1/completions", content=STREAMED) as reply:
        pieces = reply.aiter_raw()
        assert await anext(pieces) == b"data: 1\n\n"
        yield reply, pieces


async def refuses(served: Served) -> None:
    """Returns once it takes no more connections."""
    async with asyncio.timeout(PATIENCE):
        while await accepts(served.port):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def not_ready(served: Served, client: httpx.AsyncClient) -> httpx.Response:
    """Its answer to /health, once that is not 200."""
    async with asyncio.timeout(PATIENCE):
        while (reply := await client.get(served.url + "/health")).status_code == 200:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return reply


@pytest.mark.anyio
async def test_sigterm_lets_a_stream_end_and_takes_no_new_connection() -> None:
    worker = Streaming()
    async with (
        worker.peer.listening(),
        serving("--worker-urls", worker.peer.url) as served,
        httpx.AsyncClient() as client,
        streaming(served, client) as (_, pieces),
    ):
        served.process.send_signal(signal.SIGTERM)
        await refuses(served)
        assert served.process.returncode is None
        worker.go_on.set()
        assert b"".join([piece async for piece in pieces]) == b"data: 2\n\ndata: [DONE]\n\n"
        assert await served.end() == (0, "", "")


@pytest.mark.anyio
async def test_what_has_not_ended_within_the_grace_is_cut_and_counted() -> None:
    worker = Streaming()
    async with (
        worker.peer.listening(),
        serving("--worker-urls", worker.peer.url, "--shutdown-grace-period-secs", "0.2") as served,
        httpx.AsyncClient() as client,
        streaming(served, client) as (_, pieces),
        streaming(served, client) as (_, others),
    ):
        served.process.send_signal(signal.SIGTERM)
        for each in (pieces, others):
            with pytest.raises(httpx.RemoteProtocolError):
                await anext(each)
        code, out, err = await served.end()
        assert (code, out, err.count("\n")) == (0, "", 1), err
        assert err.endswith(": 0.2 s of grace are over: requests cut off before their end: 2\n")
        await until(lambda: worker.cut == 2)


@pytest.mark.anyio
async def test_requests_that_wait_in_the_queue_are_cut_too() -> None:
    worker = Streaming()
    limits = ("--max-concurrent-requests", "1", "--shutdown-grace-period-secs", "0.2")
    async with (
        worker.peer.listening(),
        serving("--worker-urls", worker.peer.url, *limits) as served,
        httpx.AsyncClient() as client,
        streaming(served, client) as (_, pieces),
    ):
        waiting = asyncio.create_task(client.get(served.url + "/x"))
        async with asyncio.timeout(PATIENCE):
            while "warmroute_queued_requests 1.0" not in (await client.get(served.metrics_url)).text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        served.process.send_signal(signal.SIGTERM)
        for cut in (anext(pieces), waiting):
            with pytest.raises(httpx.RemoteProtocolError):
                await cut
        code, out, err = await served.end()
        assert (code, out, err.count("\n")) == (0, "", 1), err
        assert err.endswith(" requests cut off before their end: 2\n")


@pytest.mark.anyio
async def test_a_second_signal_ends_it_at_once() -> None:
    worker = Streaming()
    async with (
        worker.peer.listening(),
        serving("--worker-urls", worker.peer.url) as served,
        httpx.AsyncClient() as client,
        streaming(served, client) as (_, pieces),
    ):
        served.process.send_signal(signal.SIGTERM)
        await refuses(served)
        served.process.send_signal(signal.SIGINT)
        with pytest.raises(httpx.RemoteProtocolError):
            await anext(pieces)
        code, out, err = await served.end()
        assert (code, out) == (0, "")
        assert err.endswith(": told twice to stop: requests cut off before their end: 1\n")


@pytest.mark.anyio
async def test_during_the_delay_it_is_not_ready_and_serves_and_sends_clients_away() -> None:
    async with (
        Peer(answering(response(b"engine"))).listening() as peer,
        serving("--worker-urls", peer.url, "--shutdown-delay-secs", "300") as served,
        httpx.AsyncClient() as client,
    ):
        assert "connection" not in (await client.get(served.url + "/x")).headers
        served.process.send_signal(signal.SIGTERM)
        reply = await not_ready(served, client)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "shutting_down")
        served_still = await client.get(served.url + "/x")
        assert (served_still.content, served_still.headers["connection"]) == (b"engine", "close")
        served.process.send_signal(signal.SIGTERM)
        assert await served.end() == (0, "", "")


@pytest.mark.anyio
async def test_after_the_delay_it_ends() -> None:
    async with (
        Peer(answering(response(b"engine"))).listening() as peer,
        serving("--worker-urls", peer.url, "--shutdown-delay-secs", "3") as served,
        httpx.AsyncClient() as client,
    ):
        served.process.send_signal(signal.SIGTERM)
        await not_ready(served, client)
        assert await served.end() == (0, "", "")


@pytest.mark.anyio
async def test_a_connection_made_just_before_the_end_still_gets_its_answer() -> None:
    async with Peer(answering(response(b"engine"))).listening() as peer, serving("--worker-urls", peer.url) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        async with httpx.AsyncClient() as client:  # so that the connection above has been let in
            await client.get(served.url + "/x")
        served.process.send_signal(signal.SIGTERM)
        await refuses(served)
        writer.write(b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close\r\n" in answer
        assert await served.end() == (0, "", "")


@pytest.mark.anyio
async def test_sigint_ends_it_without_a_traceback() -> None:
    async with Peer(answering(response(b"{}"))).listening() as peer, serving("--worker-urls", peer.url) as served:
        served.process.send_signal(signal.SIGINT)
        assert await served.end() == (0, "", "")


@pytest.mark.anyio
async def test_sighup_changes_nothing() -> None:
    async with (
        Peer(answering(response(b"engine"))).listening() as peer,
        serving("--worker-urls", peer.url) as served,
        httpx.AsyncClient() as client,
    ):
        served.process.send_signal(signal.SIGHUP)
        assert (await client.get(served.url + "/x")).content == b"engine"
        served.process.send_signal(signal.SIGTERM)
        assert await served.end() == (0, "", "")


@pytest.mark.anyio
async def test_a_signal_while_it_starts_ends_it_without_a_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # whose greeting a router that starts waits for
        peer = f"127.0.0.1:{silent.getsockname()[1]}"
        process = await asyncio.create_subprocess_exec(
            *(*MODULE, "--worker-urls", NOBODY, "--port", "0", "--prometheus-port", "0", "--log-level", "warning"),
            *("--peers", peer, "--gossip-key", "k", "--gossip-port", "0"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        async with asyncio.timeout(PATIENCE):
            connection, _ = await asyncio.to_thread(silent.accept)
            with connection:
                process.send_signal(signal.SIGTERM)
                assert await process.communicate() == (b"", b"")
        assert process.returncode == 0


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


# Where it listens, and what it starts with


@pytest.mark.anyio
async def test_with_no_worker_up_it_starts_and_heals_when_one_comes() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(response(b"engine"))
        writer.close()

    with socket.socket() as worker:
        worker.bind(("127.0.0.1", 0))  # and does not listen yet
        url = f"http://127.0.0.1:{worker.getsockname()[1]}"
        async with serving("--worker-urls", url) as served, httpx.AsyncClient() as client:
            for path in ("/health", "/x"):
                reply = await client.get(served.url + path)
                assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_worker_available")
            server = await asyncio.start_server(answer, sock=worker)
            async with asyncio.timeout(PATIENCE):
                while (await client.get(served.url + "/health")).status_code != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert (await client.get(served.url + "/x")).content == b"engine"
            served.process.send_signal(signal.SIGTERM)
            assert (await served.end())[0] == 0
            server.close()


@pytest.mark.anyio
async def test_it_serves_on_all_its_addresses(tmp_path: Path) -> None:
    path = tmp_path / "router"
    async with (
        Peer(answering(response(b"engine"))).listening() as peer,
        serving(
            *("--worker-urls", peer.url, "--host", "127.0.0.1", "127.0.0.2"),
            *("--unix-socket", str(path), "--admin-port", "0"),
        ) as served,
        httpx.AsyncClient() as client,
    ):
        first, second, metrics, admin = served.urls
        assert served.announcement == (
            f"warmroute {__version__}: {first}, {second}, unix:{path}, policy cache_aware, 1 workers; "
            f"metrics on {metrics}; admin on {admin}\n"
        )
        assert second == f"http://127.0.0.2:{served.port}"
        for url in (first, second):
            assert (await client.get(url + "/x")).content == b"engine"
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path))) as local:
            assert (await local.get("http://router/x")).content == b"engine"
        assert (await client.get(admin + "/workers")).json()["workers"][0]["url"] == peer.url
        assert (await client.get(first + "/workers")).status_code >= 400
        served.process.send_signal(signal.SIGTERM)
        assert await served.end() == (0, "", "")
        assert not path.exists()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """And its key."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    make += ["-keyout", str(key), "-out", str(cert), "-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(make, check=True, capture_output=True)
    return cert, key


@pytest.mark.anyio
async def test_with_a_certificate_it_speaks_tls_on_its_port_and_on_the_admin_port(
    certificate: tuple[Path, Path],
) -> None:
    cert, key = certificate
    async with (
        Peer(answering(response(b"engine"))).listening() as peer,
        serving(
            *("--worker-urls", peer.url, "--tls-cert-path", str(cert), "--tls-key-path", str(key)),
            *("--admin-port", "0"),
        ) as served,
        httpx.AsyncClient(verify=ssl.create_default_context(cafile=cert)) as client,
    ):
        public, metrics, admin = served.urls
        assert [url.partition(":")[0] for url in served.urls] == ["https", "http", "https"]
        assert (await client.get(public + "/x")).content == b"engine"
        assert (await client.get(admin + "/workers")).status_code == 200
        assert (await client.get(metrics)).status_code == 200
        served.process.send_signal(signal.SIGTERM)
        assert await served.end() == (0, "", "")


def test_a_file_that_is_wrong_ends_it_with_one_line(tmp_path: Path) -> None:
    file = tmp_path / "workers.json"
    file.write_text("{")
    line = refusal("--workers-file", str(file), "--port", "0", "--prometheus-port", "0", code=1)
    assert str(file) in line
