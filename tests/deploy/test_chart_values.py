"""values.yaml and its schema: every key is explained and known, and a wrong one is named."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.chart import CHART, ROOT, HelmError, render

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
NOT_SHOWN = {"global", "enabled"}
"""What only a chart around this one would set."""

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "replicaCount": ({"replicaCount": 3}, "replicaCount"),
    "misspelt": ({"router": {"polcy": "random"}}, "polcy"),
    "no-policy": ({"router": {"policy": "round-robin"}}, "/router/policy"),
    "replicas-as-text": ({"router": {"replicas": "3"}}, "/router/replicas"),
    "too-many-replicas": ({"router": {"replicas": 65}}, "/router/replicas"),
    "delay-too-short": ({"router": {"drain": {"delaySeconds": 5}}}, "/router/drain/delaySeconds"),
    "negative-grace": ({"router": {"drain": {"graceSeconds": -1}}}, "/router/drain/graceSeconds"),
    "arguments-as-text": ({"router": {"extraArgs": "--processes 2"}}, "/router/extraArgs"),
    "a-number-among-arguments": ({"router": {"extraArgs": ["--queue-size", 5]}}, "/router/extraArgs/1"),
    "url-with-a-password": ({"workerUrls": ["http://me:secret@gpu1"]}, "/workerUrls/0"),
    "url-twice": ({"workerUrls": ["http://a", "http://a"]}, "/workerUrls"),
    "urls-as-text": ({"workerUrls": "http://a http://b"}, "/workerUrls"),
    "url-with-port-0": ({"workerUrls": ["http://a:0"]}, "/workerUrls/0"),
    "url-with-too-high-a-port": ({"workerUrls": ["http://a", "http://gpu:65536"]}, "/workerUrls/1"),
    "name-with-too-high-a-port": ({"workerDns": ["http://gpu:99999"]}, "/workerDns/0"),
    "url-of-no-host": ({"workerUrls": ["http://gpü:8000"]}, "/workerUrls/0"),
    "port": ({"discovery": {"port": 70000}}, "/discovery/port"),
    "namespace": ({"discovery": {"namespace": "My_NS"}}, "/discovery/namespace"),
    "namespace-of-dashboards": (
        {"monitoring": {"dashboards": {"namespace": "a.b"}}},
        "/monitoring/dashboards/namespace",
    ),
    "model-label": ({"discovery": {"modelLabel": "a b"}}, "/discovery/modelLabel"),
    "selector-key": ({"discovery": {"selector": {"Example.com/app": "a"}}}, "Example.com/app"),
    "selector-value": ({"discovery": {"selector": {"app": "a b"}}}, "/discovery/selector/app"),
    "selector-as-text": ({"discovery": {"selector": "app=vllm"}}, "/discovery/selector"),
    "selector-of-numbers": ({"discovery": {"selector": {"tier": 1}}}, "/discovery/selector/tier"),
    "digest": ({"image": {"digest": "v1"}}, "/image/digest"),
    "secret-itself": ({"apiKeys": {"value": "s3cret"}}, "/apiKeys"),
    "monitor": ({"monitoring": {"monitor": {"kind": "Both"}}}, "/monitoring/monitor/kind"),
    "interval": ({"monitoring": {"monitor": {"interval": 15}}}, "/monitoring/monitor/interval"),
    "pool-name": ({"workers": {"Big_One": {"model": "m"}}}, "Big_One"),
    "pool-key": ({"workers": {"p": {"model": "m", "replica": 2}}}, "replica"),
    "engine": ({"workers": {"p": {"model": "m", "engine": "tgi"}}}, "/workers/p/engine"),
    "gpus": ({"workers": {"p": {"model": "m", "gpu": {"count": 0.5}}}}, "/workers/p/gpu/count"),
    "size": ({"workers": {"p": {"model": "m", "cache": {"size": "50 GB"}}}}, "/workers/p/cache/size"),
    "load-minutes": ({"workerDefaults": {"loadMinutes": 0}}, "/workerDefaults/loadMinutes"),
    "ingress-without-hosts": ({"ingress": {"enabled": True}}, "/ingress/hosts"),
    "route-without-gateway": ({"httpRoute": {"enabled": True}}, "/httpRoute/parentRefs"),
    "service-type": ({"service": {"type": "ExternalName"}}, "/service/type"),
    "no-api-server-port": ({"networkPolicy": {"apiServerPorts": []}}, "/networkPolicy/apiServerPorts"),
    "peers": ({"networkPolicy": {"clients": [{"namespace": "chat"}]}}, "/networkPolicy/clients/0"),
    "budget": ({"podDisruptionBudget": {"maxUnavailable": "0%"}}, "/podDisruptionBudget/maxUnavailable"),
    "their-selector": (
        {"router": {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "labelSelector": {}}]}},
        "/router/topologySpreadConstraints/0",
    ),
    # What no schema can say.
    "pool-without-a-model": ({"workers": {"p": {"replicas": 2}}}, "workers.p.model"),
    "discovery-of-nothing": ({"discovery": {"enabled": True}}, "discovery.selector"),
    "no-port-of-own-workers": (
        {"discovery": {"enabled": True, "port": 30000}, "workers": {"p": {"model": "m"}}},
        "discovery.port",
    ),
    "no-namespace-of-own-workers": (
        {"discovery": {"enabled": True, "namespace": "inference"}, "workers": {"p": {"model": "m"}}},
        "discovery.namespace",
    ),
    "url-twice-with-and-without-http": ({"workerUrls": ["http://gpu:8000", "gpu:8000"]}, "workerUrls"),
    "url-twice-in-other-letters": ({"workerUrls": ["https://GPU/v1/", "https://gpu:443/v1"]}, "workerUrls"),
    "name-twice": ({"workerDns": ["http://gpu", "gpu:80"]}, "workerDns"),
    "name-of-own-workers": (
        {"workerDns": ["release-warmroute-p.llm.svc:8000"], "workers": {"p": {"model": "m"}}},
        "workerDns",
    ),
    "processes-of-several-routers": (
        {"router": {"replicas": 2, "extraArgs": ["--processes=2"]}},
        "router.extraArgs",
    ),
    "less-than-least": ({"autoscaling": {"enabled": True, "maxReplicas": 1}}, "autoscaling.maxReplicas"),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_error_names_the_key(case: str) -> None:
    values, key = WRONG[case]
    with pytest.raises(HelmError) as error:
        render(values)
    words = str(error.value).replace("'", " ").split()
    assert any(key == word.strip(":,") for word in words), error.value


def test_a_value_may_be_taken_away() -> None:
    """As on OpenShift, which chooses users itself."""
    values = {"router": {"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}}
    deployment = next(each for each in render(values) if each["kind"] == "Deployment")
    assert deployment["spec"]["template"]["spec"]["securityContext"].keys() == {"runAsNonRoot", "seccompProfile"}


def test_as_a_part_of_another_chart(tmp_path: Path) -> None:
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts/warmroute").symlink_to(CHART)
    (tmp_path / "Chart.yaml").write_text(
        "{apiVersion: v2, name: mine, version: 1.0.0,"
        " dependencies: [{name: warmroute, version: '>=0', condition: warmroute.enabled}]}"
    )
    values = {"warmroute": {"enabled": True}, "global": {"region": "eu"}}
    assert any(each["kind"] == "Deployment" for each in render(values, chart=tmp_path))
    assert not render({"warmroute": {"enabled": False}}, chart=tmp_path)


def test_the_examples_of_the_docs() -> None:
    """Each renders, so each of its keys is right."""
    examples = re.findall(r"```yaml\n(# values\n.*?)```", (ROOT / "docs/kubernetes.md").read_text(), re.DOTALL)
    assert len(examples) > 5
    for example in examples:
        assert render(yaml.safe_load(example)), example


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").removeprefix("#/definitions/")
    return SCHEMA["definitions"][name] if name else schema


def test_the_schema_and_the_values_have_the_same_keys() -> None:
    def compare(values: dict[str, Any], schema: dict[str, Any], path: str) -> None:
        properties = resolved(schema).get("properties")
        if properties is None:
            return
        assert resolved(schema)["additionalProperties"] is False, path
        assert values.keys() == properties.keys() - (NOT_SHOWN if not path else set()), path
        for key, value in values.items():
            if isinstance(value, dict) and value:
                compare(value, properties[key], f"{path}.{key}")

    compare(VALUES, SCHEMA, "")


def test_every_key_is_explained() -> None:
    """By a comment above it, or above a group that it is in; but a large group explains nothing by itself."""
    explained: list[bool] = []
    previous = ""
    for line in (CHART / "values.yaml").read_text().splitlines():
        key = re.match(r"((?:  )*)(\w+):", line)
        if key:
            commented = previous.lstrip().startswith("#")
            large = key[2] in {"router", "workerDefaults"}
            explained = [*explained[: len(key[1]) // 2], commented and not large]
            assert any(explained) or (large and commented), line
        previous = line
