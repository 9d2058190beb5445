"""Several models behind one router."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fleet import fleet_of
from support.peer import Peer, PeerConnection, answering, response
from support.router import CONFIG, RunningRouter, running_router, until
from warmroute_router.config import HealthConfig, WorkerSpec
from warmroute_router.fleet import Fleet, State

pytestmark = pytest.mark.anyio

CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
OFTEN = replace(CONFIG, health=HealthConfig(interval=0.02))


def serving(*models: tuple[str, ...] | None) -> Fleet:
    """One worker for each."""
    fleet = fleet_of(*(f"http://w{number}" for number in range(len(models))))
    for worker, its in zip(fleet.workers, models, strict=True):
        fleet.set_models(worker, its)
    return fleet


def who(fleet: Fleet, model: str) -> list[str]:
    return [worker.url.removeprefix("http://") for worker in fleet.catalogue.serving(model)]


def test_where_all_serve_the_same_any_name_goes_to_anybody() -> None:
    fleet = serving(("a", "b"), ("b", "a"), None)
    assert not fleet.catalogue.mixed
    for model in ("a", "b", "whatever", ""):
        assert who(fleet, model) == ["w0", "w1", "w2"]


def test_where_they_differ_a_request_goes_to_those_that_list_its_model() -> None:
    fleet = serving(("a", "shared"), ("b", "shared"), ("a", "shared"))
    assert fleet.catalogue.mixed
    assert who(fleet, "a") == ["w0", "w2"]
    assert who(fleet, "b") == ["w1"]
    assert who(fleet, "shared") == who(fleet, "") == ["w0", "w1", "w2"]
    assert who(fleet, "c") == []
    assert fleet.catalogue.models == ["a", "shared", "b"]


def test_what_nobody_lists_goes_to_those_that_list_nothing() -> None:
    fleet = serving(("a",), ("b",), None)
    assert (who(fleet, "a"), who(fleet, "c")) == (["w0"], ["w2"])


def test_a_model_whose_workers_are_gone_is_missed_until_it_comes_again() -> None:
    fleet = serving(("a",), ("b",))
    a, b = fleet.workers
    fleet.remove(b)
    assert not fleet.catalogue.mixed
    assert (who(fleet, "b"), fleet.catalogue.is_missed("b")) == ([], True), "a would give another model's answer"
    assert (who(fleet, "whatever"), fleet.catalogue.is_missed("whatever")) == (["w0"], False)
    fleet.set_models(a, ("a", "b"))
    assert (who(fleet, "b"), fleet.catalogue.is_missed("b")) == (["w0"], False)


def test_a_model_that_its_worker_takes_back_is_not_missed() -> None:
    """As an adapter that was unloaded: the engine knows best what to say."""
    fleet = serving(("a", "adapter"))
    fleet.set_models(fleet.workers[0], ("a",))
    assert (who(fleet, "adapter"), fleet.catalogue.is_missed("adapter")) == (["w0"], False)


def test_only_so_many_names_are_remembered() -> None:
    fleet = Fleet()
    for number in range(3):
        worker = fleet.add(WorkerSpec("http://w0", models=tuple(f"{number}-{name}" for name in range(1000))))
        fleet.remove(worker)
        assert fleet.catalogue.is_missed(f"{number}-999")
    assert not fleet.catalogue.is_missed("0-0")


_NAMES = st.one_of(st.none(), st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(tuple))


@given(st.lists(_NAMES, min_size=1, max_size=5), st.sampled_from(["", "a", "b", "c", "d"]))
def test_as_a_plain_reading_of_the_rule_says(models: list[tuple[str, ...] | None], model: str) -> None:
    fleet = serving(*models)
    lists = {f"w{number}": set(its) for number, its in enumerate(models) if its is not None}
    everybody = [f"w{number}" for number in range(len(models))]
    if not model or all(its == other for its in lists.values() for other in lists.values()):
        expected = everybody
    else:
        expected = [name for name in everybody if model in lists.get(name, ())]
        expected = expected or [name for name in everybody if name not in lists]
    assert who(fleet, model) == expected


def test_a_worker_is_slow_only_beside_others_of_its_model() -> None:
    fleet = serving(("small",), ("small",), ("large",), ("large",))
    for worker, speed in zip(fleet.workers, (10_000.0, 10_000.0, 1000.0, 400.0), strict=True):
        worker.backlog.speed.tokens_per_s = speed
    fleet.compare_speeds()
    assert [worker.slowness for worker in fleet.workers] == [1.0, 1.0, 1.0 / (1000 / 700), 1.75]


# Over the wire


@asynccontextmanager
async def two_models() -> AsyncIterator[tuple[RunningRouter, httpx.AsyncClient, Peer, Peer]]:
    async with (
        Peer(answering(response(b'"a"')), "a", "a-adapter").listening() as a,
        Peer(answering(response(b'"b"')), "b").listening() as b,
        running_router(a.url, b.url, config=OFTEN) as router,
        httpx.AsyncClient(base_url=router.url) as client,
    ):
        await until(lambda: router.app.fleet.catalogue.mixed)
        yield router, client, a, b


async def test_requests_go_by_their_model_on_every_path() -> None:
    async with two_models() as (_, client, _, _):
        for _ in range(5):
            for model, answer in (("a", "a"), ("b", "b"), ("a-adapter", "a")):
                for path, body in (
                    (CHAT, {"model": model, "messages": [{"role": "user", "content": "same"}]}),
                    (EMBEDDINGS, {"model": model, "input": "x"}),
                    ("/v1/anything", {"model": model}),
                ):
                    reply = await client.post(path, json=body)
                    assert (reply.status_code, reply.json()) == (200, answer), (model, path)


async def test_a_model_that_nobody_serves_is_a_404_that_names_those_there_are() -> None:
    async with two_models() as (router, client, a, b):
        reply = await client.post(CHAT, json={"model": "c", "messages": []})
        assert (reply.status_code, reply.json()) == (
            404,
            {
                "error": {
                    "message": "No worker serves the model `c`. There are `a`, `a-adapter`, `b`.",
                    "type": "invalid_request_error",
                    "param": None,
                    "code": "model_not_found",
                }
            },
        )
        assert a.seen == b.seen == []
        assert router.app.routing.decisions == {"no_capacity": 1}
        router.assert_idle()


async def test_a_request_is_not_retried_on_a_worker_of_another_model() -> None:
    async def declines(connection: PeerConnection) -> None:
        await connection.send(response(b"{}", b"503 Full"))

    async with two_models() as (_, client, a, b):
        a.handler = declines
        reply = await client.post(CHAT, json={"model": "a", "messages": []})
        assert (reply.status_code, len(a.seen), len(b.seen)) == (503, 1, 0)


async def test_a_model_whose_only_worker_is_down_or_gone_is_a_503() -> None:
    async with two_models() as (router, client, _, b):
        worker = router.app.fleet.workers[1]
        worker.state = State.DRAINING
        reply = await client.post(CHAT, json={"model": "b", "messages": []})
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_worker_available")
        router.app.routing.remove(worker)
        reply = await client.post(CHAT, json={"model": "b", "messages": []})
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        assert reply.json()["error"]["message"].startswith("The workers that serve the model `b` are gone.")
        assert b.seen == []
        assert (await client.post(CHAT, json={"model": "a", "messages": []})).json() == "a"


async def test_a_model_that_comes_later_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmroute_router.health.MODELS_EVERY", 0.02)
    async with two_models() as (router, client, a, _):
        a.models = ("a", "new")
        await until(lambda: "new" in router.app.fleet.catalogue.models)
        assert (await client.post(CHAT, json={"model": "new", "messages": []})).json() == "a"


@pytest.mark.parametrize("body", [b"", b"[]", b"not json", b'{"model": 7}', b'"model"', b"\xff"])
async def test_a_request_that_names_no_model_goes_to_anybody(body: bytes) -> None:
    async with two_models() as (_, client, _, _):
        assert (await client.post("/v1/anything", content=body)).status_code == 200


@pytest.mark.parametrize(
    "listed",
    [b"[]", b"{}", b'{"data": []}', b'{"data": [{"id": 7}]}', b"<html>", b'{"data": [{"id": "%b"}]}' % (b"x" * 257)],
)
async def test_what_is_no_list_of_models_is_none(listed: bytes) -> None:
    async with (
        Peer(answering(response(listed)), asks_handler=True).listening() as peer,
        running_router(peer.url) as router,
    ):
        await until(lambda: bool(router.app.fleet.ready()))
        assert router.app.fleet.workers[0].models is None
