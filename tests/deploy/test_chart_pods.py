"""What must hold for every pod of the chart, whatever the values: rights, probes, ends, ports, selectors."""

from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from support.chart import CHART, VALUES_FILES, Resource, container, of_kind, pods, render, selects, the
from warmroute_router import __version__

GRID = [pytest.param(file, id=file.stem.removesuffix("-values")) for file in VALUES_FILES]
ROUTER = {
    "app.kubernetes.io/name": "warmroute",
    "app.kubernetes.io/instance": "release",
    "app.kubernetes.io/component": "router",
}
WORKER = ROUTER | {"app.kubernetes.io/component": "worker"}


def router_of(resources: list[Resource]) -> Resource:
    template = the(resources, "Deployment")["spec"]["template"]
    return dict(template)


def argument(pod: Resource, flag: str) -> str:
    arguments = container(pod)["args"]
    return str(arguments[arguments.index(flag) + 1])


@pytest.mark.parametrize("file", GRID)
def test_no_container_has_rights(file: Path) -> None:
    for name, pod in pods(render(None, file)):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["runAsUser"] > 0, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert spec["enableServiceLinks"] is False, name
        for each in spec["containers"] + spec.get("initContainers", []):
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
        assert not [volume for volume in spec.get("volumes", []) if "hostPath" in volume], name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys(), name


def test_a_router_may_write_where_its_processes_share_something() -> None:
    pod = router_of(render({"router": {"extraArgs": ["--processes", "2"]}}))
    (mount,) = [each for each in container(pod)["volumeMounts"] if each["mountPath"] == "/tmp"]
    assert mount["readOnly"] is False
    (volume,) = [each for each in pod["spec"]["volumes"] if each["name"] == mount["name"]]
    assert volume["emptyDir"].keys() == {"medium", "sizeLimit"}


@pytest.mark.parametrize("file", GRID)
def test_only_discovery_has_a_token_and_a_role(file: Path) -> None:
    resources = render(None, file)
    discovery = "--service-discovery" in container(router_of(resources))["args"]
    for name, pod in pods(resources):
        assert pod["spec"]["automountServiceAccountToken"] is (discovery and selects(ROUTER, pod)), name
    for account in of_kind(resources, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False, "the pod says it, so nobody else gets one"
    assert not of_kind(resources, "ClusterRole", "ClusterRoleBinding")
    if not discovery:
        assert not of_kind(resources, "Role", "RoleBinding")
        return
    role, binding = the(resources, "Role"), the(resources, "RoleBinding")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    watched = argument(router_of(resources), "--service-discovery-namespace")
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == watched
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    account_name = router_of(resources)["spec"]["serviceAccountName"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account_name, "namespace": "llm"}]
    assert account_name == the(resources, "ServiceAccount")["metadata"]["name"]


@pytest.mark.parametrize("file", GRID)
def test_the_pod_is_given_more_time_than_it_takes_to_drain(file: Path) -> None:
    pod = router_of(render(None, file))
    delay = float(argument(pod, "--shutdown-delay-secs"))
    grace = float(argument(pod, "--shutdown-grace-period-secs"))
    # After the grace: two seconds for TLS to end in order, and two for whoever was cut off.
    assert pod["spec"]["terminationGracePeriodSeconds"] >= delay + grace + 5
    # In which it is seen not to be ready.
    readiness = container(pod)["readinessProbe"]
    assert readiness["periodSeconds"] * readiness["failureThreshold"] < delay


@pytest.mark.parametrize("file", GRID)
def test_workers_end_what_they_have_begun(file: Path) -> None:
    for stateful in of_kind(render(None, file), "StatefulSet"):
        spec = stateful["spec"]["template"]["spec"]
        hook = spec["containers"][0].get("lifecycle", {"preStop": {"sleep": {"seconds": 0}}})
        assert spec["terminationGracePeriodSeconds"] > hook["preStop"]["sleep"]["seconds"]


def test_probes_of_a_router() -> None:
    """A router that has merely no workers is not ready, but alive."""
    each = container(router_of(render()))
    assert each["readinessProbe"]["httpGet"]["path"] == "/health/ready"
    for probe in ("livenessProbe", "startupProbe"):
        assert each[probe]["httpGet"]["path"] == "/health/live"
        assert each[probe]["httpGet"]["scheme"] == "HTTP"
    encrypted = container(router_of(render({"tls": {"existingSecret": "tls"}})))
    schemes = {encrypted[f"{kind}Probe"]["httpGet"]["scheme"] for kind in ("startup", "liveness", "readiness")}
    assert schemes == {"HTTPS"}


@pytest.mark.parametrize(("minutes", "failures"), [(1, 6), (45, 270)])
def test_a_worker_has_the_time_that_its_model_takes(minutes: int, failures: int) -> None:
    resources = render({"workers": {"p": {"model": "m", "loadMinutes": minutes}}})
    each = container(the(resources, "StatefulSet")["spec"]["template"])
    assert (each["startupProbe"]["periodSeconds"], each["startupProbe"]["failureThreshold"]) == (10, failures)


@pytest.mark.parametrize("file", GRID)
def test_ports_have_the_same_names_everywhere(file: Path) -> None:
    resources = render(None, file)
    all_pods = [pod for _, pod in pods(resources)]

    def named(selector: dict[str, str]) -> set[str]:
        """Ports of the pods that it selects, of which there must be some."""
        chosen = [container(pod) for pod in all_pods if selects(selector, pod)]
        assert chosen, f"nobody is selected by {selector}"
        return set.intersection(*({port["name"] for port in each.get("ports", [])} for each in chosen))

    for service in of_kind(resources, "Service"):
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= named(service["spec"]["selector"])
    for monitor in of_kind(resources, "PodMonitor"):
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            assert endpoint["port"] in named(monitor["spec"]["selector"]["matchLabels"])
    for monitor in of_kind(resources, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        (service,) = [each for each in of_kind(resources, "Service") if wanted <= each["metadata"]["labels"].items()]
        ports = {port["name"] for port in service["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports
    for policy in of_kind(resources, "NetworkPolicy"):
        ports = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
        assert ports <= named(policy["spec"]["podSelector"]["matchLabels"])
    for name, pod in pods(resources):
        declared = {port["name"] for port in container(pod).get("ports", [])}
        probes = [probe for key, probe in container(pod).items() if key.endswith("Probe")]
        assert {probe["httpGet"]["port"] for probe in probes} <= declared, name


@pytest.mark.parametrize("file", GRID)
def test_the_router_listens_where_its_ports_say(file: Path) -> None:
    resources = render(None, file)
    pod = router_of(resources)
    ports = {port["name"]: str(port["containerPort"]) for port in container(pod)["ports"]}
    assert argument(pod, "--port") == ports["http"]
    assert argument(pod, "--prometheus-port") == ports["metrics"]
    assert argument(pod, "--admin-port") not in ports.values(), "and nobody can reach it but by a port-forward"
    if "gossip" in ports:
        assert argument(pod, "--gossip-port") == ports["gossip"]
        service = the(resources, "Service", "-gossip")
        name = f"{service['metadata']['name']}.llm.svc:{service['spec']['ports'][0]['port']}"
        assert argument(pod, "--peers-dns") == name
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["publishNotReadyAddresses"] is True
    for stateful in of_kind(resources, "StatefulSet"):
        worker = stateful["spec"]["template"]
        assert argument(worker, "--port") == str(container(worker)["ports"][0]["containerPort"])


def selectors(resources: list[Resource]) -> dict[str, Any]:
    """What the API server refuses to change."""
    return {
        f"{each['kind']} {each['metadata']['name']}": (
            each["spec"]["selector"],
            each["spec"].get("serviceName"),
            each["spec"].get("volumeClaimTemplates"),
            each["spec"].get("podManagementPolicy"),
        )
        for each in of_kind(resources, "Deployment", "StatefulSet")
    }


def test_selectors_never_change(tmp_path: Path) -> None:
    """Neither with the version nor with any value that does not rename everything."""
    pool: Resource = {"model": "m", "cache": {"size": "1Gi"}}
    before = selectors(render({"workers": {"p": pool}}))
    assert before["Deployment release-warmroute"][0] == {"matchLabels": ROUTER}
    assert before["StatefulSet release-warmroute-p"][0] == {"matchLabels": WORKER | {"warmroute.io/pool": "p"}}
    for file in VALUES_FILES:
        own = selectors(render({"workers": {"p": pool}}, file))
        assert before.items() <= own.items(), file.name
    newer = tmp_path / "newer"
    copytree(CHART, newer)
    metadata = (newer / "Chart.yaml").read_text()
    (newer / "Chart.yaml").write_text(metadata.replace(__version__, "7.8.9"))
    upgraded = render({"workers": {"p": pool}}, chart=newer)
    assert the(upgraded, "Deployment")["metadata"]["labels"]["helm.sh/chart"] == "warmroute-7.8.9"
    assert selectors(upgraded) == before


def test_a_new_key_restarts_the_routers_and_a_new_list_of_workers_does_not() -> None:
    """The list is read again when it changes; a key out of the environment never is."""

    def template(urls: list[str], **values: Any) -> Resource:
        return router_of(render({"workerUrls": urls, "router": {"replicas": 2}, **values}))

    def checksum(pod: Resource) -> str:
        return str(pod["metadata"]["annotations"].pop("checksum/gossip-key"))

    one, other = template(["http://a"]), template(["http://b"])
    assert checksum(one) != checksum(other), "without a cluster each rendering has a key of its own"
    assert one == other
    own = {"gossip": {"existingSecret": "own"}}
    assert template(["http://a"], **own) == template(["http://b"], **own)


def test_replicas() -> None:
    lone = render()
    assert not of_kind(lone, "PodDisruptionBudget", "HorizontalPodAutoscaler", "Secret")
    assert "--peers-dns" not in container(router_of(lone))["args"]

    several = render({"router": {"replicas": 3}})
    assert the(several, "Deployment")["spec"]["replicas"] == 3
    assert the(several, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == ROUTER
    (variable,) = [each for each in container(router_of(several))["env"] if each["name"] == "WARMROUTE_GOSSIP_KEY"]
    assert variable["valueFrom"]["secretKeyRef"]["name"] == the(several, "Secret")["metadata"]["name"]

    scaled = render({"autoscaling": {"enabled": True}})
    assert "replicas" not in the(scaled, "Deployment")["spec"], "or each upgrade would undo what was scaled"
    scaler = the(scaled, "HorizontalPodAutoscaler")["spec"]
    assert scaler["scaleTargetRef"]["name"] == the(scaled, "Deployment")["metadata"]["name"]
    assert "--peers-dns" in container(router_of(scaled))["args"]
    assert the(scaled, "PodDisruptionBudget")


def test_an_upgrade_takes_no_router_away_before_there_is_a_new_one() -> None:
    rolling = the(render(), "Deployment")["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxUnavailable": 0, "maxSurge": 1}


def test_every_spread_constraint_is_of_this_pod() -> None:
    for file in VALUES_FILES:
        pod = router_of(render(None, file))
        constraints = pod["spec"]["topologySpreadConstraints"]
        assert constraints
        for constraint in constraints:
            assert selects(constraint["labelSelector"]["matchLabels"], pod)


def test_gpus_and_what_comes_with_them() -> None:
    vllm = next(file for file in VALUES_FILES if file.name == "vllm-values.yaml")
    resources = render(None, vllm)
    large = the(resources, "StatefulSet", "-large")["spec"]["template"]
    assert container(large)["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert container(large)["resources"]["requests"] == {"cpu": "16", "memory": "128Gi"}
    assert argument(large, "--tensor-parallel-size") == "4"
    volumes = {volume["name"]: volume for volume in large["spec"]["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    assert volumes["cache"]["persistentVolumeClaim"] == {"claimName": "models"}
    small = the(resources, "StatefulSet", "-small")
    (claim,) = small["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"] == {"storage": "50Gi"}
    assert claim["spec"]["storageClassName"] == "fast"
    environment = {each["name"]: each for each in container(small["spec"]["template"])["env"]}
    assert environment["HF_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "hugging-face", "key": "token"}
    assert environment["VLLM_API_KEY"]["valueFrom"]["secretKeyRef"] == {"name": "vllm-key", "key": "api-key"}


@pytest.mark.parametrize("file", GRID)
def test_what_is_mounted_is_there(file: Path) -> None:
    resources = render(None, file)
    configured = {each["metadata"]["name"] for each in of_kind(resources, "ConfigMap")}
    for name, pod in pods(resources):
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
        claims = [
            claim["metadata"]["name"]
            for stateful in of_kind(resources, "StatefulSet")
            if stateful["metadata"]["name"] == name
            for claim in stateful["spec"].get("volumeClaimTemplates", [])
        ]
        mounts = container(pod).get("volumeMounts", [])
        assert sorted(mount["name"] for mount in mounts) == sorted([*volumes, *claims]), name
        assert {volume["configMap"]["name"] for volume in volumes.values() if "configMap" in volume} <= configured
