"""Whom the API takes the router for: tokens and authorities that are renewed, and what a cluster lays into a pod."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.kube_api import Authority, KubeApi, kube_api
from support.router import until
from warmroute_router.config import KubernetesConfig
from warmroute_router.discovery.kubernetes import account as account_module
from warmroute_router.discovery.kubernetes import discovery as discovery_module
from warmroute_router.discovery.kubernetes.account import Account, find_account
from warmroute_router.discovery.kubernetes.api import Failed, PodApi
from warmroute_router.discovery.kubernetes.discovery import KubernetesWorkers
from warmroute_router.discovery.membership import Membership
from warmroute_router.fleet import Fleet
from warmroute_router.policies import POLICIES
from warmroute_router.routing import Routing
from warmroute_router.tree import PrefixTree

pytestmark = pytest.mark.anyio

PODS = KubernetesConfig(selector="app=worker", port=8000)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "cluster")


@pytest.fixture
def folder(tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As a pod has it."""
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "token").write_text("first\n")
    (folder / "namespace").write_text("ns")
    (folder / "ca.crt").write_bytes(authority.cert.read_bytes())
    monkeypatch.setattr(account_module, "FOLDER", folder)
    return folder


@pytest.fixture
async def api(authority: Authority, folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeApi]:
    del folder
    async with kube_api("first", tls=authority.context) as running:
        host, port = running.url.removeprefix("https://").split(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        yield running


async def test_a_pod_finds_its_cluster(api: KubeApi) -> None:
    api.add("10.0.0.1")
    account = find_account(PODS)
    assert (account.api, account.namespace) == (api.url, "ns")
    client = PodApi(account, "app=worker")
    assert len((await client.list()).items) == 1
    await client.close()
    assert api.asked[0].headers["authorization"] == "Bearer first"


async def test_a_token_that_is_renewed_is_read_again(
    api: KubeApi, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(discovery_module, "FIRST_PAUSE", 0.002)
    monkeypatch.setattr(discovery_module, "LONGEST_PAUSE", 0.02)
    fleet = Fleet()
    routing = Routing(fleet, PrefixTree(1000), "round_robin", POLICIES["round_robin"]())
    pods = KubernetesWorkers(PODS, Membership(routing, None), fleet)
    await pods.start()
    await until(lambda: bool(api.watches))
    api.token = "second"
    api.end()
    await until(lambda: pods.failures > 3)
    (folder / "token").unlink()
    seen = pods.failures
    await until(lambda: pods.failures > seen)
    (folder / "token").write_text("second")
    api.add("10.0.0.1")
    await until(lambda: len(fleet.workers) == 1)
    await pods.stop()
    lines = [record.getMessage() for record in caplog.records if "stay" in record.getMessage()]
    assert len(lines) == 2
    assert "401 Unauthorized: the token of the router's service account is not accepted" in lines[0]
    assert f"{folder}/token cannot be read" in lines[1]
    assert "first" not in caplog.text
    assert "second" not in caplog.text


async def test_an_authority_that_is_renewed_is_believed(authority: Authority, folder: Path, tmp_path: Path) -> None:
    renewed = Authority(tmp_path, "renewed")
    async with kube_api(tls=renewed.context) as api:
        client = PodApi(Account(api.url, "ns", folder), "app=worker")
        with pytest.raises(Failed, match="CERTIFICATE_VERIFY_FAILED"):
            await client.list()
        (folder / "ca.crt").write_bytes(authority.cert.read_bytes() + renewed.cert.read_bytes())
        assert (await client.list()).items == []
        await client.close()


async def test_the_environments_proxy_is_not_asked(api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    client = PodApi(find_account(PODS), "app=worker")
    await client.list()
    await client.close()
    assert len(api.asked) == 1


def test_the_address_of_an_api_may_be_of_ipv6(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del folder
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.delenv("KUBERNETES_SERVICE_PORT", raising=False)
    account = find_account(KubernetesConfig(selector="a=b", port=1, namespace="other"))
    assert (account.api, account.namespace) == ("https://[fd00::1]:443", "other")


def test_an_api_that_is_named_gets_no_token(folder: Path) -> None:
    del folder
    config = KubernetesConfig(selector="a=b", port=1, namespace="ns", api="http://127.0.0.1:8001")
    assert find_account(config).headers() == {}


@pytest.mark.parametrize(
    ("missing", "complaint"),
    [
        ("token", "token cannot be read: No such file or directory"),
        ("namespace", "namespace cannot be read: No such file or directory"),
        ("ca.crt", r"ca\.crt cannot be read: No such file or directory"),
    ],
)
def test_what_is_missing_in_the_account_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, missing: str, complaint: str
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    (folder / missing).unlink()
    with pytest.raises(OSError, match=complaint):
        find_account(PODS)


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines", b"\xff"])
def test_what_is_no_token_is_not_shown(folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    (folder / "token").write_bytes(content)
    with pytest.raises(OSError, match=r"token does not hold what it should$"):
        find_account(PODS)


def test_outside_of_a_cluster_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ValueError, match=r"this is no pod of a cluster.*`kubectl proxy`.*--service-discovery-api"):
        find_account(PODS)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setattr(account_module, "FOLDER", tmp_path / "none")
    with pytest.raises(OSError, match="automountServiceAccountToken: true"):
        find_account(PODS)
