"""The dashboards and rules arrive in the cluster as they are in their files."""

import json
from typing import Any

import pytest
import yaml
from support.chart import CHART, VALUES_FILES, Resource, of_kind, render, the

EVERYTHING = next(file for file in VALUES_FILES if file.name == "monitoring-values.yaml")
DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))
RULES = sorted((CHART / "rules").glob("*.yaml"))


@pytest.fixture(scope="module")
def resources() -> list[Resource]:
    return render(None, EVERYTHING)


def test_every_dashboard_is_there_byte_for_byte(resources: list[Resource]) -> None:
    maps = [each for each in of_kind(resources, "ConfigMap") if "grafana_dashboard" in each["metadata"]["labels"]]
    rendered = {name: text for each in maps for name, text in each["data"].items()}
    assert DASHBOARDS
    assert rendered == {file.name: file.read_text() for file in DASHBOARDS}
    for each in maps:
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert each["metadata"]["annotations"] == {"grafana_folder": "Inference"}
        assert each["metadata"]["namespace"] == "monitoring"
        (text,) = each["data"].values()
        assert json.loads(text)["uid"]
        assert len(text) < 1024 * 1024, "no ConfigMap may be larger"


def test_every_rule_is_there_as_it_is_written(resources: list[Resource]) -> None:
    """With the braces of its labels, which Helm would take for its own."""
    written: list[Any] = [group for file in RULES for group in yaml.safe_load(file.read_text())["groups"]]
    assert RULES
    assert the(resources, "PrometheusRule")["spec"]["groups"] == written
    rules = [rule for group in written for rule in group["rules"]]
    assert {"alert", "record"} <= {key for rule in rules for key in rule}
    assert any("{{ $labels." in text for rule in rules for text in rule.get("annotations", {}).values())


def test_what_prometheus_selects_by(resources: list[Resource]) -> None:
    for each in of_kind(resources, "ServiceMonitor", "PodMonitor", "PrometheusRule"):
        assert each["metadata"]["labels"]["release"] == "kube-prometheus-stack", each["kind"]
    workers = the(resources, "PodMonitor")
    assert workers["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] == "worker"


def test_one_kind_of_monitor_watches_the_routers() -> None:
    """Two would count everything twice."""
    for kind in ("PodMonitor", "ServiceMonitor"):
        monitors = of_kind(render({"monitoring": {"monitor": {"kind": kind}}}), "PodMonitor", "ServiceMonitor")
        assert [each["kind"] for each in monitors] == [kind]


def test_nothing_of_it_unless_it_is_asked_for() -> None:
    kinds = {each["kind"] for each in render()}
    assert kinds == {"ServiceAccount", "Service", "Deployment", "Pod"}
