"""The chart as Helm and the API server see it: it lints, packages, renders, and what it renders is valid."""

import json
import re
import subprocess
import tarfile
from pathlib import Path

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from support.chart import CHART, ROOT, VALUES_FILES, Resource, crd_schemas, helm, of_kind, pods, render
from warmroute_router import __version__

KUBERNETES = ("1.30", "1.32", "1.34", "1.37")
CRDS = {"monitoring.coreos.com/v1", "gateway.networking.k8s.io/v1"}
GRID = [pytest.param(file, id=file.stem.removesuffix("-values")) for file in VALUES_FILES]
LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def crd_problems(resources: list[Resource]) -> list[str]:
    command = ["node", "tests/deploy/crds/check.mjs", crd_schemas()]
    done = subprocess.run(
        command, cwd=ROOT, input=json.dumps(resources), stdout=subprocess.PIPE, text=True, check=True
    )
    return list(json.loads(done.stdout))


@pytest.mark.parametrize("file", GRID)
def test_lint(file: Path) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART, "--values", file)


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("file", GRID)
def test_each_manifest_is_valid_in_each_kubernetes(file: Path, version: str) -> None:
    for resource in render(None, file):
        if resource["apiVersion"] not in CRDS:
            kubernetes_validate.validate(resource, version, strict=True)


def test_the_validators_know_what_is_wrong() -> None:
    deployment = of_kind(render(), "Deployment")[0]
    deployment = {**deployment, "spec": {**deployment["spec"], "replica": 1}}
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(deployment, KUBERNETES[0], strict=True)
    monitor = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": "x"},
        "spec": {"podMetricsEndpoints": [{"prt": "metrics", "interval": "often"}]},
    }
    endpoint = "PodMonitor x /spec/podMetricsEndpoints/0"
    problems = " ".join(crd_problems([monitor]))
    assert f"{endpoint}/prt: unknown" in problems
    assert f"{endpoint}/interval: pattern" in problems
    assert "required" in problems  # its selector


def test_custom_resources_are_valid() -> None:
    """All at once, since starting node takes the time of checking hundreds."""
    resources = [each for file in VALUES_FILES for each in render(None, file) if each["apiVersion"] in CRDS]
    assert {each["kind"] for each in resources} == {"PodMonitor", "ServiceMonitor", "PrometheusRule", "HTTPRoute"}
    assert crd_problems(resources) == []


def test_package(tmp_path: Path) -> None:
    helm("package", CHART, "--destination", tmp_path)
    with tarfile.open(tmp_path / f"warmroute-{__version__}.tgz") as archive:
        packed = set(archive.getnames())
    own = {"values.schema.json", "templates/NOTES.txt", "files/test_connection.py"}
    assert {f"warmroute/{name}" for name in own} <= packed
    for folder in ("dashboards", "rules"):
        kept = {str(Path("warmroute") / file.relative_to(CHART)) for file in (CHART / folder).iterdir()}
        assert kept <= packed
    assert not [name for name in packed if name.startswith("warmroute/ci/")]
    assert of_kind(render(chart=next(tmp_path.iterdir())), "Deployment")


def test_the_version_is_that_of_the_router() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_rendering_depends_on_nothing_else() -> None:
    """But for a generated key, it is the same every time: tools that compare would find changes for ever."""
    for file in VALUES_FILES:
        arguments = ("template", "release", CHART, "--values", file, "--set", "gossip.existingSecret=gossip")
        assert helm(*arguments) == helm(*arguments)


@pytest.mark.parametrize("length", [1, 40, 53])
def test_names_are_short_enough(length: int) -> None:
    """Labels and names of Services have 63 characters at most. 53 is Helm's own limit of a release's name."""
    pool = {"a-pool-of-20-letters": {"model": "m"}}
    monitoring = {"monitor": {"kind": "ServiceMonitor"}, "dashboards": {"enabled": True}, "rules": {"enabled": True}}
    values = {
        "workers": pool,
        "router": {"replicas": 2},
        "monitoring": monitoring,
        "networkPolicy": {"enabled": True},
        "discovery": {"enabled": True},
    }
    release = ("r" * length) if length < 3 else ("r" * (length - 2) + "-x")
    resources = render(values, release=release)
    names = [(each["kind"], each["metadata"]["name"]) for each in resources]
    assert len(set(names)) == len(names), "no two have the same name"
    for kind, name in names:
        assert len(name) <= 63, (kind, name)
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name), (kind, name)
    # It makes labels of its name and a hash.
    assert all(len(each["metadata"]["name"]) <= 52 for each in of_kind(resources, "StatefulSet"))
    for labels in [each["metadata"]["labels"] for each in (*resources, *(pod for _, pod in pods(resources)))]:
        for value in labels.values():
            assert LABEL.fullmatch(value), value


def test_releases_of_one_name_share_a_namespace() -> None:
    """That of the workers, or of Grafana: what one has there is not the other's."""
    discovery = {"enabled": True, "selector": {"app": "vllm"}, "namespace": "shared"}
    values = {"discovery": discovery, "monitoring": {"dashboards": {"enabled": True, "namespace": "shared"}}}

    def shared(release: str, namespace: str) -> set[tuple[str, str]]:
        arguments = ("template", release, CHART, "--namespace", namespace, "--values", "-")
        resources = yaml.safe_load_all(helm(*arguments, stdin=yaml.safe_dump(values)))
        inside = [each for each in resources if each["metadata"]["namespace"] == "shared"]
        return {(each["kind"], each["metadata"]["name"]) for each in inside}

    releases = [("warmroute-x", "y"), ("warmroute", "x-y"), ("warmroute", "y"), ("r" * 53, "n" * 63)]
    names = [name for release in releases for name in shared(*release)]
    assert {kind for kind, _ in names} == {"Role", "RoleBinding", "ConfigMap"}
    assert len(set(names)) == len(names) == 3 * len(releases)
    assert all(len(name) <= 253 for _, name in names)
    own = {("Role", "warmroute-discovery"), ("ConfigMap", "warmroute-dashboard-warmroute")}
    assert own <= shared("warmroute", "shared"), "in its own namespace it needs no other name"


def test_each_resource_says_whose_it_is() -> None:
    for file in VALUES_FILES:
        for resource in render(None, file):
            labels = resource["metadata"]["labels"]
            assert labels["app.kubernetes.io/name"] == "warmroute"
            assert labels["app.kubernetes.io/instance"] == "release"
            assert labels["app.kubernetes.io/version"] == __version__
            assert labels["app.kubernetes.io/managed-by"] == "Helm"
            assert labels["helm.sh/chart"] == f"warmroute-{__version__}"
            assert resource["metadata"]["namespace"] in {"llm", "inference", "monitoring"}


def test_notes_say_what_is_missing(tmp_path: Path) -> None:
    def notes(**values: object) -> str:
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        return helm("install", "release", CHART, "--dry-run=client", "--values", file).partition("NOTES:")[2]

    assert "NO WORKERS" in notes()
    assert "http://release-warmroute.default.svc:30000/v1" in notes()
    assert "NO WORKERS" not in notes(workerUrls=["http://gpu1:8000"])
    assert "https://release-warmroute.default.svc:443/v1" in notes(tls={"existingSecret": "t"}, service={"port": 443})
    assert "gossip.existingSecret" in notes(router={"replicas": 2})
    assert "gossip.existingSecret" not in notes(router={"replicas": 2}, gossip={"existingSecret": "own"})
