"""The chart's network policies deny all that they do not name, and name every port in both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from hapax_kube.binaries import ROOT

Objects = list[dict[str, Any]]
Render = Callable[..., Objects]
COMPONENT = "app.kubernetes.io/component"
EVERYTHING = (
    "admin.enabled=true", 'admin.tokensSecret="t"', "load.enabled=true", 'load.usersOf=["produce","rest"]',
    "external.enabled=true", "spark.enabled=true",
)


class Pod(NamedTuple):
    labels: dict[str, str]
    ports: dict[int, str]


def pods(objects: Objects) -> Iterator[Pod]:
    for each in objects:
        template = each["spec"]["template"] if each["kind"] in ("StatefulSet", "Deployment", "Job") else each
        if each["kind"] not in ("StatefulSet", "Deployment", "Job", "Pod"):
            continue
        yield Pod(template["metadata"]["labels"], {
            port["containerPort"]: port["name"] for container in template["spec"]["containers"]
            for port in container.get("ports", ())})


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    if not selector.get("matchLabels", {}).items() <= labels.items():
        return False
    for each in selector.get("matchExpressions", ()):
        assert each["operator"] == "In"
        if labels.get(each["key"]) not in each["values"]:
            return False
    return True


def rules(objects: Objects, pod: Pod, direction: str) -> list[dict[str, Any]]:
    return [rule for each in objects if each["kind"] == "NetworkPolicy" and selects(
        each["spec"]["podSelector"], pod.labels) for rule in each["spec"].get(direction, ())]


def allowed(rule: dict[str, Any], port: int, side: str, other: Pod) -> bool:
    if not any(each["port"] == port and each.get("protocol", "TCP") == "TCP" for each in rule["ports"]):
        return False
    return side not in rule or any(
        "podSelector" in peer and "namespaceSelector" not in peer and selects(peer["podSelector"], other.labels)
        for peer in rule[side])


def flows(objects: Objects) -> set[tuple[str, int, str]]:
    """(from, port, to) of the release's own pods, where both sides allow it."""
    everyone = list(pods(objects))
    return {
        (source.labels[COMPONENT], port, target.labels[COMPONENT])
        for source in everyone for target in everyone for port in target.ports
        if any(allowed(rule, port, "from", source) for rule in rules(objects, target, "ingress"))
        and any(allowed(rule, port, "to", target) for rule in rules(objects, source, "egress"))}


@pytest.mark.parametrize("values", [(), EVERYTHING, ("security.enabled=false",)])
def test_every_pod_is_denied_what_no_policy_names(render: Render, values: tuple[str, ...]) -> None:
    objects = render(*values)
    (deny,) = (each for each in objects if each["kind"] == "NetworkPolicy" and not (
        each["spec"].get("ingress") or each["spec"].get("egress")))
    assert deny["spec"]["policyTypes"] == ["Ingress", "Egress"]
    for pod in pods(objects):
        assert selects(deny["spec"]["podSelector"], pod.labels), pod.labels
    assert not [each for each in render("networkPolicy.enabled=false") if each["kind"] == "NetworkPolicy"]


@pytest.mark.parametrize("values", [(), EVERYTHING, ("security.enabled=false",)])
def test_every_port_has_its_flow_and_every_flow_its_port(render: Render, values: tuple[str, ...]) -> None:
    objects = render(*values)
    metrics = 'networkPolicy.metrics=[{"namespaceSelector":{"matchLabels":{"team":"prometheus"}}}]'
    with_metrics = render(*values, metrics)
    for pod in pods(with_metrics):
        named = {port["port"] for rule in rules(with_metrics, pod, "ingress") for port in rule["ports"]}
        assert named == set(pod.ports), pod.labels[COMPONENT]
    both = flows(objects)
    for source in pods(objects):
        for rule in rules(objects, source, "egress"):
            if "to" not in rule:  # DNS, the API server, drivers of Spark
                continue
            for target in pods(objects):
                for port in rule["ports"]:
                    if allowed(rule, port["port"], "to", target):
                        flow = source.labels[COMPONENT], port["port"], target.labels[COMPONENT]
                        assert flow in both, f"{flow} may leave, and may not arrive"


def test_who_reaches_what(render: Render) -> None:
    """The whole of it, as docs/kubernetes.md has it."""
    objects = render(*EVERYTHING)
    found = flows(objects)
    nodes = {"broker", "coordinator", "pid", "operator"}
    programs = {"operator", "admin", "test", "load-master", "load-worker"}
    kafka = {"broker", "coordinator"}

    def every(sources: set[str], port: int, targets: set[str]) -> set[tuple[str, int, str]]:
        return {(source, port, target) for source in sources for target in targets}

    assert {each for each in found if each[1] not in (9095, 8080, 8081, 2381, 8089)} == (
        every(programs, 9092, kafka) | every(nodes, 9093, kafka) | every(nodes, 9094, nodes)
        | every(programs, 9096, nodes) | every(nodes, 9097, kafka)
        | every({*nodes, "admin", "certificates", "etcd-keeper"}, 2379, {"etcd"}) | every({"etcd"}, 2380, {"etcd"})
        | every({"load-master", "load-worker"}, 8090, {"admin"}) | every({"load-worker"}, 5557, {"load-master"}))
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    for port in sorted({port for pod in pods(objects) for port in pod.ports}):
        assert f"| {port} |" in page, f"docs/kubernetes.md says nothing of port {port}"


def test_peers_outside_are_those_of_the_values_and_metrics_are_for_none_without(render: Render) -> None:
    for values, port, among in (
        ((), 8080, None), ((), 2381, None), ((), 9092, []), ((), 9096, []),
        (("security.enabled=false",), 8080, []), (("external.enabled=true",), 9095, []),
        (('networkPolicy.clients=[{"podSelector":{}}]',), 9092, [{"podSelector": {}}]),
        (('networkPolicy.metrics=[{"podSelector":{}}]',), 8080, [{"podSelector": {}}]),
    ):
        objects = render(*values)
        (pod,) = (each for each in pods(objects)
                  if each.labels[COMPONENT] == ("etcd" if port == 2381 else "broker"))
        found = [rule for rule in rules(objects, pod, "ingress") if rule["ports"][0]["port"] == port]
        if among is None:
            assert found == [], (values, port)
            continue
        (rule,) = found
        others = [peer for peer in rule.get("from", ()) if "matchExpressions" not in peer.get("podSelector", {})]
        assert others == among, (values, port)
        assert ("from" in rule) == bool(among), (values, port)


def test_the_operator_and_the_keeper_alone_reach_the_api_server(render: Render) -> None:
    objects = render('networkPolicy.apiServer=[{"ipBlock":{"cidr":"192.0.2.1/32"}}]')
    for pod in pods(objects):
        to_api = [rule for rule in rules(objects, pod, "egress") if {"port": 443, "protocol": "TCP"} in rule["ports"]]
        wanted = pod.labels[COMPONENT] in ("operator", "certificates", "etcd-keeper")
        assert len(to_api) == wanted, pod.labels
        assert all(rule["to"] == [{"ipBlock": {"cidr": "192.0.2.1/32"}}] for rule in to_api)
