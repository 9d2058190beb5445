"""The chart's NetworkPolicies, as what they let through, and what is in front of the router."""

from typing import Any

from support.chart import VALUES_FILES, Resource, of_kind, render, the

LOCKED = next(file for file in VALUES_FILES if file.name == "locked-down-values.yaml")
OF_RELEASE = {"app.kubernetes.io/name": "warmroute", "app.kubernetes.io/instance": "release"}

DNS = (53, 53, 5353, 5353)
"""By UDP and TCP; the second where OpenShift's servers listen."""


def peer(component: str) -> Resource:
    return {"podSelector": {"matchLabels": OF_RELEASE | {"app.kubernetes.io/component": component}}}


def rules(policy: Resource, direction: str) -> dict[tuple[Any, ...], Any]:
    """From ports to peers; None for anybody."""
    end = "from" if direction == "ingress" else "to"
    return {tuple(port["port"] for port in rule["ports"]): rule.get(end) for rule in policy["spec"][direction]}


def test_there_is_none_unless_it_is_asked_for() -> None:
    assert not of_kind(render(), "NetworkPolicy")


def test_who_may_come_in() -> None:
    resources = render(None, LOCKED)
    ingress = rules(the(resources, "NetworkPolicy", "release-warmroute"), "ingress")
    chat = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "chat"}}}
    assert ingress[("http",)] == [chat, peer("test")]
    assert ingress[("gossip",)] == [peer("router")]
    (prometheus,) = ingress[("metrics",)]
    assert prometheus["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "prometheus"}
    assert len(ingress) == 3
    workers = the(resources, "NetworkPolicy", "-workers")
    assert rules(workers, "ingress") == {("http",): [peer("router"), prometheus]}
    assert workers["spec"]["policyTypes"] == ["Ingress"]


def test_where_routers_may_go() -> None:
    egress = rules(the(render(None, LOCKED), "NetworkPolicy", "release-warmroute"), "egress")
    assert egress[(30001,)] == [peer("router")]
    assert egress[(443, 6443)] == [{"ipBlock": {"cidr": "198.51.100.1/32"}}]
    assert egress[(443, 8443)] == [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "on the ports of the URLs"
    (dns,) = egress[DNS]
    assert dns["podSelector"]["matchLabels"] == {"k8s-app": "kube-dns"}
    assert "namespaceSelector" in egress[(8000,)][0], "discovered ones, in their namespace"


def test_nobody_reads_metrics_or_gossips_by_default() -> None:
    policy = the(render({"networkPolicy": {"enabled": True}, "workerUrls": ["http://gpu1:8000"]}), "NetworkPolicy")
    assert rules(policy, "ingress") == {("http",): None}, "requests from everybody, and nothing else"
    assert rules(policy, "egress") == {DNS: None, (8000,): None}
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]


def test_the_namespace_that_workers_are_found_in() -> None:
    discovery = {"enabled": True, "selector": {"app": "vllm"}, "namespace": "inference", "port": 9000}
    policy = the(render({"networkPolicy": {"enabled": True}, "discovery": discovery}), "NetworkPolicy")
    assert rules(policy, "egress")[(9000,)] == [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "inference"}},
            "podSelector": {"matchLabels": {"app": "vllm"}},
        }
    ]


def test_names_are_asked_by_both_protocols() -> None:
    policy = the(render(None, LOCKED), "NetworkPolicy", "release-warmroute")
    ports = {(port["port"], port["protocol"]) for port in policy["spec"]["egress"][0]["ports"]}
    assert ports == {(port, protocol) for port in DNS for protocol in ("UDP", "TCP")}


def test_the_api_server_may_listen_elsewhere() -> None:
    policy = {"enabled": True, "apiServerPorts": [443, 16443]}
    resources = render({"networkPolicy": policy, "discovery": {"enabled": True, "selector": {"app": "vllm"}}})
    egress = rules(the(resources, "NetworkPolicy"), "egress")
    assert egress.keys() == {DNS, (8000,), (443, 16443)}


def test_ingress_and_route_lead_to_the_service() -> None:
    resources = render(None, next(file for file in VALUES_FILES if file.name == "exposed-values.yaml"))
    service = the(resources, "Service")
    (rule,) = the(resources, "Ingress")["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert path["backend"]["service"] == {"name": service["metadata"]["name"], "port": {"name": "http"}}
    (route,) = the(resources, "HTTPRoute")["spec"]["rules"]
    port = service["spec"]["ports"][0]["port"]
    assert route["backendRefs"] == [{"name": service["metadata"]["name"], "port": port}]
    assert route["timeouts"] == {"request": "0s"}
    assert service["spec"]["ports"][0]["appProtocol"] == "http"
    gateways_own = render({"httpRoute": {"enabled": True, "parentRefs": [{"name": "g"}], "timeouts": None}})
    assert "timeouts" not in the(gateways_own, "HTTPRoute")["spec"]["rules"][0]


def test_metrics_and_the_admin_api_are_not_of_the_public_service() -> None:
    for file in VALUES_FILES:
        resources = render(None, file)
        public = [each for each in of_kind(resources, "Service") if each["metadata"]["name"] == "release-warmroute"]
        assert [port["targetPort"] for each in public for port in each["spec"]["ports"]] == ["http"]
