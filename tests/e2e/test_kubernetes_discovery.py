"""A real router whose workers are pods that come, flap, end and are deleted, while clients ask all the time."""

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from support.kube_api import Authority, KubeApi, kube_api, refusing
from support.router import until
from support.served import Served, command, serving
from warmroute_loadtest.ports import free_port
from warmroute_loadtest.processes import Processes, processes

pytestmark = pytest.mark.anyio

CLIENTS = 6
PATIENCE = 60.0
"""Seconds; only matters in failure."""
IN_A_CLUSTER = """
import sys
from pathlib import Path
from warmroute_router.discovery.kubernetes import account
from warmroute_router.serve import main
account.FOLDER = Path(sys.argv.pop(1))
sys.exit(main())
"""


class Traffic:
    """Clients that ask one question after the other, half of them for streams."""

    def __init__(self, url: str, client: httpx.AsyncClient) -> None:
        self.answered: Counter[str] = Counter()
        """By the worker's address."""
        self._url = f"{url}/v1/chat/completions"
        self._client = client
        self._stopping = False

    @asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(self._ask(number))
            try:
                yield
            finally:
                self._stopping = True

    async def served_by(self, ip: str) -> None:
        seen = self.answered[ip]
        await until(lambda: self.answered[ip] > seen, PATIENCE)

    async def _ask(self, number: int) -> None:
        turn = 0
        while not self._stopping:
            turn += 1
            body = {
                "model": "mock",
                "messages": [{"role": "user", "content": f"Client {number} asks for the {turn}th time."}],
                "stream": number % 2 == 0,
            }
            answer = await self._client.post(self._url, json=body)
            assert answer.status_code == 200, answer.text
            assert answer.text.rstrip().endswith("data: [DONE]" if body["stream"] else "}")
            self.answered[answer.headers["x-warmroute-worker"].split("//")[1].split(":")[0]] += 1


async def known(served: Served) -> dict[str, str]:
    """State by address. Each question has a connection of its own, so that all processes are asked."""
    async with httpx.AsyncClient(timeout=PATIENCE, verify=False) as client:  # it reads no certificates
        workers = (await client.get(f"{served.url}/workers")).json()["workers"]
    return {worker["url"].split("//")[1].split(":")[0]: worker["state"] for worker in workers}


async def all_know(served: Served, ip: str, state: str | None) -> None:
    """Whichever process is asked, ten times in a row."""

    in_a_row = 0
    async with asyncio.timeout(PATIENCE):
        while in_a_row < 10:
            in_a_row = in_a_row + 1 if (await known(served)).get(ip) == state else 0


async def story(served: Served, api: KubeApi, children: Processes, port: int) -> None:
    def engine(ip: str) -> "subprocess.Popen[str]":
        process = children.spawn(
            "warmroute_loadtest.mock_worker", "--host", ip, "--port", str(port), "--tpot", "0.005"
        )
        children.announcement(process)
        return process

    engines = {ip: await asyncio.to_thread(engine, ip) for ip in ("127.0.0.2", "127.0.0.3", "127.0.0.4")}
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        async with asyncio.timeout(PATIENCE):
            nobody = await client.post(f"{served.url}/v1/completions", json={"model": "mock", "prompt": "hello"})
            while "no pod in namespace ns matches the selector app=worker" not in nobody.text:  # not listed yet
                nobody = await client.post(f"{served.url}/v1/completions", json={"model": "mock", "prompt": "hello"})
        assert nobody.status_code == 503
        first = api.add("127.0.0.2", ready=False)
        await all_know(served, "127.0.0.2", "starting")
        api.change(first, ready=True)
        await all_know(served, "127.0.0.2", "ready")
        traffic = Traffic(served.url, client)
        async with traffic.flowing():
            second = api.add("127.0.0.3")
            await traffic.served_by("127.0.0.3")
            api.change(second, ready=False)
            await all_know(served, "127.0.0.3", "unhealthy")
            api.drop()
            api.change(second, ready=True)
            await traffic.served_by("127.0.0.3")
            await all_know(served, "127.0.0.3", "ready")
            # Ends as pods do: told to, drained, gone.
            api.change(first, terminating=True, ready=False)
            await all_know(served, "127.0.0.2", None)
            await asyncio.to_thread(children.stop, [engines["127.0.0.2"]])
            api.faults["list"] = [refusing(403), refusing(500)]
            api.fail(410)
            api.delete(first)
            third = api.add("127.0.0.4")
            await traffic.served_by("127.0.0.4")
            await all_know(served, "127.0.0.4", "ready")
            # Deleted without a word.
            api.delete(second)
            await all_know(served, "127.0.0.3", None)
            await asyncio.to_thread(children.stop, [engines["127.0.0.3"]])
            # Addresses are used again.
            await asyncio.to_thread(engine, "127.0.0.2")
            api.forget()
            again = api.add("127.0.0.2")
            await traffic.served_by("127.0.0.2")
            await all_know(served, "127.0.0.2", "ready")
        assert min(traffic.answered[ip] for ip in engines) > 0
        assert set(api.pods) == {third, again}
        assert await known(served) == {"127.0.0.2": "ready", "127.0.0.4": "ready"}


@pytest.mark.parametrize("number", [1, 2])
async def test_no_request_is_lost_while_pods_come_and_go(number: int) -> None:
    async with kube_api() as api:
        port = free_port()
        flags = ("--service-discovery", "--selector", "app=worker", "--service-discovery-port", str(port))
        where = ("--service-discovery-api", api.url, "--service-discovery-namespace", "ns")
        with processes() as children:
            async with serving(*flags, *where, "--processes", str(number)) as served:
                await story(served, api, children, port)


async def test_nor_in_a_pod_of_the_cluster_that_it_asks(tmp_path: Path) -> None:
    """With a token and over TLS."""
    authority, folder = Authority(tmp_path, "cluster"), tmp_path / "account"
    folder.mkdir()
    for name, content in (("token", "secret\n"), ("namespace", "ns"), ("ca.crt", authority.cert.read_text())):
        (folder / name).write_text(content)
    async with kube_api("secret", tls=authority.context) as api:
        port = free_port()
        flags = ("--service-discovery", "--selector", "app=worker", "--service-discovery-port", str(port))
        env = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": api.url.rpartition(":")[2]}
        form = [sys.executable, "-c", IN_A_CLUSTER, str(folder)]
        with processes() as children:
            async with serving(*flags, form=form, env=env) as served:
                await story(served, api, children, port)
        assert {asked.headers.get("authorization") for asked in api.asked} == {"Bearer secret"}


def test_outside_of_a_cluster_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    code, out, err = command(
        "--port", "0", "--prometheus-port", "0", "--service-discovery", "--selector", "app=worker"
    )
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("warmroute serve: --service-discovery: this is no pod of a cluster")
