"""The admin API: what it shows, what it changes, whom it lets, and what becomes of requests meanwhile."""

import asyncio
from array import array
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import generate_latest
from support.peer import STREAM_HEAD, Peer, PeerConnection, chunk
from support.router import CONFIG, RunningRouter, running_router, until
from warmroute_router import admin as admin_module
from warmroute_router.admin import AdminApi, worker_id
from warmroute_router.blocks import BLOCK_TOKENS, PromptBlocks
from warmroute_router.config import AdminConfig, KeyConfig, WorkerSpec
from warmroute_router.discovery import membership as membership_module
from warmroute_router.discovery.allow_list import AllowList
from warmroute_router.discovery.changes import Changes
from warmroute_router.discovery.membership import Membership
from warmroute_router.fleet import Fleet, State
from warmroute_router.keys import KeyRing
from warmroute_router.metrics import build_registry
from warmroute_router.policies import POLICIES
from warmroute_router.routing import Routing
from warmroute_router.tree import PrefixTree

pytestmark = pytest.mark.anyio

A, B = "http://a", "http://b"
A_PATH, B_PATH = f"/workers/{worker_id(A)}", f"/workers/{worker_id(B)}"


class House:
    """The API over a fleet that nobody connects to: `a` is there, named by flags."""

    def __init__(
        self,
        keys: tuple[str, ...] = (),
        allowed: tuple[str, ...] = (),
        *,
        own_port: bool = True,
        changes_path: Path | None = None,
    ) -> None:
        self.fleet = Fleet()
        self.routing = Routing(self.fleet, PrefixTree(1000), "round_robin", POLICIES["round_robin"]())
        self.membership = Membership(self.routing, "default-secret")
        self.membership.apply("flags", [WorkerSpec(A)])
        ring = KeyRing(KeyConfig(keys=keys)) if keys else None
        changes = Changes(changes_path, self.membership)
        self.api = AdminApi(self.routing, changes, AllowList(allowed), ring, own_port=own_port)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.api), base_url="http://router")

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        return await self.client.request(method, path, **options)

    def key(self, url: str) -> str | None:
        worker = self.fleet.by_url(url)
        assert worker is not None
        return worker.spec.api_key


def error(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of an answer in the OpenAI shape."""
    told = answer.json()["error"]
    assert told.keys() == {"message", "type", "param", "code"}
    assert answer.headers["content-type"] == "application/json"
    return answer.status_code, told["code"]


async def test_the_list_shows_each_worker_and_no_key() -> None:
    house = House()
    house.fleet.workers[0].state = State.READY
    placement = house.routing.place(PromptBlocks(array("Q", [1, 2]), 1, 2 * BLOCK_TOKENS))
    assert placement is not None
    answer = await house.ask("GET", "/workers")
    assert answer.status_code == 200
    assert answer.json() == {
        "workers": [
            {
                "id": worker_id(A),
                "url": A,
                "state": "ready",
                "models": None,
                "in_flight": 1,
                "waiting_tokens": 2 * BLOCK_TOKENS,
                "blocks_held": 2,
                "breaker": "closed",
                "sources": ["flags"],
                "has_key": True,
            }
        ],
        "total": 1,
    }
    placement.release()


async def test_an_id_is_the_same_in_every_router() -> None:
    assert worker_id("http://10.0.0.1:8000") == "f6bcaf4e2b6877e3"


async def test_one_worker_is_found_by_its_id() -> None:
    house = House()
    assert (await house.ask("GET", A_PATH)).json()["url"] == A
    assert error(await house.ask("GET", B_PATH)) == (404, "not_found")


async def test_a_worker_is_added_once() -> None:
    house = House()
    added = await house.ask("POST", "/workers", json={"url": "b:80/", "api_key": "secret"})
    assert (added.status_code, added.json()["url"], added.json()["state"]) == (201, B, "starting")
    assert (added.json()["has_key"], "secret" in added.text) == (True, False)
    assert house.key(B) == "secret"
    assert (await house.ask("POST", "/workers", json={"url": B})).status_code == 200
    assert house.key(B) == "secret"
    again = await house.ask("POST", "/workers", json={"url": B, "api_key": "another"})
    assert (again.status_code, again.json()["sources"]) == (200, ["api"])
    assert house.key(B) == "another"
    assert (await house.ask("GET", "/workers")).json()["total"] == 2


async def test_a_key_is_changed_and_taken_back() -> None:
    house = House()
    answer = await house.ask("PUT", A_PATH, json={"api_key": "secret"})
    assert (answer.status_code, answer.json()["id"], "secret" in answer.text) == (200, worker_id(A), False)
    assert house.key(A) == "secret"
    await house.ask("PUT", A_PATH, json={"api_key": None})
    assert house.key(A) == "default-secret"
    assert error(await house.ask("PUT", B_PATH, json={"api_key": "secret"})) == (404, "not_found")


async def test_a_key_does_not_outlive_its_worker() -> None:
    house = House()
    await house.ask("POST", "/workers", json={"url": B, "api_key": "secret"})
    await house.ask("DELETE", B_PATH)
    await house.ask("POST", "/workers", json={"url": B})
    assert house.key(B) == "default-secret"


async def test_a_deleted_worker_is_gone_at_once() -> None:
    house = House()
    answer = await house.ask("DELETE", A_PATH)
    assert (answer.status_code, answer.json()["state"], answer.json()["url"]) == (200, "gone", A)
    assert (await house.ask("GET", "/workers")).json() == {"workers": [], "total": 0}
    assert error(await house.ask("DELETE", A_PATH)) == (404, "not_found")


async def test_a_drained_worker_drains_until_it_is_added_again() -> None:
    house = House()
    answer = await house.ask("POST", f"{A_PATH}/drain")
    assert (answer.status_code, answer.json()["state"]) == (202, "draining")
    back = await house.ask("POST", "/workers", json={"url": A})
    assert (back.status_code, back.json()["state"]) == (200, "starting")


@pytest.mark.parametrize(
    ("method", "path", "body", "says"),
    [
        ("POST", "/workers", b"", "not JSON"),
        ("POST", "/workers", b'{"url": ', "not JSON"),
        ("POST", "/workers", b"\xff", "not JSON"),
        ("POST", "/workers", b"[" * 5000, "not JSON"),
        ("POST", "/workers", b'["http://b"]', "not a JSON object"),
        ("POST", "/workers", b"{}", "`url` is missing"),
        ("POST", "/workers", b'{"url": 3}', "`url` must be a string"),
        ("POST", "/workers", b'{"url": "ftp://b"}', "scheme must be http or https"),
        ("POST", "/workers", b'{"url": "http://b?x=1"}', "expected a URL like"),
        ("POST", "/workers", b'{"url": "http://u:secret@b"}', "a user or a password"),
        ("POST", "/workers", b'{"url": "http://b\\r\\nx-evil: 1"}', "expected a URL like"),
        ("POST", "/workers", b'{"url": "http://b", "weight": 1}', "Unknown field 'weight'"),
        ("POST", "/workers", b'{"url": "http://b", "api_key": "secret\\r\\nx: y"}', "no header can carry"),
        ("POST", "/workers", b'{"url": "http://b", "api_key": ""}', "not empty"),
        ("PUT", A_PATH, b"{}", "`api_key` is missing"),
        ("PUT", A_PATH, b'{"url": "http://b"}', "Unknown field 'url'"),
    ],
)
async def test_what_is_wrong_with_a_request_is_said(method: str, path: str, body: bytes, says: str) -> None:
    house = House()
    answer = await house.ask(method, path, content=body)
    assert error(answer) == (400, "invalid_request")
    assert says in answer.json()["error"]["message"]
    assert "secret" not in answer.text
    assert [worker.url for worker in house.fleet.workers] == [A]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/workers", "GET, POST, HEAD"),
        ("BREW", "/workers", "GET, POST, HEAD"),
        ("POST", A_PATH, "GET, PUT, DELETE, HEAD"),
        ("GET", f"{A_PATH}/drain", "POST"),
        ("OPTIONS", f"{A_PATH}/drain", "POST"),
    ],
)
async def test_other_methods_are_told_which_there_are(method: str, path: str, allowed: str) -> None:
    answer = await House().ask(method, path)
    assert error(answer) == (405, "method_not_allowed")
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize("path", ["/workers/", "/workers/1/2/3", f"{A_PATH}/", f"{A_PATH}/stop", "/", "/v1/models"])
async def test_other_paths_are_told_which_there_are(path: str) -> None:
    assert error(await House().ask("GET", path)) == (404, "not_found")


async def test_a_head_is_answered_like_a_get() -> None:
    house = House()
    for path in ("/workers", A_PATH):
        head, get = await house.ask("HEAD", path), await house.ask("GET", path)
        assert (head.status_code, head.headers) == (get.status_code, get.headers)


async def test_a_body_is_read_no_further_than_its_limit() -> None:
    read = 0

    async def endless() -> AsyncGenerator[bytes, None]:
        nonlocal read
        while True:
            read += 4096
            yield b" " * 4096

    house = House()
    path = {"type": "http", "method": "POST", "path": "/workers", "raw_path": b"/workers", "query_string": b""}
    body, sent = endless(), []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": await anext(body), "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    await house.api({**path, "headers": [], "root_path": ""}, receive, send)
    await body.aclose()
    assert sent[0]["status"] == 413
    assert read <= admin_module.MAX_BODY + 4096


async def test_a_client_that_leaves_in_its_body_changes_nothing() -> None:
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": b'{"url": "http://b"}', "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(message: Any) -> None:
        pass

    house = House()
    path = {"type": "http", "method": "POST", "path": "/workers", "raw_path": b"/workers", "query_string": b""}
    await house.api({**path, "headers": [], "root_path": ""}, receive, send)
    assert [worker.url for worker in house.fleet.workers] == [A]


async def test_only_what_the_list_allows_is_added() -> None:
    house = House(allowed=("*.cluster.local", "10.0.0.0/8"))
    for url in (B, "http://169.254.169.254/latest", "http://2130706433", "https://cluster.local.evil.com"):
        answer = await house.ask("POST", "/workers", json={"url": url})
        assert error(answer) == (403, "worker_not_allowed")
    assert (await house.ask("POST", "/workers", json={"url": "w.cluster.local:8000"})).status_code == 201
    assert (await house.ask("POST", "/workers", json={"url": "10.1.2.3"})).status_code == 201


async def test_there_is_an_end_to_how_many_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_module, "MAX_WORKERS", 2)
    house = House()
    assert (await house.ask("POST", "/workers", json={"url": B})).status_code == 201
    assert error(await house.ask("POST", "/workers", json={"url": "http://c"})) == (409, "too_many_workers")
    assert (await house.ask("POST", "/workers", json={"url": B, "api_key": "secret"})).status_code == 200


READS = [("GET", "/workers"), ("HEAD", "/workers"), ("GET", A_PATH)]
CHANGES = [
    ("POST", "/workers"),
    ("PUT", A_PATH),
    ("DELETE", A_PATH),
    ("POST", f"{A_PATH}/drain"),
    ("BREW", "/workers"),
]


@pytest.mark.parametrize(("method", "path"), [*READS, *CHANGES])
@pytest.mark.parametrize("own_port", [False, True])
async def test_with_admin_keys_every_path_needs_one(method: str, path: str, own_port: bool) -> None:
    house = House(keys=("boss", "deputy"), own_port=own_port)
    for headers in ({}, {"authorization": "Bearer client"}, {"authorization": "Basic boss"}, {"x-api-key": "bos"}):
        answer = await house.ask(method, path, headers=headers)
        assert answer.status_code == 401
        if method != "HEAD":
            assert error(answer) == (401, "invalid_api_key")
        assert "boss" not in answer.text
    for key in ("boss", "deputy"):
        answer = await house.ask(method, path, headers={"authorization": f"Bearer {key}"})
        assert answer.status_code != 401
    assert house.api.has_keys


@pytest.mark.parametrize(("method", "path"), CHANGES)
async def test_without_admin_keys_the_public_port_changes_nothing(method: str, path: str) -> None:
    house = House(own_port=False)
    answer = await house.ask(method, path, json={"url": B})
    assert error(answer) == (403, "admin_disabled")
    assert "--admin-api-key" in answer.json()["error"]["message"]
    assert [(worker.url, worker.state) for worker in house.fleet.workers] == [(A, "starting")]
    for method, path in READS:
        assert (await house.ask(method, path)).status_code == 200


async def test_a_web_page_changes_nothing_where_no_key_is_asked_for() -> None:
    house = House()
    answer = await house.ask("POST", f"{A_PATH}/drain", headers={"origin": "https://evil.example"})
    assert error(answer) == (403, "browser_not_allowed")
    assert house.fleet.workers[0].state is State.STARTING
    keyed = House(keys=("boss",))
    headers = {"origin": "https://console.example", "authorization": "Bearer boss"}
    assert (await keyed.ask("POST", f"{A_PATH}/drain", headers=headers)).status_code == 202


async def test_a_call_to_one_process_is_seen_by_the_next_call_to_another(tmp_path: Path) -> None:
    one, other = House(changes_path=tmp_path / "changes"), House(changes_path=tmp_path / "changes")
    await one.ask("POST", "/workers", json={"url": B, "api_key": "secret"})
    assert (await other.ask("GET", B_PATH)).json()["sources"] == ["api"]
    await other.ask("DELETE", A_PATH)
    assert (await one.ask("GET", "/workers")).json()["total"] == 1


async def test_a_change_that_cannot_be_told_to_the_others_is_not_made(tmp_path: Path) -> None:
    house = House(changes_path=tmp_path / "missing" / "changes")
    answer = await house.ask("DELETE", A_PATH)
    assert error(answer) == (500, "change_not_written")
    assert [worker.url for worker in house.fleet.workers] == [A]


def test_only_its_own_paths_are_the_apis() -> None:
    assert all(AdminApi.handles(path) for path in ("/workers", "/workers/", "/workers/1", "/workers/1/drain"))
    assert not any(AdminApi.handles(path) for path in ("/", "/workersx", "/v1/workers", "/WORKERS"))


BOSS = {"authorization": "Bearer boss"}
CHAT = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}


class Streams:
    """A worker's answers: each begins, and ends when it is told to."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def __call__(self, connection: PeerConnection) -> None:
        await connection.send(STREAM_HEAD + chunk(b"data: begun\n\n"))
        await self.go_on.wait()
        await connection.send(chunk(b"data: [DONE]\n\n") + chunk(b""))


@asynccontextmanager
async def two_workers() -> AsyncIterator[tuple[Streams, Peer, Peer, RunningRouter]]:
    """The router knows only the first of them."""
    streams = Streams()
    config = replace(CONFIG, admin=AdminConfig(keys=KeyConfig(keys=("boss",))))
    async with (
        Peer(streams).listening() as one,
        Peer(streams).listening() as other,
        running_router(one.url, config=config) as router,
    ):
        try:
            yield streams, one, other, router
        finally:
            streams.go_on.set()
        await until(lambda: all(not worker.in_flight for worker in router.app.fleet.workers))
        router.assert_idle()


def series(router: RunningRouter) -> str:
    return generate_latest(build_registry(router.app.routing, router.app.proxy)).decode()


@pytest.mark.parametrize("way", ["drain", "delete"])
async def test_a_worker_that_is_taken_out_ends_its_streams_and_gets_no_more(way: str) -> None:
    async with two_workers() as (streams, one, other, router), httpx.AsyncClient(base_url=router.url) as client:
        path = f"/workers/{worker_id(one.url)}"
        before = router.app.fleet.workers[0]
        async with client.stream("POST", "/v1/chat/completions", json=CHAT) as stream:
            parts = stream.aiter_bytes()
            assert await anext(parts) == b"data: begun\n\n"

            added = await client.post("/workers", json={"url": other.url}, headers=BOSS)
            assert added.status_code == 201
            await until(lambda: router.app.fleet.workers[1].state is State.READY)
            method, where = ("POST", f"{path}/drain") if way == "drain" else ("DELETE", path)
            taken = await client.request(method, where, headers=BOSS)
            assert taken.json()["state"] == ("draining" if way == "drain" else "gone")
            assert router.app.tree.held[before.index] == (taken.json()["blocks_held"])

            asked = [asyncio.create_task(client.post("/v1/chat/completions", json=CHAT)) for _ in range(8)]
            await until(lambda: len(other.seen) == 8)
            listed = (await client.get("/workers", headers=BOSS)).json()
            assert [worker["url"] for worker in listed["workers"]] == (
                [one.url, other.url] if way == "drain" else [other.url]
            )
            streams.go_on.set()
            assert b"".join([part async for part in parts]) == b"data: [DONE]\n\n"
        assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}
        assert len(one.seen) == 1
        await until(lambda: before.state is State.GONE)
        assert (await client.get(path, headers=BOSS)).status_code == 404
        assert one.url not in series(router)
        assert other.url in series(router)
        assert (before.in_flight, before.waiting_tokens) == (0, 0)
        assert not router.app.tree.held[before.index]


async def test_a_worker_that_drained_and_is_added_again_is_probed_and_serves() -> None:
    async with two_workers() as (streams, one, _, router), httpx.AsyncClient(base_url=router.url) as client:
        streams.go_on.set()
        for _ in range(2):
            await client.post(f"/workers/{worker_id(one.url)}/drain", headers=BOSS)
            await until(lambda: not router.app.fleet.workers)
            await client.post("/workers", json={"url": one.url}, headers=BOSS)
            await until(lambda: bool(router.app.fleet.ready()))
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200


async def test_clients_keys_do_not_open_the_admin_api() -> None:
    config = replace(CONFIG, api_keys=KeyConfig(keys=("client",)), admin=AdminConfig(keys=KeyConfig(keys=("boss",))))
    async with running_router(A, config=config) as router, httpx.AsyncClient(base_url=router.url) as client:
        for key, status in (("client", 401), ("boss", 200)):
            assert (await client.get("/workers", headers={"authorization": f"Bearer {key}"})).status_code == status
