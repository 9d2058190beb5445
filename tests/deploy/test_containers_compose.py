"""compose.yaml against the specification, the commands' own flags, and Prometheus' own checks."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import compose_spec
import pytest
import yaml
from support.containerfile import REPOSITORY, read_stages
from warmroute_router.config import RouterConfig
from warmroute_router.flags import parse_config as router_config
from warmroute_worker.cli import parse_config as worker_config
from warmroute_worker.config import WorkerConfig

OURS = ("router", "worker")
THEIRS = ("prometheus", "grafana")


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """Raises ValueError on what the specification does not have."""
    compose = compose_spec.PyOptions(apply_merge=True).from_yaml((REPOSITORY / "compose.yaml").read_text())
    compose.validate()
    found: dict[str, Any] = compose.to_dict()["services"]
    assert set(found) == {*OURS, *THEIRS}
    return found


@pytest.fixture
def router(services: dict[str, Any]) -> RouterConfig:
    command, *flags = services["router"]["command"]
    assert command == "serve"
    return router_config(flags)


@pytest.fixture
def worker(services: dict[str, Any]) -> WorkerConfig:
    command, *flags = services["worker"]["command"]
    assert command == "worker"
    return worker_config(flags)


def mounts(service: dict[str, Any]) -> dict[str, Path]:
    """What of the repository is where in the container."""
    split = (volume.split(":") for volume in service["volumes"] if volume.startswith("./"))
    return {target: REPOSITORY / source for source, target, _ in split}


def outside(service: dict[str, Any], path: str) -> Path:
    """The file of the repository that the container sees at a path."""
    for target, source in mounts(service).items():
        if Path(path).is_relative_to(target):
            return source / Path(path).relative_to(target)
    raise AssertionError(f"nothing is mounted at {path}")


def read(file: Path) -> Any:
    return yaml.safe_load(file.read_text())


def test_ours_are_built_here(services: dict[str, Any]) -> None:
    for name in OURS:
        build = services[name]["build"]
        assert (REPOSITORY / build["context"] / build["dockerfile"]).name == f"Containerfile.{name}"


def test_theirs_are_pinned(services: dict[str, Any]) -> None:
    for name in THEIRS:
        assert re.fullmatch(rf"docker\.io/[a-z]+/{name}:v?\d+\.\d+\.\d+", services[name]["image"])


def test_ours_have_no_rights(services: dict[str, Any]) -> None:
    for name in OURS:
        service = services[name]
        assert (service["read_only"], service["tmpfs"], service["cap_drop"]) == (True, ["/tmp"], ["ALL"])
        assert "user" not in service, "it is the image's"
    for service in services.values():
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not service.keys() & {"privileged", "cap_add", "network_mode", "pid"}


def test_only_this_machine_reaches_it(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert len(ports) == 3
    assert all(re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port) for port in ports)


def test_what_is_mounted_is_there_and_stays_as_it_is(services: dict[str, Any]) -> None:
    for name in THEIRS:
        assert all(source.exists() for source in mounts(services[name]).values())
        assert all(volume.endswith(":ro,z") for volume in services[name]["volumes"] if volume.startswith("./"))


def test_the_router_asks_the_workers(services: dict[str, Any], router: RouterConfig, worker: WorkerConfig) -> None:
    (url,) = router.worker_dns
    assert (urlsplit(url).hostname, urlsplit(url).port) == ("worker", worker.port)
    assert services["worker"]["deploy"] == {"replicas": 2}
    assert (router.hosts, router.prometheus_host, worker.host) == (("0.0.0.0",), "0.0.0.0", "0.0.0.0")
    assert services["router"]["ports"] == [f"127.0.0.1:{router.port}:{router.port}"]


def test_nobody_waits_for_whom_cannot_become_healthy(services: dict[str, Any]) -> None:
    for service in services.values():
        for name, condition in service.get("depends_on", {}).items():
            assert condition["condition"] == "service_started" or "healthcheck" in services[name]


def test_the_router_is_healthy_once_a_worker_is_ready(services: dict[str, Any]) -> None:
    live = json.loads(
        read_stages(REPOSITORY / "containers/Containerfile.router")[-1].last("HEALTHCHECK").partition("CMD ")[2]
    )
    assert services["router"]["healthcheck"]["test"] == ["CMD", *(word.replace("/live", "/ready") for word in live)]


def test_streams_have_their_time_to_end(services: dict[str, Any], router: RouterConfig) -> None:
    grace = compose_spec.parse_duration(services["router"]["stop_grace_period"])
    assert grace > router.shutdown_delay + router.shutdown_grace


def test_prometheus_takes_its_configuration_and_our_rules(services: dict[str, Any], tmp_path: Path) -> None:
    for target, source in mounts(services["prometheus"]).items():
        to = tmp_path / target.lstrip("/")
        to.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, to)
    tools = subprocess.check_output([REPOSITORY / "scripts" / "prometheus"], text=True).strip()
    config = tmp_path / "etc/prometheus/prometheus.yml"
    said = subprocess.run([f"{tools}/promtool", "check", "config", config], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert said.stdout.count("rules found") == len(list((REPOSITORY / "helm/warmroute/rules").glob("*.yaml"))) > 0


def test_prometheus_asks_the_router_and_the_workers(
    services: dict[str, Any], router: RouterConfig, worker: WorkerConfig
) -> None:
    jobs = read(outside(services["prometheus"], "/etc/prometheus/prometheus.yml"))["scrape_configs"]
    by_name = {job["job_name"]: job for job in jobs}
    assert by_name["warmroute"]["static_configs"] == [{"targets": [f"router:{router.prometheus_port}"]}]
    (names,) = by_name["worker"]["dns_sd_configs"]
    assert (names["names"], names["type"], names["port"]) == (["worker"], "A", worker.port)


def test_grafana_finds_prometheus(services: dict[str, Any]) -> None:
    folder = outside(services["grafana"], "/etc/grafana/provisioning/datasources")
    (source,) = (source for file in folder.iterdir() for source in read(file)["datasources"])
    scraped = read(outside(services["prometheus"], "/etc/prometheus/prometheus.yml"))["global"]["scrape_interval"]
    assert source["url"] == "http://prometheus:9090"
    assert source["jsonData"]["timeInterval"] == scraped


def test_grafana_shows_our_dashboards(services: dict[str, Any]) -> None:
    grafana = services["grafana"]
    folder = outside(grafana, "/etc/grafana/provisioning/dashboards")
    (provider,) = (provider for file in folder.iterdir() for provider in read(file)["providers"])
    shown = outside(grafana, provider["options"]["path"])
    assert shown == REPOSITORY / "helm/warmroute/dashboards"
    home = outside(grafana, grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert home.parent == shown
    assert json.loads(home.read_text())["panels"]


def test_there_is_no_password(services: dict[str, Any]) -> None:
    grafana = services["grafana"]["environment"]
    assert grafana["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert grafana["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true", "else admin may come in with `admin`"
    assert not any(re.search("PASSWORD|SECRET_KEY|TOKEN", name) for name in grafana)
