"""Workers that are pods: what becomes of them in the fleet, whatever the API does meanwhile."""

import asyncio
import logging
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kube_api import Fault, Kind, KubeApi, answering, dropping, event, hanging, kube_api, refusing
from support.router import CONFIG, running_router, until
from warmroute_router.blocks import BLOCK_TOKENS, PromptBlocks
from warmroute_router.config import KubernetesConfig
from warmroute_router.discovery.kubernetes import api as api_module
from warmroute_router.discovery.kubernetes import discovery as discovery_module
from warmroute_router.discovery.kubernetes.account import Account
from warmroute_router.discovery.kubernetes.discovery import KubernetesWorkers
from warmroute_router.discovery.membership import Membership
from warmroute_router.fleet import Fleet, State, Worker
from warmroute_router.policies import POLICIES
from warmroute_router.routing import Routing
from warmroute_router.tree import PrefixTree

pytestmark = pytest.mark.anyio

PODS = KubernetesConfig(selector="app=worker", port=8000)


class House:
    """A router without its HTTP side, and what follows the pods for it."""

    def __init__(self, api: KubeApi, config: KubernetesConfig = PODS) -> None:
        self.api = api
        self.fleet = Fleet()
        self.routing = Routing(self.fleet, PrefixTree(100_000), "round_robin", POLICIES["round_robin"]())
        self.membership = Membership(self.routing, None)
        self.pods = KubernetesWorkers(config, self.membership, self.fleet, Account(api.url, "ns", None))

    @property
    def states(self) -> dict[str, str]:
        """By host."""
        return {
            worker.url.removeprefix("http://").removesuffix(":8000"): worker.state for worker in self.fleet.workers
        }

    @property
    def why_empty(self) -> str:
        return self.fleet.why_empty or ""

    def worker(self, ip: str) -> Worker:
        worker = self.fleet.by_url(f"http://{ip}:8000")
        assert worker is not None, self.states
        return worker

    async def until(self, **states: str) -> None:
        """`a` is 10.0.0.1, and so on."""
        wanted = {f"10.0.0.{ord(name) - 96}": state for name, state in states.items()}
        try:
            await until(lambda: self.states == wanted)
        except TimeoutError:
            raise AssertionError(f"{self.states} is not {wanted}") from None

    async def lives(self) -> None:
        """It follows: a pod that comes now is seen."""
        uid = self.api.add("10.9.9.9")
        await until(lambda: "10.9.9.9" in self.states)
        self.api.delete(uid)
        await until(lambda: self.states["10.9.9.9"] == "draining")
        self.keep()

    def probe(self) -> None:
        for worker in self.fleet.workers:
            if worker.state in (State.STARTING, State.UNHEALTHY) and worker.spec.ready:
                worker.state = State.READY

    def keep(self) -> None:
        """As the housekeeping does."""
        for worker in list(self.fleet.workers):
            if worker.state is State.DRAINING and not worker.own_counts[0]:
                self.routing.remove(worker)


@asynccontextmanager
async def following(api: KubeApi, config: KubernetesConfig = PODS) -> AsyncIterator[House]:
    house = House(api, config)
    await house.pods.start()
    try:
        yield house
    finally:
        await house.pods.stop()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery_module, "FIRST_PAUSE", 0.002)
    monkeypatch.setattr(discovery_module, "LONGEST_PAUSE", 0.02)


@pytest.fixture
async def api() -> AsyncIterator[KubeApi]:
    async with kube_api() as running:
        yield running


def log(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


# Pods


async def test_each_pod_with_an_address_is_a_worker(api: KubeApi) -> None:
    one, two = api.add("10.0.0.1"), api.add("fd00::2", ready=False)
    api.add(None)
    api.add("10.0.0.4", labels={"app": "other"})
    api.change(api.add("10.0.0.5"), phase="Succeeded")
    api.change(api.add("10.0.0.6"), terminating=True)
    async with following(api) as house:
        specs = {worker.spec.url: worker.spec for worker in house.fleet.workers}
        assert set(specs) == {"http://10.0.0.1:8000", "http://[fd00::2]:8000"}
        assert (specs["http://10.0.0.1:8000"].identity, specs["http://10.0.0.1:8000"].ready) == (one, True)
        assert (specs["http://[fd00::2]:8000"].identity, specs["http://[fd00::2]:8000"].ready) == (two, False)
        assert {spec.models for spec in specs.values()} == {None}
        assert house.pods.discovered == 2
        assert (house.pods.failures, house.pods.complaint) == (0, None)
    assert api.asked[0].query == {"labelSelector": "app=worker", "limit": "250"}


async def test_the_life_of_a_pod(api: KubeApi) -> None:
    async with following(api) as house:
        assert house.states == {}
        uid = api.add(None)
        api.change(uid, ip="10.0.0.1", ready=False, phase="Running")
        await house.until(a="starting")
        worker = house.worker("10.0.0.1")
        assert not worker.spec.ready
        api.change(uid, ready=True)
        await until(lambda: worker.spec.ready and worker.doubted.is_set())
        house.probe()
        placement = house.routing.place(PromptBlocks(array("Q", [1, 2]), 1, 2 * BLOCK_TOKENS))
        assert placement is not None
        api.change(uid, ready=False)
        await house.until(a="unhealthy")
        assert house.routing.tree.held[worker.index] == 2, "its cache is as it was"
        api.change(uid, ready=True)
        await until(lambda: worker.spec.ready)
        house.probe()
        api.change(uid, terminating=True, ready=False)
        await house.until(a="draining")
        house.keep()
        assert house.worker("10.0.0.1") is worker, "it still answers"
        placement.release()
        house.keep()
        assert house.states == {}
        api.delete(uid)
        await house.lives()


async def test_a_deleted_pod_drains_though_nobody_said_that_it_would_end(api: KubeApi) -> None:
    uid = api.add("10.0.0.1")
    async with following(api) as house:
        api.delete(uid)
        await house.until(a="draining")


async def test_another_pod_at_the_same_address_is_another_worker(api: KubeApi) -> None:
    first = api.add("10.0.0.1")
    async with following(api) as house:
        house.probe()
        before = house.worker("10.0.0.1")
        placement = house.routing.place(PromptBlocks(array("Q", [1]), 1, BLOCK_TOKENS))
        api.delete(first)
        second = api.add("10.0.0.1", ready=False)
        await until(lambda: house.worker("10.0.0.1").spec.identity == second)
        assert before.state is State.GONE
        assert not house.routing.tree.held
        assert placement is not None
        placement.release()


async def test_a_lost_pod_with_the_address_of_a_new_one_is_not_asked(api: KubeApi) -> None:
    second = api.add("10.0.0.2")
    api.change(api.add("10.0.0.2"), ready=False)
    api.add("10.0.0.1")
    new = api.add("10.0.0.1")
    async with following(api) as house:
        assert house.worker("10.0.0.2").spec.identity == second, "the one that is ready"
        assert house.worker("10.0.0.1").spec.identity == new, "the newer one"
        # Two that want one port of a host: who has it keeps it, and what is known of its cache.
        worker = house.worker("10.0.0.2")
        api.change(second, ready=False)
        await until(lambda: not house.worker("10.0.0.2").spec.ready)
        api.change(second, ready=True)
        await until(lambda: house.worker("10.0.0.2").spec.ready)
        assert house.worker("10.0.0.2") is worker


async def test_a_pod_that_loses_its_label_goes_and_comes_back_with_it(api: KubeApi) -> None:
    uid = api.add("10.0.0.1")
    async with following(api) as house:
        worker = house.worker("10.0.0.1")
        api.change(uid, labels={"app": "other"})
        await house.until(a="draining")
        api.change(uid, labels={"app": "worker"})
        await house.until(a="starting")
        assert house.worker("10.0.0.1") is worker


async def test_a_label_or_an_annotation_says_which_models_a_pod_serves(api: KubeApi) -> None:
    api.add("10.0.0.1", labels={"app": "worker", "x/models": "small"})
    api.add("10.0.0.2", annotations={"x/models": "meta/large, meta/lora,,meta/large"})
    api.add("10.0.0.3")
    async with following(api, replace(PODS, model_label="x/models")) as house:
        models = {worker.url[-6]: worker.spec.models for worker in house.fleet.workers}
        assert models == {"1": ("small",), "2": ("meta/large", "meta/lora"), "3": None}


async def test_a_pod_may_come_to_serve_another_model(api: KubeApi) -> None:
    one, _ = (api.add(f"10.0.0.{number}", labels={"app": "worker", "m": f"m{number}"}) for number in (1, 2))
    async with following(api, replace(PODS, model_label="m")) as house:
        serving = house.fleet.catalogue.serving
        assert [worker.url for worker in serving("m1")] == ["http://10.0.0.1:8000"]
        api.change(one, labels={"app": "worker", "m": "m3"})
        await until(lambda: house.worker("10.0.0.1").spec.models == ("m3",))
        assert (serving("m3"), serving("m1")) == ([house.worker("10.0.0.1")], [])


# The API in order


async def test_a_watch_goes_on_where_the_last_one_ended(api: KubeApi) -> None:
    api.add("10.0.0.1")
    async with following(api) as house:
        await until(lambda: bool(api.watches))
        api.bookmark()
        api.add("10.0.0.2")
        api.bookmark()
        await house.until(a="starting", b="starting")
        version = str(api.version)
        api.end()
        await until(lambda: api.count("watch") == 2)
        await house.lives()
        assert house.pods.failures == 0
    queries = [asked.query for asked in api.asked]
    assert [query.get("resourceVersion") for query in queries] == [None, "101", version]
    assert all(query["allowWatchBookmarks"] == "true" and int(query["timeoutSeconds"]) > 40 for query in queries[1:])


async def test_the_api_ends_a_watch_when_its_time_is_over(api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "WATCH", 0.001)
    async with following(api) as house:
        await until(lambda: api.count("watch") == 2)
        await house.lives()
        assert (api.count("list"), house.pods.failures) == (1, 0)


async def test_what_changes_while_nobody_watches_is_told_later(api: KubeApi) -> None:
    one = api.add("10.0.0.1")
    async with following(api) as house:
        await until(lambda: bool(api.watches))
        api.end()
        api.delete(one)
        api.add("10.0.0.2")
        await house.until(a="draining", b="starting")
    assert api.count("list") == 1


async def test_a_long_list_comes_in_pages(api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "PAGE", 3)
    for number in range(8):
        api.add(f"10.0.0.{number + 1}")
    async with following(api) as house:
        assert len(house.states) == 8
    assert [bool(asked.query.get("continue")) for asked in api.asked if asked.kind == "list"] == [False, True, True]


async def test_there_is_another_list_now_and_then(api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery_module, "LIST_EVERY", 0)
    uid = api.add("10.0.0.1")
    async with following(api) as house:
        await until(lambda: bool(api.watches))
        del api.pods[uid]  # and no watch was told
        api.end()
        await house.until(a="draining")
        assert house.pods.failures == 0


async def test_too_many_pods_are_cut(api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "MAX_PODS", 3)
    monkeypatch.setattr(discovery_module, "MAX_PODS", 3)
    first = [api.add(f"10.0.0.{number}") for number in range(1, 5)]
    async with following(api) as house:
        await house.until(a="starting", b="starting", c="starting")
        api.add("10.0.0.5")
        api.delete(first[0])
        api.add("10.0.0.6")
        await house.until(a="draining", b="starting", c="starting", f="starting")


# The API out of order


async def test_a_version_that_is_too_old_means_another_list(api: KubeApi) -> None:
    one, _ = api.add("10.0.0.1"), api.add("10.0.0.2")
    async with following(api) as house:
        await until(lambda: bool(api.watches))
        api.end()
        api.delete(one)
        api.forget()
        await house.until(a="draining", b="starting")
        await house.lives()
        assert (api.count("list"), house.pods.failures) == (2, 0)


async def test_an_event_that_says_so_too(api: KubeApi, caplog: pytest.LogCaptureFixture) -> None:
    one, _ = api.add("10.0.0.1"), api.add("10.0.0.2")
    async with following(api) as house:
        await until(lambda: bool(api.watches))
        watch = api.watches.pop()  # which does not hear of this
        api.delete(one)
        api.watches.append(watch)
        api.fail(410)
        await house.until(a="draining", b="starting")
        await house.lives()
        assert (api.count("list"), house.pods.failures) == (2, 0), "it happens in each cluster"
    assert log(caplog) == []


async def test_a_list_whose_next_page_is_too_old_begins_anew(api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "PAGE", 1)
    for number in range(1, 4):
        api.add(f"10.0.0.{number}")
    api.faults["list"] = [None, refusing(410, "The provided continue parameter is too old")]
    async with following(api) as house:
        await house.until(a="starting", b="starting", c="starting")
        assert (api.count("list"), house.pods.failures) == (5, 0)


async def test_a_watch_that_goes_silent_is_begun_anew(api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "WATCH", 0.05)
    monkeypatch.setattr(api_module, "SLACK", 0.05)
    async with following(api) as house:
        await until(lambda: bool(api.watches))
        api.hush()
        api.add("10.0.0.1")
        await house.until(a="starting")
        assert api.count("list") == 1


async def test_a_host_that_vanishes_is_noticed(api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    connections = []
    monkeypatch.setattr(api_module, "notice_silence", lambda connection, **times: connections.append(connection))
    async with following(api):
        await until(lambda: bool(api.watches))
    assert len(connections) == 2
    assert None not in connections


async def test_half_a_line_says_nothing(api: KubeApi) -> None:
    api.add("10.0.0.1")
    async with following(api) as house:
        await until(lambda: bool(api.watches))
        api.drop()
        await house.lives()
        assert house.states == {"10.0.0.1": "starting"}
        assert (api.count("list"), house.pods.failures) == (1, 0)


async def test_an_event_may_come_in_pieces(api: KubeApi) -> None:
    async with following(api) as house:
        await until(lambda: bool(api.watches))
        watch = api.watches.pop()
        api.add("10.0.0.1")
        api.add("10.0.0.2")
        line = b"".join(event("ADDED", pod) for pod in api.pods.values())
        for start in range(0, len(line), 7):
            watch.pieces.put_nowait(line[start : start + 7])
        await house.until(a="starting", b="starting")
        assert house.pods.failures == 0


GARBAGE = {
    "no JSON": b"<html>\n",
    "no object": b"[]\n",
    "no event": b'{"type": "ADDED"}\n',
    "no pod": event("ADDED", {"metadata": {"resourceVersion": "7"}}),
    "no version": event("BOOKMARK", {"metadata": {}}),
    "an error": event("ERROR", {"code": 500, "message": "etcd is gone"}),
    "a long line": b"x" * 2000,
}


@pytest.mark.parametrize("what", GARBAGE)
async def test_what_cannot_be_read_is_said_once_and_means_another_list(
    api: KubeApi, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(api_module, "MAX_LINE", 1000)
    one = api.add("10.0.0.1")
    async with following(api) as house:
        for times in (1, 2):
            await until(lambda: bool(api.watches))
            watch = api.watches[0]
            api.say(GARBAGE[what])
            await until(lambda watch=watch: watch not in api.watches)  # type: ignore[misc]
            assert house.states == {"10.0.0.1": "starting"}
            await until(lambda times=times: house.pods.failures == times)  # type: ignore[misc]
        api.delete(one)
        await house.until(a="draining")
        await house.lives()
        assert api.count("list") == 3
    assert len([line for line in log(caplog) if "workers known so far stay" in line]) == 1
    assert len([line for line in log(caplog, logging.INFO) if "the API answers again" in line]) == 1


FAULTS: dict[str, tuple[Fault, str]] = {
    "403": (refusing(403, 'pods is forbidden: User "system:serviceaccount:ns:router" cannot list'), "403 Forbidden"),
    "401": (refusing(401, "Unauthorized"), "401 Unauthorized: the token"),
    "500": (refusing(500, "etcdserver: request timed out"), "it answered 500 etcdserver: request timed out"),
    "404": (refusing(404), "it answered 404"),
    "redirect": (refusing(302, headers="location: http://127.0.0.1:1/\r\n"), "it answered 302"),
    "no JSON": (answering(b"<html>"), "is not JSON"),
    "no object": (answering(b"7"), "is no JSON object"),
    "no list": (answering(b'{"items": {"a": 1}, "metadata": {"resourceVersion": "1"}}'), "what should be a pod"),
    "no version": (answering(b'{"items": [], "metadata": {}}'), "without a resourceVersion"),
    "no pod": (answering(b'{"items": [7], "metadata": {"resourceVersion": "1"}}'), "what should be a pod is none"),
    "too long": (answering(b" " * 200_001), "more than 200000 bytes"),
    "dropped": (dropping(), "disconnected"),
    "410": (refusing(410, "The provided continue parameter is too old"), "is too old"),
}


@pytest.mark.parametrize("what", FAULTS)
async def test_a_failed_list_is_said_once_and_keeps_who_is_known(
    api: KubeApi, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(api_module, "MAX_PAGE", 200_000)
    one = api.add("10.0.0.1")
    async with following(api) as house:
        await until(lambda: bool(api.watches))
        api.always["list"] = FAULTS[what][0]
        api.fail(410)
        await until(lambda: house.pods.failures > 4)
        assert house.states == {"10.0.0.1": "starting"}
        assert len(log(caplog)) == 1
        assert FAULTS[what][1] in log(caplog)[0]
        assert "\n" not in log(caplog)[0]
        api.delete(one)
        del api.always["list"]
        await house.until(a="draining")
        await house.lives()
    assert log(caplog, logging.INFO).count("pods of namespace ns: the API answers again") == 1


@pytest.mark.parametrize("what", ["403", "401", "500", "dropped"])
async def test_a_failed_watch_is_said_once_and_begun_where_it_was(
    api: KubeApi, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(api) as house:
        await until(lambda: bool(api.watches))
        api.always["watch"] = FAULTS[what][0]
        api.end()
        api.add("10.0.0.1")
        await until(lambda: house.pods.failures > 4)
        assert house.states == {}
        del api.always["watch"]
        await house.until(a="starting")
        assert api.count("list") == 1
    assert len([line for line in log(caplog) if FAULTS[what][1] in line]) == 1


async def test_a_watch_that_is_always_cut_after_its_head_is_said_once(
    api: KubeApi, caplog: pytest.LogCaptureFixture
) -> None:
    api.always["watch"] = dropping(begun=True)
    async with following(api) as house:
        await until(lambda: house.pods.failures > 4)
        assert len([line for line in log(caplog) if "broke off" in line]) == 1
        api.add("10.0.0.1")
        del api.always["watch"]
        await house.until(a="starting")


async def test_without_a_list_that_is_due_the_watch_goes_on(
    api: KubeApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(discovery_module, "LIST_EVERY", 0.0)
    one = api.add("10.0.0.1")
    async with following(api) as house:
        await until(lambda: bool(api.watches))
        lists = api.count("list")
        api.always["list"] = refusing(429, "too many requests")
        api.end()
        api.delete(one)
        api.add("10.0.0.2")
        await house.until(a="draining", b="starting")
        await until(lambda: api.count("list") > lists)
        assert house.pods.failures > 0
        assert "429" in log(caplog)[0]
        del api.always["list"]
        await house.lives()


async def test_who_may_not_list_pods_is_told_which_role_it_takes(
    api: KubeApi, caplog: pytest.LogCaptureFixture
) -> None:
    api.faults["list"] = [FAULTS["403"][0]]
    async with following(api) as house:
        assert house.why_empty.startswith("the pods of namespace ns are not known yet: 403 Forbidden: ")
        api.add("10.0.0.1")
        await house.until(a="starting")
        assert not house.why_empty
    (line,) = [line for line in log(caplog) if "403" in line]
    assert "needs a Role in namespace ns with the verbs list and watch on pods, and a RoleBinding" in line
    assert "system:serviceaccount:ns:router" in line


async def test_an_api_that_wants_to_be_left_alone_is(api: KubeApi) -> None:
    api.faults["list"] = [refusing(429, "too many requests", "retry-after: 3600\r\n")]
    async with following(api) as house:
        assert house.pods.failures == 1
        await asyncio.sleep(0.1)
        assert len(api.asked) == 1
    client = api_module.PodApi(Account(api.url, "ns", None), "app=worker")
    for header, seconds in (("3600", 60), ("7", 7), ("soon", 0), ("-1", 0)):
        api.faults["list"] = [refusing(429, headers=f"retry-after: {header}\r\n")]
        with pytest.raises(api_module.Failed, match="429") as caught:
            await client.list()
        assert caught.value.retry_after == seconds
    await client.close()


@pytest.mark.parametrize("kind", ["list", "watch"])
async def test_an_api_that_fails_at_once_is_asked_less_and_less_often(
    api: KubeApi, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery_module, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(discovery_module, "LONGEST_PAUSE", 60.0)
    api.always[kind] = answering(b"") if kind == "watch" else refusing(500)
    async with following(api):
        await asyncio.sleep(0.3)
        assert api.count(kind) < 8


async def test_an_api_that_hangs_is_given_up(api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "PATIENCE", 0.3)
    api.faults["list"] = [hanging(), hanging(after=b'{"items": [')]
    api.faults["watch"] = [hanging()]
    async with following(api) as house:
        await until(lambda: house.pods.failures >= 3)
        api.add("10.0.0.1")
        await house.until(a="starting")


async def test_the_start_does_not_wait_for_an_api_that_hangs(api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery_module, "FIRST_ROUND", 0.01)
    api.always["list"] = hanging()
    before = len(asyncio.all_tasks())
    async with following(api) as house:
        assert house.fleet.why_empty == "the pods of namespace ns are not known yet"
    await until(lambda: len(asyncio.all_tasks()) == before)


async def test_nobody_listens_there() -> None:
    house = House(KubeApi())
    house.pods = KubernetesWorkers(PODS, house.membership, house.fleet, Account("http://127.0.0.1:9", "ns", None))
    await house.pods.start()
    await house.pods.stop()
    assert house.pods.failures == 1
    assert "connection" in str(house.fleet.why_empty).lower()


# Nobody is there


async def test_a_selector_that_matches_nothing_is_complained_about(
    api: KubeApi, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(api) as house:
        assert house.why_empty == "no pod in namespace ns matches the selector app=worker"
        assert log(caplog) == [house.why_empty]
        uid = api.add(None)
        await until(lambda: house.why_empty.endswith("app=worker runs and has an address"))
        api.change(uid, ip="10.0.0.1", phase="Running")
        await house.until(a="starting")
        assert not house.why_empty
        api.delete(uid)
        await until(lambda: bool(house.why_empty))


async def test_requests_hear_that_nobody_is_there_and_why(api: KubeApi) -> None:
    pods = replace(PODS, api=api.url, namespace="ns")
    async with running_router(config=replace(CONFIG, kubernetes=pods)) as router, httpx.AsyncClient() as client:
        answer = await client.post(f"{router.url}/v1/completions", json={"model": "m", "prompt": "hello"})
        assert answer.status_code == 503
        assert "no pod in namespace ns matches the selector app=worker" in answer.json()["error"]["message"]


# Whatever happens


steps = st.one_of(
    st.tuples(st.sampled_from(["add", "starting", "ready", "unready", "end", "delete", "leave"]), st.integers(1, 4)),
    st.tuples(
        st.sampled_from(["pause", "close", "drop", "gone", "forget", "garbage", "hush", "bookmark"]), st.just(0)
    ),
    st.tuples(st.sampled_from(["list", "watch"]), st.sampled_from([401, 403, 410, 429, 500])),
)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@settings(max_examples=60)
@given(st.lists(steps, max_size=25))
def test_after_any_sequence_the_fleet_is_the_pods_that_there_are(
    anyio_backend: str, sequence: list[tuple[str, int]]
) -> None:
    del anyio_backend
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api_module, "WATCH", 0.05)
        patch.setattr(api_module, "SLACK", 0.02)
        asyncio.run(_play(sequence))


async def _play(sequence: list[tuple[str, int]]) -> None:
    async with kube_api() as api, following(api) as house:
        for what, which in sequence:
            await _step(api, what, which)
        pods = {
            pod["status"]["podIP"]: (uid, _ready(pod))
            for uid, pod in api.pods.items()
            if "deletionTimestamp" not in pod["metadata"]
            and pod["metadata"]["labels"] == {"app": "worker"}
            and "podIP" in pod["status"]
        }

        def found() -> dict[str, tuple[str | None, bool]]:
            house.keep()
            return {
                worker.url[7:-5]: (worker.spec.identity, worker.spec.ready)
                for worker in house.fleet.workers
                if worker.state is not State.DRAINING
            }

        try:
            await until(lambda: found() == pods)
        except TimeoutError:
            raise AssertionError(f"{found()} is not {pods}") from None


async def _step(api: KubeApi, what: str, which: int) -> None:
    """`which`: of the pods with that address, the newest."""
    ip = f"10.0.0.{which}"
    mine = [uid for uid, pod in api.pods.items() if pod["status"].get("podIP") == ip]
    match what:
        case "add" | "starting":
            for uid in mine:  # addresses are given to one pod at a time
                api.delete(uid)
            api.add(ip, ready=what == "add")
        case "ready" | "unready" if mine:
            api.change(mine[-1], ready=what == "ready")
        case "end" if mine:
            api.change(mine[-1], terminating=True)
        case "delete" if mine:
            api.delete(mine[-1])
        case "leave" if mine:
            api.change(mine[-1], labels={"app": "other"})
        case "pause":
            await asyncio.sleep(0.005)
        case "close":
            api.end()
        case "drop":
            api.drop()
        case "gone":
            api.fail(410)
        case "forget":
            api.forget()
        case "garbage":
            api.say(b"{\n")
        case "hush":
            api.hush()
        case "bookmark":
            api.bookmark()
        case "list" | "watch":
            api.faults[what].append(refusing(which))


def _ready(pod: dict[str, object]) -> bool:
    return {"type": "Ready", "status": "True"} in pod["status"]["conditions"]  # type: ignore[index]
