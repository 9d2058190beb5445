"""The chart and the programs that it starts: what a pod would be told, told to the real parsers and a real router."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import orjson
import pytest
from support.chart import CHART, VALUES_FILES, Resource, container, of_kind, render, the
from support.mock import mock_worker
from support.served import PATIENCE, Served, serving
from warmroute_loadtest.mock_worker.config import MockConfig
from warmroute_router.config import GossipConfig, KubernetesConfig, RouterConfig, normalize_worker_url
from warmroute_router.flags import parse_config
from warmroute_worker.cli import parse_config as parse_worker_config

GRID = [pytest.param(file, id=file.stem.removesuffix("-values")) for file in VALUES_FILES]
KEY = "a-secret"


def file_of(name: str) -> Path:
    return next(file for file in VALUES_FILES if file.name == f"{name}-values.yaml")


def arguments(resources: list[Resource], folder: Path) -> list[str]:
    """Those of the router, with every path below `folder`, where all that is mounted is made."""
    template = the(resources, "Deployment")["spec"]["template"]
    router = container(template)
    volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    for mount in router["volumeMounts"]:
        place = folder / mount["mountPath"].lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        volume = volumes[mount["name"]]
        if "configMap" in volume:
            for name, text in the(resources, "ConfigMap", volume["configMap"]["name"])["data"].items():
                (place / name).write_text(text)
        for item in volume.get("secret", {}).get("items", []):
            (place / item["path"]).write_text(f"{KEY}\n")
        if "secret" in volume and "items" not in volume["secret"]:
            for name in ("tls.crt", "tls.key", "ca.crt"):  # the keys that such Secrets have
                (place / name).write_text("PEM")
    command, *args = router["args"]
    assert (router["command"], command) == (["warmroute"], "serve")
    return [f"{folder}{argument}" if argument.startswith("/") else argument for argument in args]


def parsed(resources: list[Resource], folder: Path, monkeypatch: pytest.MonkeyPatch) -> RouterConfig:
    for variable in container(the(resources, "Deployment")["spec"]["template"])["env"]:
        monkeypatch.setenv(variable["name"], variable.get("value", KEY))
    return parse_config(arguments(resources, folder))


@pytest.mark.parametrize("file", GRID)
def test_the_router_takes_its_flags(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resources = render(None, file)
    config = parsed(resources, tmp_path, monkeypatch)
    assert (config.port, config.prometheus_port, config.admin.port) == (30000, 29000, 30002)
    assert config.admin.host == "127.0.0.1"
    assert config.hosts == (config.prometheus_host,) == (("::",) if file.name.startswith("secrets") else ("0.0.0.0",))
    assert config.state_file is not None
    several = bool(of_kind(resources, "PodDisruptionBudget"))
    assert (config.gossip is not None) == several
    workers = [config.workers_file, config.worker_dns, config.kubernetes]
    assert any(workers), "somewhere there are workers"


def test_static_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = parsed(render(None, file_of("static")), tmp_path, monkeypatch)
    assert config.workers_file is not None
    assert orjson.loads(config.workers_file.read_bytes()) == [
        "http://gpu1.example.com:8000",
        "http://gpu2.example.com:8000",
    ]
    assert config.worker_dns == ("http://vllm.inference.svc:8000",)
    assert config.max_payload_size == 128 * 1024 * 1024
    assert config.kubernetes is None


def test_discovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = parsed(render(None, file_of("discovery")), tmp_path, monkeypatch)
    assert config.kubernetes == KubernetesConfig(
        selector="app=vllm,example.com/tier=inference",
        port=8000,
        namespace="inference",
        model_label="example.com/models",
    )


def test_what_looks_wrong_and_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = {"app": "", "example.com/Tier_1": "a.B-c", "9": "1"}
    discovery = {"enabled": True, "selector": labels, "namespace": "1-a", "port": 1, "modelLabel": "models"}
    urls = ["gpu:65535", "gpu:65534", "http://gpu_1.x/a", "http://gpu_1.x/A", "https://gpu_1.x/a", "[::1]:1", "[::1]"]
    values = {"discovery": discovery, "workerUrls": urls, "workerDns": urls, "workers": {"p": {"model": "m"}}}
    config = parsed(render(values), tmp_path, monkeypatch)
    assert config.kubernetes is not None
    assert config.kubernetes.selector == "9=1,app=,example.com/Tier_1=a.B-c"
    assert config.worker_dns[:-1] == tuple(map(normalize_worker_url, urls))


def test_the_workers_of_the_chart_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the API, by labels that each of them has; without it, by the names of their Services."""
    resources = render(None, file_of("vllm"))
    kubernetes = parsed(resources, tmp_path, monkeypatch).kubernetes
    assert kubernetes is not None
    labels = dict(label.split("=") for label in kubernetes.selector.split(","))
    pools = of_kind(resources, "StatefulSet")
    assert len(pools) == 2
    for pool in pools:
        template = pool["spec"]["template"]
        assert labels.items() <= template["metadata"]["labels"].items()
        assert kubernetes.port == container(template)["ports"][0]["containerPort"]
    assert kubernetes.namespace == pools[0]["metadata"]["namespace"]

    by_name = parsed(render({"discovery": {"enabled": False}}, file_of("vllm")), tmp_path, monkeypatch)
    assert by_name.kubernetes is None
    urls = {f"http://{pool['spec']['serviceName']}.llm.svc:8000" for pool in pools}
    assert set(by_name.worker_dns) == urls
    others = {"discovery": {"enabled": True, "selector": {"app": "sglang"}}}
    both = parsed(render(others, file_of("vllm")), tmp_path, monkeypatch)
    assert both.kubernetes is not None
    assert both.kubernetes.selector == "app=sglang"
    assert set(both.worker_dns) == urls
    headless = {each["metadata"]["name"]: each for each in of_kind(resources, "Service")}
    for pool in pools:
        assert headless[pool["spec"]["serviceName"]]["spec"]["clusterIP"] == "None"


def test_keys_and_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = parsed(render(None, file_of("secrets")), tmp_path, monkeypatch)
    assert config.api_keys.file is not None
    assert config.api_keys.file.read_text() == f"{KEY}\n"
    assert config.admin.keys.file not in (None, config.api_keys.file)
    assert config.worker_api_key == KEY
    assert config.tls is not None
    assert config.worker_tls.ca
    assert config.worker_tls.cert is not None
    assert config.gossip == GossipConfig(
        host="::", port=30001, peers=(), dns=("release-warmroute-gossip.llm.svc", 30001), key=KEY
    )


def test_further_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = parsed(render(None, file_of("replicas")), tmp_path, monkeypatch)
    assert config.policy == "session"
    assert (config.admission.max_per_worker, config.admission.queue_size) == (64, 1000)
    assert (config.shutdown_delay, config.shutdown_grace) == (30, 600)


def test_the_own_engine_takes_its_flags() -> None:
    pools = [pool for file in VALUES_FILES for pool in of_kind(render(None, file), "StatefulSet")]
    workers = [container(pool["spec"]["template"]) for pool in pools]
    own = [worker["args"] for worker in workers if worker["command"] == ["warmroute"]]
    assert own
    for command, *args in own:
        assert command == "worker"
        config = parse_worker_config(args)
        assert (config.host, config.port, config.model) == ("0.0.0.0", 8000, "smollm2-135m")


def test_vllm_is_told_to_report_what_was_cached() -> None:
    for pool in of_kind(render(None, file_of("vllm")), "StatefulSet"):
        worker = container(pool["spec"]["template"])
        assert worker["command"] == ["vllm", "serve"]
        assert worker["args"][0].startswith("meta-llama/")
        assert "--enable-prompt-tokens-details" in worker["args"]


@asynccontextmanager
async def routing(folder: Path, values: Resource) -> AsyncIterator[tuple[Served, Resource]]:
    """A real router with the flags that a pod would have, on ports that are free, and its container."""
    resources = render(values)
    args = arguments(resources, folder)
    for flag in ("--port", "--prometheus-port", "--admin-port"):
        args[args.index(flag) + 1] = "0"
    args[args.index("--host") + 1] = "127.0.0.1"
    async with serving(*args) as served:
        yield served, container(the(resources, "Deployment")["spec"]["template"])


async def helm_test(*arguments: str, keys: str = "") -> tuple[int, str]:
    """What the pod of `helm test` runs: its exit code, and what it says."""
    pod = the(render(), "Pod")
    (_, script, *_) = container(pod)["args"]
    assert script.strip() == (CHART / "files/test_connection.py").read_text().strip()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={"API_KEYS": keys},
    )
    async with asyncio.timeout(PATIENCE):
        said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


@pytest.mark.anyio
async def test_a_router_without_workers_is_alive_but_not_ready(tmp_path: Path) -> None:
    async with routing(tmp_path, {"apiKeys": {"existingSecret": "keys"}}) as (served, router):
        async with httpx.AsyncClient(base_url=served.url) as client:
            # As the kubelet asks: without a key.
            statuses = {
                kind: (await client.get(router[kind]["httpGet"]["path"])).status_code
                for kind in ("startupProbe", "livenessProbe", "readinessProbe")
            }
        assert statuses == {"startupProbe": 200, "livenessProbe": 200, "readinessProbe": 503}
        code, said = await helm_test(served.url, "no-workers")
        assert (code, said) == (0, "a router serves; it has not been told of any workers\n")
        code, said = await helm_test(served.url, "workers")
        assert code == 1
        assert "no worker that is ready: 503" in said


@pytest.mark.anyio
async def test_the_test_of_a_release_names_the_models(tmp_path: Path) -> None:
    async with mock_worker(MockConfig(model="llama")) as worker:
        values = {"workerUrls": [str(worker.base_url)], "apiKeys": {"existingSecret": "keys"}}
        async with routing(tmp_path, values) as (served, _):
            for keys in (f"{KEY}\nother", f"# team chat\n\n  # only they\n {KEY} \r\nother"):
                assert await helm_test(served.url, "workers", keys=keys) == (0, "a router serves llama\n")
            code, said = await helm_test(served.url, "workers")
            assert code == 1
            assert "/v1/models: 401" in said
    code, said = await helm_test(served.url, "workers")
    assert code == 1
    assert "refused" in said


@pytest.mark.anyio
async def test_a_new_list_of_workers_arrives_without_a_restart(tmp_path: Path) -> None:
    """As an upgrade changes the ConfigMap."""
    async with mock_worker(MockConfig(model="llama")) as worker:
        before = {"workerUrls": ["http://127.0.0.1:9"]}
        after = {"workerUrls": [normalize_worker_url(str(worker.base_url))]}
        async with routing(tmp_path, before) as (served, _), httpx.AsyncClient(base_url=served.url) as client:
            assert (await client.get("/health/ready")).status_code == 503
            arguments(render(after), tmp_path)
            async with asyncio.timeout(PATIENCE):
                while (await client.get("/health/ready")).status_code != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
