"""The router's own routes, its key, and its probes, over real sockets."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import orjson
import pytest
from support.peer import Handler, Peer, PeerConnection, answering, models, response
from support.router import CONFIG, RunningRouter, running_router, until
from warmroute_loadtest.ports import free_port
from warmroute_router import health
from warmroute_router.config import HealthConfig, KeyConfig
from warmroute_router.fleet import State

pytestmark = pytest.mark.anyio

NOBODY = "http://127.0.0.1:9"
PATIENCE = 30.0
"""Seconds; only matters in failure."""
KEYED = replace(CONFIG, api_keys=KeyConfig(("s3cret",)))
NO_WORKER = {
    "error": {
        "message": "No worker is up. The router probes them all the time: try again in a moment.",
        "type": "service_unavailable",
        "param": None,
        "code": "no_worker_available",
    }
}


async def get(router: RunningRouter, path: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=PATIENCE, verify=False) as client:  # it reads no certificates
        return await client.get(router.url + path, headers=headers)


# /health


async def test_health_is_200_while_one_worker_is_ready_and_no_worker_is_asked() -> None:
    async with Peer(answering(response(b"{}"))).listening() as peer, running_router(peer.url, NOBODY) as router:
        reply = await get(router, "/health")
        assert (reply.status_code, reply.json()) == (200, {"status": "ok", "workers_ready": 1, "workers": 2})
        assert peer.seen == []


@pytest.mark.parametrize("path", ["/health", "/health/ready"])
async def test_health_is_503_where_no_worker_is_ready(path: str) -> None:
    async with running_router(NOBODY) as router:
        reply = await get(router, path)
        assert (reply.status_code, reply.json()) == (503, NO_WORKER)
        assert reply.headers["content-type"] == "application/json"
        assert reply.headers["retry-after"] == "1"


async def test_a_router_is_alive_whatever_its_workers_are() -> None:
    async with running_router(NOBODY, config=KEYED) as router:
        assert ((await get(router, "/health/live")).status_code) == 200
        router.app.draining = True
        assert ((await get(router, "/health/live")).status_code) == 200
        assert ((await get(router, "/health/ready")).status_code) == 503


async def test_where_there_are_no_workers_their_source_says_why() -> None:
    async with running_router() as router, httpx.AsyncClient() as client:
        router.app.fleet.why_empty = "no pod matches"
        asked = [("GET", "/health"), ("GET", "/v1/models"), ("POST", "/v1/completions"), ("POST", "/abort_request")]
        for method, path in asked:
            reply = await client.request(method, router.url + path)
            error = reply.json()["error"]
            assert (reply.status_code, error["code"]) == (503, "no_worker_available")
            assert error["message"] == "No worker is there: no pod matches."
            assert reply.headers["retry-after"] == "1"


# /v1/models


async def test_models_are_the_union_of_the_workers_in_their_order_without_doubles() -> None:
    async with (
        Peer(answering(models("b", "shared", "a")), asks_handler=True).listening() as one,
        Peer(answering(models("c", "shared", "b", "d")), asks_handler=True).listening() as two,
        running_router(one.url, two.url) as router,
    ):
        for peer in (one, two):
            peer.seen.clear()  # the router has asked for itself
        reply = await get(router, "/v1/models")
        assert reply.status_code == 200
        names = ("b", "shared", "a", "c", "d")
        assert reply.json() == {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}
        requests = [seen.request_line for peer in (one, two) for seen in peer.seen]
        assert requests == [b"GET /v1/models HTTP/1.1"] * 2


async def _hangs(connection: PeerConnection) -> None:
    await connection.closed_by_router()


async def _breaks_off(connection: PeerConnection) -> None:
    connection.writer.close()


BROKEN: dict[str, Handler] = {
    "500": answering(response(b'{"error":"down"}', b"500 Oops")),
    "404": answering(response(b'{"detail":"Not Found"}', b"404 Not Found")),
    "not-json": answering(response(b"<html>")),
    "not-utf-8": answering(response(b"\xff\xfe\xfd")),
    "list": answering(response(b"[]")),
    "null": answering(response(b"null")),
    "data-null": answering(response(b'{"data":null}')),
    "data-of-strings": answering(response(b'{"data":["x"]}')),
    "breaks-off": _breaks_off,
    "hangs": _hangs,
}


@pytest.mark.parametrize("broken", BROKEN)
async def test_a_broken_worker_does_not_hide_the_models_of_the_others(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "RETRY_INTERVAL", 0.01)
    if broken == "hangs":
        monkeypatch.setattr("warmroute_router.app.MODELS_TIMEOUT", 1.0)
        monkeypatch.setattr("warmroute_router.upstream.models._TIMEOUT", 0.2)
    async with (
        Peer(BROKEN[broken], asks_handler=True).listening() as one,
        Peer(answering(models("m")), asks_handler=True).listening() as two,
        running_router(one.url, two.url, NOBODY) as router,
    ):
        await until(lambda: len(router.app.fleet.ready()) == 2)
        before = len(one.seen)
        reply = await get(router, "/v1/models")
        assert reply.status_code == 200
        assert reply.json() == {"object": "list", "data": [{"id": "m", "object": "model"}]}
        assert len(one.seen) > before, "it was asked as well"


async def test_who_has_not_said_its_models_gets_no_requests_for_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "RETRY_INTERVAL", 0.01)
    monkeypatch.setattr("warmroute_router.upstream.models._TIMEOUT", 0.1)
    silent = True

    async def late(connection: PeerConnection) -> None:
        if silent:
            await connection.closed_by_router()
        else:
            await connection.send(models("b"))

    async with (
        Peer(answering(models("a")), asks_handler=True).listening() as one,
        Peer(late, asks_handler=True).listening() as two,
        running_router(one.url, two.url) as router,
    ):
        fleet = router.app.fleet
        await until(lambda: fleet.by_url(one.url) in fleet.catalogue.serving("a"))
        monkeypatch.setattr(health, "MOST_MUTE", 1_000_000)
        asked = len(two.seen)
        await until(lambda: len(two.seen) > asked + 2)
        assert [worker.state for worker in fleet.workers] == [State.READY, State.STARTING]
        silent = False
        await until(lambda: fleet.workers[1].state is State.READY)
        assert [worker.models for worker in fleet.workers] == [("a",), ("b",)]


async def test_who_never_says_its_models_is_asked_by_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "RETRY_INTERVAL", 0.01)
    async with (
        Peer(answering(models("a")), asks_handler=True).listening() as one,
        Peer(BROKEN["500"], asks_handler=True).listening() as two,
        running_router(one.url, two.url) as router,
    ):
        await until(lambda: len(router.app.fleet.ready()) == 2)
        assert len(two.seen) >= health.MOST_MUTE
        assert router.app.fleet.workers[1].models is None


async def test_a_model_without_a_name_is_left_out() -> None:
    data = b'{"data":[{"id":7},{"object":"model"},{"id":"m","owned_by":"me"}]}'
    async with (
        Peer(answering(response(data)), asks_handler=True).listening() as peer,
        running_router(peer.url) as router,
    ):
        reply = await get(router, "/v1/models")
        assert reply.json() == {"object": "list", "data": [{"id": "m", "owned_by": "me"}]}


async def test_a_worker_without_models_makes_an_empty_list() -> None:
    async with Peer(answering(models()), asks_handler=True).listening() as peer, running_router(peer.url) as router:
        reply = await get(router, "/v1/models")
        assert (reply.status_code, reply.json()) == (200, {"object": "list", "data": []})


async def test_models_are_an_error_where_no_worker_is_up_or_names_any() -> None:
    async with running_router(NOBODY) as router:
        reply = await get(router, "/v1/models")
        assert (reply.status_code, reply.json()) == (503, NO_WORKER)
    async with Peer(BROKEN["500"], asks_handler=True).listening() as peer, running_router(peer.url) as router:
        reply = await get(router, "/v1/models")
        assert (reply.status_code, reply.json()["error"]["code"]) == (502, "worker_failed")


async def test_models_are_asked_for_with_the_clients_own_key() -> None:
    async with (
        Peer(answering(models("m")), asks_handler=True).listening() as one,
        Peer(answering(models("m")), asks_handler=True).listening() as two,
        running_router(one.url, two.url) as router,
    ):
        for peer in (one, two):
            peer.seen.clear()
        await get(router, "/v1/models", authorization="Bearer abc")
        await get(router, "/v1/models")
        for peer in (one, two):
            assert [seen.header(b"authorization") for seen in peer.seen] == [b"Bearer abc", None]


# /workers


async def test_workers_tell_their_state_and_load() -> None:
    finish = asyncio.Event()

    async def answer(connection: PeerConnection) -> None:
        await finish.wait()
        await connection.send(response(b"{}"))

    def line(url: str, state: str, load: tuple[int, int, int]) -> dict[str, object]:
        in_flight, waiting, held = load
        return {
            "url": url,
            "state": state,
            "in_flight": in_flight,
            "waiting_tokens": waiting,
            "blocks_held": held,
        }

    async with Peer(answer).listening() as peer, running_router(peer.url, NOBODY) as router:

        async def workers() -> object:
            reply = await get(router, "/workers")
            assert reply.status_code == 200
            return {"workers": [{name: told[name] for name in other} for told in reply.json()["workers"]]}

        other = line(NOBODY, "starting", (0, 0, 0))
        assert await workers() == {"workers": [line(peer.url, "ready", (0, 0, 0)), other]}
        async with httpx.AsyncClient() as client:
            body = orjson.dumps({"model": "m", "prompt": "x" * 1030})
            posted = asyncio.create_task(client.post(router.url + "/v1/completions", content=body))
            await until(lambda: bool(peer.seen))
            # 1030 bytes are 4 full blocks of 256 and something, and 258 tokens of 4 bytes.
            assert await workers() == {"workers": [line(peer.url, "ready", (1, 258, 4)), other]}
            finish.set()
            assert (await posted).status_code == 200
        await until(lambda: router.app.fleet.workers[0].in_flight == 0)
        assert await workers() == {"workers": [line(peer.url, "ready", (0, 0, 4)), other]}


# --api-key


UNAUTHORIZED = {
    "error": {
        "message": "This router asks for its API key: send `Authorization: Bearer <key>`.",
        "type": "authentication_error",
        "param": None,
        "code": "invalid_api_key",
    }
}
WRONG = [
    None,
    b"",
    b"Bearer wrong",
    b"Bearer s3cre",
    b"Bearer s3cret1",
    b"Basic s3cret",
    b"s3cret",
    b"Bearer S3CRET",
    b"Bearer s3cr\xe9t",
]


async def test_without_the_right_key_every_path_but_health_is_a_401() -> None:
    paths = ["/", "/v1/chat/completions", "/v1/models", "/workers", "/health/", "//health", "/healthz", "/metrics"]
    async with (
        Peer(answering(response(b"{}"))).listening() as peer,
        running_router(peer.url, config=KEYED) as router,
        httpx.AsyncClient() as client,
    ):
        for key in WRONG:
            headers = {} if key is None else {b"Authorization": key}
            for method in ("GET", "POST"):
                for path in paths:
                    reply = await client.request(method, router.url + path, headers=headers)
                    assert (reply.status_code, reply.json()) == (401, UNAUTHORIZED), (key, method, path)
                    assert reply.headers["www-authenticate"] == "Bearer"
                    assert reply.headers["content-type"] == "application/json"
            assert (await client.get(router.url + "/health", headers=headers)).status_code == 200
        assert peer.seen == []


async def test_the_right_key_passes_and_reaches_the_worker_once() -> None:
    async with (
        Peer(answering(models("m")), asks_handler=True).listening() as peer,
        running_router(peer.url, config=KEYED) as router,
        httpx.AsyncClient(headers={"authorization": "Bearer s3cret"}) as client,
    ):
        peer.seen.clear()  # the router has asked for its models
        replies = [
            await client.post(router.url + "/v1/chat/completions", content=b"{}"),
            await client.get(router.url + "/v1/models"),
            await client.get(router.url + "/workers"),
            await client.get(router.url + "/anything"),
        ]
        assert [reply.status_code for reply in replies] == [200] * 4
        assert [seen.request_line.split()[1] for seen in peer.seen] == [
            b"/v1/chat/completions",
            b"/v1/models",
            b"/anything",
        ]
        for seen in peer.seen:
            keys = [value for name, value in seen.headers if name.lower() == b"authorization"]
            assert keys == [b"Bearer s3cret"]


async def test_without_a_key_of_its_own_the_router_leaves_authorization_to_the_worker() -> None:
    async with Peer(answering(response(b"no", b"401 No"))).listening() as peer, running_router(peer.url) as router:
        reply = await get(router, "/x", authorization="Bearer whatever")
        assert (reply.status_code, reply.content) == (401, b"no")
        assert peer.seen[0].header(b"authorization") == b"Bearer whatever"


# Upgrades


async def _raw(router: RunningRouter, request: bytes, end: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
    writer.write(request)
    try:
        async with asyncio.timeout(10):
            return await reader.readuntil(end)
    finally:
        writer.close()


async def test_a_websocket_handshake_is_not_upgraded_and_the_worker_sees_a_plain_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handshake = (
        b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    answer = response(b"upgrade needed", b"426 Upgrade Required", b"")
    async with Peer(answering(answer)).listening() as peer, running_router(peer.url) as router:
        with caplog.at_level(logging.DEBUG):
            reply = await _raw(router, handshake, b"upgrade needed")
        assert reply.startswith(b"HTTP/1.1 426 ")
        seen = peer.seen[0]
        assert seen.request_line == b"GET /ws HTTP/1.1"
        assert seen.header(b"upgrade") is seen.header(b"connection") is None
        assert [record for record in caplog.records if record.exc_info or record.levelno > logging.WARNING] == []
        assert (await get(router, "/health")).status_code == 200


async def test_a_body_beside_an_offer_to_upgrade_is_refused_and_not_lost() -> None:
    """Java's HttpClient and `curl --http2` offer h2c with plaintext requests, POST too. The parser stops there."""
    request = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b'HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\nContent-Length: 14\r\n\r\n{"prompt":"x"}'
    )
    async with Peer(answering(response(b"answer"))).listening() as peer, running_router(peer.url) as router:
        answer = await _raw(router, request, b"upgrade_not_supported")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert peer.seen == []


# Probes


class Engine:
    """A worker whose `/health` does what it is told, and which can go away with all of its connections."""

    def __init__(self, status: int | None = 200) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.status: Callable[[], int | None] = lambda: status
        """None says nothing at all."""
        self.probes = 0
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        while self._writers:
            self._writers.pop().transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith((b"GET /metrics HTTP/1.1\r\n", b"GET /v1/models HTTP/1.1\r\n")):
                    writer.write(response(b"", b"404 Not Found"))
                    continue
                assert head.startswith(b"GET /health HTTP/1.1\r\n")
                self.probes += 1
                status = self.status()
                if status is not None:
                    writer.write(response(b"", b"%d X" % status))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@asynccontextmanager
async def watched(*engines: Engine, probes: HealthConfig = CONFIG.health) -> AsyncIterator[RunningRouter]:
    try:
        async with running_router(
            *(engine.url for engine in engines), config=replace(CONFIG, health=probes)
        ) as router:
            yield router
    finally:
        for engine in engines:
            engine.stop()


FAR_OFF = 3600.0


async def test_a_worker_that_comes_up_later_becomes_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "RETRY_INTERVAL", 0.01)
    engine = Engine()
    async with watched(engine) as router:
        worker = router.app.fleet.workers[0]
        assert worker.state is State.STARTING
        assert (await get(router, "/health")).status_code == 503
        await engine.start()
        await until(lambda: worker.state is State.READY)
        assert (await get(router, "/health")).status_code == 200


async def test_a_worker_that_is_loading_is_not_ready_until_its_health_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "RETRY_INTERVAL", 0.01)
    caplog.set_level(logging.INFO)
    engine = Engine(503)
    await engine.start()
    async with watched(engine) as router:
        worker = router.app.fleet.workers[0]
        await until(lambda: engine.probes > 2 * CONFIG.health.failure_threshold)
        assert worker.state is State.STARTING
        engine.stop()
        await until(lambda: "attempts failed" in caplog.text)
        await engine.start()
        engine.status = lambda: 200
        await until(lambda: worker.state is State.READY)
    why = [line.partition(": ")[2] for line in caplog.messages if "is not up" in line]
    assert why[0] == "/health answers 503"
    assert "connection attempts failed" in why[-1]
    assert len(why) == len(set(why)), "each once"


async def test_whatever_answers_without_a_server_error_is_up() -> None:
    engines = [Engine(status) for status in (200, 204, 301, 401, 404, 405, 499, 500, 502, 503)]
    for engine in engines:
        await engine.start()
    async with watched(*engines) as router:
        states = [worker.state for worker in router.app.fleet.workers]
        assert states == [State.READY] * 7 + [State.STARTING] * 3
        assert [worker.url for worker in router.app.fleet.ready()] == [engine.url for engine in engines[:7]]


async def test_three_failed_probes_in_a_row_make_a_worker_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "RETRY_INTERVAL", FAR_OFF)
    engine = Engine()
    script = [200, 500, 500, 200, 500, 500, 404, 500, 503, 502]
    states: list[State] = []

    def status() -> int | None:
        states.append(router.app.fleet.workers[0].state)
        return script[len(states) - 1] if len(states) <= len(script) else 200

    await engine.start()
    async with watched(engine, probes=HealthConfig(interval=0.01)) as router:
        worker = router.app.fleet.workers[0]
        engine.status = status
        await until(lambda: worker.state is State.UNHEALTHY or len(states) > len(script))
        assert worker.state is State.UNHEALTHY
        assert states == [State.READY] * len(script)
        assert (await get(router, "/health")).status_code == 503


@pytest.mark.parametrize("how", ["stops", "hangs"])
async def test_a_worker_that_goes_away_becomes_unhealthy_and_ready_again_when_it_is_back(
    how: str,
) -> None:
    engine = Engine()
    await engine.start()
    async with watched(engine, probes=HealthConfig(interval=0.01, timeout=0.3)) as router:
        worker = router.app.fleet.workers[0]
        await until(lambda: worker.state is State.READY)
        if how == "stops":
            engine.stop()
            await until(lambda: worker.state is State.UNHEALTHY)
            assert (await get(router, "/health")).status_code == 503
            await engine.start()
        else:
            engine.status = lambda: None
            await until(lambda: worker.state is State.UNHEALTHY)
            engine.status = lambda: 200
        await until(lambda: worker.state is State.READY)


async def test_a_worker_that_hangs_does_not_hold_up_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "FIRST_ROUND", 0.1)

    hanging, fine = Engine(None), Engine()
    await hanging.start()
    await fine.start()
    async with asyncio.timeout(PATIENCE), watched(hanging, fine, probes=HealthConfig(timeout=FAR_OFF)) as router:
        hung, well = router.app.fleet.workers
        await until(lambda: well.state is State.READY and hanging.probes == 1)
        assert hung.state is State.STARTING
