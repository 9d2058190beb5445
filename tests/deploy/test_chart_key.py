"""The key that routers share: generated where the cluster has none, kept where it has one."""

import json
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import yaml
from support.chart import CHART, Resource, helm, the

RESOURCES = {
    "v1": {"Secret": "secrets", "Service": "services", "ServiceAccount": "serviceaccounts", "Pod": "pods"},
    "apps/v1": {"Deployment": "deployments"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
}
SECRET = "/api/v1/namespaces/llm/secrets/release-warmroute-gossip"


def known(group_version: str) -> dict[str, Any]:
    """What an API server says that it has."""
    listed = [
        {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get"]}
        for kind, name in RESOURCES[group_version].items()
    ]
    return {"kind": "APIResourceList", "groupVersion": group_version, "resources": listed}


@contextmanager
def cluster(key: str | None) -> Iterator[str]:
    """An API server with nothing but, perhaps, the Secret: what Helm asks before it installs. Gives its URL."""
    groups = [{"groupVersion": name, "version": "v1"} for name in RESOURCES if "/" in name]
    answers: dict[str, Any] = {
        "/version": {"major": "1", "minor": "35", "gitVersion": "v1.35.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [{"name": each["groupVersion"].partition("/")[0], "versions": [each]} for each in groups],
        },
        "/api/v1": known("v1"),
        **{f"/apis/{each['groupVersion']}": known(each["groupVersion"]) for each in groups},
    }
    if key is not None:
        data = {"gossip-key": b64encode(key.encode()).decode()}
        metadata = {
            "name": "release-warmroute-gossip",
            "namespace": "llm",
            "labels": {"app.kubernetes.io/managed-by": "Helm"},
            "annotations": {"meta.helm.sh/release-name": "release", "meta.helm.sh/release-namespace": "llm"},
        }
        answers[SECRET] = {"kind": "Secret", "apiVersion": "v1", "metadata": metadata, "data": data}

    class Api(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer = answers.get(self.path.partition("?")[0])
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            body = json.dumps(missing if answer is None else answer).encode()
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        serving = Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


def rendered(url: str, *flags: str) -> list[Resource]:
    """As an upgrade renders it: with a look at the cluster."""
    looking = ("--dry-run=server", "--disable-openapi-validation", "--kube-apiserver", url)
    chart = ("template", "release", CHART, "--namespace", "llm", "--set", "router.replicas=2")
    return list(yaml.safe_load_all(helm(*chart, *looking, *flags)))


def key_of(resources: list[Resource]) -> str:
    """Which is also that of the annotation that restarts the routers."""
    key = str(the(resources, "Secret")["stringData"]["gossip-key"])
    annotations = the(resources, "Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["checksum/gossip-key"] == sha256(key.encode()).hexdigest()
    return key


def test_an_upgrade_keeps_the_key() -> None:
    with cluster("the-key-of-the-first-install") as url:
        assert key_of(rendered(url)) == "the-key-of-the-first-install"


def test_the_first_install_makes_one() -> None:
    with cluster(None) as url:
        one, other = key_of(rendered(url)), key_of(rendered(url))
    assert one != other
    assert len(one) == len(other) == 64


def test_a_secret_of_ones_own() -> None:
    with cluster("not-looked-at") as url:
        resources = rendered(url, "--set", "gossip.existingSecret=own")
    assert [each for each in resources if each["kind"] == "Secret"] == []
    assert "annotations" not in the(resources, "Deployment")["spec"]["template"]["metadata"]
