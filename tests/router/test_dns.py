"""Workers from names: lookups that answer, change, fail, lie, hang, or bring too much."""

import asyncio
import logging
from collections.abc import Sequence

import pytest
from support.router import until
from warmroute_router.config import WorkerSpec
from warmroute_router.discovery import dns as dns_module
from warmroute_router.discovery.dns import DnsWorkers
from warmroute_router.discovery.membership import Membership

pytestmark = pytest.mark.anyio


class Told(Membership):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.named: dict[str, list[WorkerSpec]] = {}
        self.times = 0

    def apply(self, source: str, specs: Sequence[WorkerSpec]) -> None:
        self.named[source] = list(specs)
        self.times += 1

    @property
    def urls(self) -> list[str]:
        return [spec.url for specs in self.named.values() for spec in specs]


class Resolver:
    """Answers as it is told to."""

    def __init__(self, *answer: str) -> None:
        self.answer: list[str] | Exception = list(answer)
        self.asked: list[str] = []

    async def __call__(self, name: str) -> list[str]:
        self.asked.append(name)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def asked_again(self) -> None:
        """Until a lookup that began after now has ended."""
        seen = len(self.asked)
        await until(lambda: len(self.asked) > seen + 1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns_module, "INTERVAL", 0.002)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def test_each_address_of_a_name_is_a_worker() -> None:
    told, resolver = Told(), Resolver("10.0.0.2", "10.0.0.1", "10.0.0.1")
    workers = DnsWorkers(("https://Workers.svc:8000/v".lower(),), told, resolver)
    await workers.start()
    await workers.stop()
    assert told.named["dns:https://workers.svc:8000/v"] == [
        WorkerSpec("https://10.0.0.1:8000/v", server_name="workers.svc"),
        WorkerSpec("https://10.0.0.2:8000/v", server_name="workers.svc"),
    ]
    assert resolver.asked[0] == "workers.svc"


@pytest.mark.parametrize(
    ("addresses", "urls"),
    [
        (["fd00::2", "fd00::1"], ["http://[fd00::1]", "http://[fd00::2]"]),
        (["fd00::1", "10.0.0.1", "fd00::2", "10.0.0.2"], ["http://10.0.0.1", "http://10.0.0.2"]),
    ],
)
async def test_a_worker_with_addresses_of_both_families_is_one_worker(addresses: list[str], urls: list[str]) -> None:
    told = Told()
    workers = DnsWorkers(("http://workers.svc",), told, Resolver(*addresses))
    await workers.start()
    await workers.stop()
    assert told.urls == urls


@pytest.mark.parametrize("url", ["http://10.0.0.1:8000", "http://[::1]:8000"])
async def test_an_address_is_itself_and_not_looked_up(url: str) -> None:
    told, resolver = Told(), Resolver("10.9.9.9")
    workers = DnsWorkers((url,), told, resolver)
    await workers.start()
    await workers.stop()
    assert told.named == {f"dns:{url}": [WorkerSpec(url)]}
    assert not resolver.asked


async def test_a_name_is_looked_up_again_and_again() -> None:
    told, resolver = Told(), Resolver("10.0.0.1", "10.0.0.2")
    workers = DnsWorkers(("http://workers",), told, resolver)
    await workers.start()
    resolver.answer = ["10.0.0.2", "10.0.0.3"]
    await resolver.asked_again()
    await workers.stop()
    assert told.urls == ["http://10.0.0.2", "http://10.0.0.3"]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (OSError(-2, "Name or service not known"), "Name or service not known"),
        (UnicodeError("label too long"), "label too long"),
        ([], "no addresses"),
    ],
)
async def test_a_failure_keeps_those_that_are_known_and_says_so_once(
    answer: list[str] | Exception, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    told, resolver = Told(), Resolver("10.0.0.1")
    workers = DnsWorkers(("http://workers",), told, resolver)
    await workers.start()
    resolver.answer = answer
    for _ in range(3):
        await resolver.asked_again()
    assert told.urls == ["http://10.0.0.1"]
    assert len(warnings(caplog)) == 1
    assert says in warnings(caplog)[0]
    resolver.answer = ["10.0.0.2"]
    await resolver.asked_again()
    assert told.urls == ["http://10.0.0.2"]
    resolver.answer = answer
    await resolver.asked_again()
    await workers.stop()
    assert len(warnings(caplog)) == 2, "after it went well it is news again"


async def test_too_many_addresses_are_cut_to_the_same_ones(caplog: pytest.LogCaptureFixture) -> None:
    addresses = [f"10.0.{number // 250}.{number % 250}" for number in range(1100)]
    told, resolver = Told(), Resolver(*addresses)
    workers = DnsWorkers(("http://workers",), told, resolver)
    await workers.start()
    first = told.urls
    resolver.answer = addresses[::-1]
    await resolver.asked_again()
    await workers.stop()
    assert len(first) == 1024
    assert told.urls == first
    assert len(warnings(caplog)) == 1


async def test_the_start_does_not_wait_for_a_name_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns_module, "FIRST_ROUND", 0.01)
    answer = asyncio.Event()

    async def resolve(name: str) -> list[str]:
        if name == "slow":
            await answer.wait()
        return ["10.0.0.1"] if name == "slow" else ["10.0.0.2"]

    told = Told()
    workers = DnsWorkers(("http://slow", "http://quick"), told, resolve)
    await workers.start()
    assert told.urls == ["http://10.0.0.2"]
    answer.set()
    await until(lambda: "http://10.0.0.1" in told.urls)
    await workers.stop()


async def test_a_lookup_that_hangs_does_not_keep_the_router_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns_module, "FIRST_ROUND", 0.01)

    async def resolve(name: str) -> list[str]:
        await asyncio.Event().wait()
        return []

    before = len(asyncio.all_tasks())
    workers = DnsWorkers(("http://slow",), Told(), resolve)
    await workers.start()
    await workers.stop()
    assert len(asyncio.all_tasks()) == before


async def test_the_systems_resolver_knows_localhost() -> None:
    told = Told()
    workers = DnsWorkers(("http://localhost:8000",), told)
    await workers.start()
    await workers.stop()
    assert told.urls
    assert set(told.urls) <= {"http://127.0.0.1:8000", "http://[::1]:8000"}
    assert {spec.server_name for specs in told.named.values() for spec in specs} == {"localhost"}


async def test_the_systems_resolver_may_know_nothing_of_a_name(caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    workers = DnsWorkers(("http://nobody.invalid", f"http://{'x' * 64}.invalid"), told)
    await workers.start()
    await workers.stop()
    assert told.urls == []
    assert {message.split(":")[1] for message in warnings(caplog)} >= {"//" + "x" * 64 + ".invalid"}
