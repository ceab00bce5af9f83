"""Ways for clients outside: what the chart renders for a Gateway, an Ingress and load balancers, what it refuses."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hapax.codec.metadata import OUTSIDE_HOST
from hapax_kube import go_modules
from hapax_kube.api import KubeApi
from hapax_kube.binaries import ROOT
from hapax_kube.operator import Namespace
from hapax_operator.certificates_spec import parse_spec

CHART = ROOT / "charts" / "hapax"
Render = Callable[..., list[dict[str, Any]]]
Helm = Callable[..., "subprocess.CompletedProcess[str]"]
NODES = ("broker-0", "broker-1", "broker-2", "coordinator-100", "coordinator-101")
DOMAIN = 'external.domain="log.example"'
GATEWAY = ("external.enabled=true", 'external.type="TLSRoute"', DOMAIN,
           'external.gateway={"name":"edge","namespace":"gateways","sectionName":"kafka"}')
INGRESS = ("external.enabled=true", 'external.type="Ingress"', DOMAIN, 'external.ingress.className="nginx"')
BALANCED = ("external.enabled=true", 'external.type="LoadBalancer"', DOMAIN)


def by_name(objects: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


def test_each_name_leads_to_its_node_through_one_gateway(render: Render) -> None:
    objects = render(*GATEWAY)
    services, routes = by_name(objects, "Service"), by_name(objects, "TLSRoute")
    names = {f"demo-hapax-{node}-external": f"demo-hapax-{node}.log.example" for node in NODES}
    names["demo-hapax-external"] = "demo-hapax.log.example"
    assert {name: each["spec"]["hostnames"] for name, each in routes.items()} == {
        name: [host] for name, host in names.items()}
    for name, each in routes.items():
        assert each["spec"]["parentRefs"] == [{"name": "edge", "namespace": "gateways", "sectionName": "kafka"}]
        assert each["spec"]["rules"] == [{"backendRefs": [{"name": name, "port": 9095}]}]
        service = services[name]["spec"]
        assert service["type"] == "ClusterIP" and [port["port"] for port in service["ports"]] == [9095]
    assert not [each for each in services.values() if each["spec"].get("type") in ("LoadBalancer", "NodePort")]


def test_kubernetes_takes_routes_with_the_definitions_of_the_gateway_api(
    kube_api: KubeApi, namespace: Namespace, render: Render, tmp_path: Path
) -> None:
    found = go_modules.folder(*go_modules.GATEWAY_API)
    if found is None:
        pytest.skip("TLSRoute's definition comes from the Go module of the Gateway API, which cannot be had here")
    definition = str(found / "config" / "crd" / "standard" / "gateway.networking.k8s.io_tlsroutes.yaml")
    done = kube_api.kubectl("create", "-f", definition)
    assert done.returncode == 0, done.stderr
    try:
        kube_api.kubectl("wait", "--for=condition=Established", "crd/tlsroutes.gateway.networking.k8s.io",
                         "--timeout=60s")
        path = tmp_path / "routes.yaml"
        path.write_text(yaml.safe_dump_all(
            each for values in (GATEWAY, INGRESS) for each in render(*values, namespace=namespace.name)
            if each["kind"] in ("TLSRoute", "Ingress")))
        done = kube_api.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(path))
        assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
        assert done.stdout.count("tlsroute") == done.stdout.count("ingress.networking") == len(NODES) + 1
    finally:
        kube_api.kubectl("delete", "--wait=false", "-f", definition)


def test_a_controller_of_ingresses_is_told_to_pass_tls_through(render: Render) -> None:
    routes = by_name(render(*INGRESS, 'external.annotations={"a":"b","haproxy.org/ssl-passthrough":"no"}'), "Ingress")
    assert len(routes) == len(NODES) + 1
    for name, each in routes.items():
        annotations = each["metadata"]["annotations"]
        assert annotations["nginx.ingress.kubernetes.io/ssl-passthrough"] == "true"
        assert annotations["a"] == "b" and annotations["haproxy.org/ssl-passthrough"] == "no"
        (rule,) = each["spec"]["rules"]
        assert each["spec"]["tls"] == [{"hosts": [rule["host"]]}] and each["spec"]["ingressClassName"] == "nginx"
        assert rule["http"]["paths"][0]["backend"] == {"service": {"name": name, "port": {"number": 9095}}}


def test_bootstrap_may_have_the_only_load_balancer(render: Render) -> None:
    each_own = by_name(render(*BALANCED, 'external.bootstrapHost="kafka.log.example"', "external.port=443"), "Service")
    one = by_name(render(*BALANCED, "external.perNode=false", 'external.annotations={"cloud":"x"}'), "Service")
    named = "external-dns.alpha.kubernetes.io/hostname"
    for node in NODES:
        service = each_own[f"demo-hapax-{node}-external"]
        assert service["spec"]["type"] == "LoadBalancer" and service["spec"]["ports"][0]["port"] == 443
        assert service["metadata"]["annotations"][named] == f"demo-hapax-{node}.log.example"
        assert one[f"demo-hapax-{node}-external"]["spec"]["type"] == "ClusterIP"
        assert one[f"demo-hapax-{node}-external"]["metadata"]["annotations"] == {}
    assert each_own["demo-hapax-external"]["metadata"]["annotations"] == {named: "kafka.log.example"}
    assert one["demo-hapax-external"]["spec"]["type"] == "LoadBalancer"
    assert one["demo-hapax-external"]["metadata"]["annotations"] == {"cloud": "x"}


@pytest.mark.parametrize("values", [INGRESS, BALANCED[:2]])
def test_brokers_that_are_to_be_removed_are_reached_until_they_are(
    kube_api: KubeApi, namespace: Namespace, helm: Helm, render: Render, tmp_path: Path, values: tuple[str, ...]
) -> None:
    """They serve until they are empty. And those that a person has added by the BrokerPool are reached too."""
    (live,) = (each for each in render(namespace=namespace.name)
               if (each["kind"], each["metadata"]["name"]) == ("StatefulSet", "demo-hapax-broker"))
    live["spec"]["replicas"] = 5
    live["metadata"]["annotations"] |= {
        "meta.helm.sh/release-name": "demo", "meta.helm.sh/release-namespace": namespace.name}
    path = tmp_path / "live.yaml"
    path.write_text(yaml.safe_dump(live))
    assert kube_api.kubectl("apply", "-f", str(path)).returncode == 0
    done = helm("template", "demo", str(CHART), "--namespace", namespace.name, "--dry-run=server", "--set",
                "crds.install=false", "--kubeconfig", str(kube_api.kubeconfig),
                *(word for each in values for word in ("--set-json", each)))
    objects = [each for each in yaml.safe_load_all(done.stdout) if each]
    wanted = {f"demo-hapax-{node}-external" for node in (*NODES, "broker-3", "broker-4")}
    services = by_name(objects, "Service")
    assert {each for each in services if each.endswith("-external")} == {*wanted, "demo-hapax-external"}, done.stderr
    if values == INGRESS:
        assert wanted < by_name(objects, "Ingress").keys()
    if values == BALANCED[:2]:
        spec = parse_spec(by_name(objects, "ConfigMap")["demo-hapax-certificates"]["data"]["spec.json"])
        assert {*spec.services} == {*wanted, "demo-hapax-external"}
        (rule,) = (each for each in by_name(objects, "Role")["demo-hapax-certificates"]["rules"]
                   if each["resources"] == ["services"])
        assert {*rule["resourceNames"]} == {*spec.services}


def test_without_a_name_nodes_are_told_where_their_load_balancers_are(render: Render, helm: Helm) -> None:
    """By the operator, which may read Services for it, and so may the keeper of certificates those of the nodes."""
    found = ("external.enabled=true", 'external.type="LoadBalancer"')
    objects = render(*found)
    for role, node in (("broker", 0), ("coordinator", 100)):
        pod = by_name(objects, "StatefulSet")[f"demo-hapax-{role}"]["spec"]["template"]["spec"]
        env = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
        told = env["HAPAX_ADVERTISED_LISTENERS"].split(",")[-1]
        assert told == f"EXTERNAL://{OUTSIDE_HOST}:9095" and env["HAPAX_SSL_ALLOW_SAN_CHANGES"] == "true"
        service = by_name(objects, "Service")[f"demo-hapax-{role}-{node}-external"]
        assert service["metadata"]["labels"]["hapax.dev/outside-node"] == str(node)
        assert service["metadata"]["annotations"] == {}
    spec = json.loads(by_name(objects, "ConfigMap")["demo-hapax-certificates"]["data"]["spec.json"])
    names = [f"demo-hapax-{node}-external" for node in NODES]
    assert parse_spec(json.dumps(spec)).services == sorted(["demo-hapax-external", *names])
    (rule,) = (each for each in by_name(objects, "Role")["demo-hapax-certificates"]["rules"]
               if each["resources"] == ["services"])
    assert rule["verbs"] == ["get"] and rule["resourceNames"] == ["demo-hapax-external", *names]
    assert {"apiGroups": [""], "resources": ["services"], "verbs": ["list", "watch"]} in (
        by_name(objects, "Role")["demo-hapax-brokers"]["rules"])
    named = render(*BALANCED)
    assert OUTSIDE_HOST not in json.dumps(named) and '"services"' not in json.dumps(
        [each["rules"] for each in named if each["kind"] == "Role"])
    refused = helm("template", "demo", str(CHART), "--set", "external.enabled=true,external.type=LoadBalancer",
                   "--set", "tls.issuer=cert-manager")
    assert "cert-manager is not told of addresses" in refused.stderr


def test_certificates_follow_the_addresses_of_load_balancers(render: Render) -> None:
    text = by_name(render("external.enabled=true", 'external.type="LoadBalancer"'), "ConfigMap")[
        "demo-hapax-certificates"]["data"]["spec.json"]
    spec = parse_spec(text)

    def names(node: int, addresses: dict[str, str]) -> frozenset[str]:
        (holder,) = (each for each in spec.holders({}, addresses) if each.name == "demo-hapax-broker-tls")
        (leaf,) = (each for each in holder.leaves if each.name == f"{node}-public")
        return leaf.names

    plain = names(1, {})
    assert not any("{" in each for each in plain)
    known = {"demo-hapax-external": "boot.example", "demo-hapax-broker-1-external": "192.0.2.1",
             "demo-hapax-broker-2-external": "192.0.2.2"}
    assert names(1, known) == plain | {"boot.example", "192.0.2.1"}
    assert names(0, known) - {"boot.example"} == names(0, {}), "another node's is not its own"
    # A broker beyond the values has no load balancer of its own, but that of bootstrap leads to it too.
    assert names(5, known) - names(5, {}) == {"boot.example"}


def test_certificates_have_the_names_that_clients_ask_for(render: Render) -> None:
    objects = render(*GATEWAY, 'external.hostTemplate="{role}-{id}.{release}.{domain}"',
                     'external.bootstrapHost="begin.example"')
    spec = json.loads(by_name(objects, "ConfigMap")["demo-hapax-certificates"]["data"]["spec.json"])
    for role in ("broker", "coordinator"):
        (holder,) = (each for each in spec["secrets"] if each["name"] == f"demo-hapax-{role}-tls")
        (public,) = (leaf for leaf in holder["leaves"] if leaf["name"] == "{id}-public")
        assert {f"{role}-{{id}}.demo-hapax.log.example", "begin.example"} <= set(public["names"])


@pytest.mark.parametrize(("values", "said"), [
    ((*GATEWAY, "security.enabled=false"), "it needs security.enabled"),
    ((*GATEWAY, 'external.gateway={"name":""}'), "external.gateway.name must name a Gateway"),
    ((*GATEWAY, 'external.hostTemplate="one.example"'), "must have {pod} or {id}"),
    ((*GATEWAY, 'external.domain=""', 'external.bootstrapHost="b.example"',
      'external.hostTemplate="{id}.{domain}"'), "external.domain is empty"),
    ((*GATEWAY, 'external.domain=""', 'external.hostTemplate="{id}.example"'), "external.bootstrapHost or"),
    ((*GATEWAY, 'external.hostTemplate="{node}.example"'), "does not match pattern"),
    ((*GATEWAY, 'external.type="Route"'), "value must be one of"),
])
def test_what_cannot_work_is_refused(helm: Helm, values: tuple[str, ...], said: str) -> None:
    done = helm("template", "demo", str(CHART), *(word for value in values for word in ("--set-json", value)))
    assert done.returncode != 0 and said in done.stderr, done.stderr
