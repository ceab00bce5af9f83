"""The chart: what it renders, what it refuses, and that a real API server takes every object of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hapax.core.access.principals import Principal
from hapax.core.access.resources import ResourceType
from hapax.runtime.settings import load
from hapax_kube.api import KubeApi
from hapax_kube.binaries import ROOT
from hapax_kube.kubelet import Kubelet
from hapax_kube.operator import Namespace, OperatorProcess
from hapax_operator.access_file import Listeners, read_file
from hapax_operator.namespace_policy import NamespacePolicy
from integration.waiting import wait_until

CHART = ROOT / "charts" / "hapax"
RELEASE = "demo"
PRODUCERS = "transactionalproducers"
WORKLOADS = ("StatefulSet", "Deployment")
OPEN = ("security.enabled=false",)
EXTERNAL_ETCD = (
    'etcd.enabled=false', 'etcd.external.endpoints=["https://etcd.example:2379"]', 'etcd.external.tls.secret="e"')
NUMBERED = ("broker", "coordinator")
"""Roles that are known by their node ids; the others take one that is free."""

Render = Callable[..., list[dict[str, Any]]]


def of(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = (each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def pods(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for each in objects:
        if each["kind"] in WORKLOADS:
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]
        elif each["kind"] == "Pod":
            yield each["metadata"]["name"], each["spec"]


def environment(pod: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in pod["containers"][0]["env"]}


def test_helm_finds_nothing_to_say(helm: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


def test_a_real_api_server_takes_every_object(kube_api: KubeApi, namespace: Namespace, render: Render,
                                              tmp_path: Path) -> None:
    for number, values in enumerate((
        (), EXTERNAL_ETCD,
        OPEN, (*OPEN, 'etcd.enabled=false', 'etcd.external.endpoints=["etcd.example:2379"]', 'external.enabled=true'),
        (f'operator.watchNamespaces=["{namespace.name}"]', 'broker.storage.className="fast"',
         'networkPolicy.clients=[{"namespaceSelector":{}}]', 'podDisruptionBudget.enabled=false'),
        ('external.enabled=true', 'protection.enabled=false'),
        ('external.enabled=true', 'external.type="LoadBalancer"', 'external.domain="log.example.com"',
         'external.sourceRanges=["192.0.2.0/24"]', 'networkPolicy.external=[{"ipBlock":{"cidr":"192.0.2.0/24"}}]'),
    )):
        rendered = tmp_path / f"{number}.yaml"
        rendered.write_text(yaml.safe_dump_all(render(*values, namespace=namespace.name)))
        done = kube_api.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(rendered))
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr


def test_every_pod_is_as_confined_as_the_restricted_standard_wants(render: Render) -> None:
    seen = 0
    for name, pod in pods(render()):
        seen += 1
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            }, name
            assert {"requests", "limits"} <= set(container["resources"]), name
            assert "cpu" not in container["resources"]["limits"], f"{name}: a throttled broker is a slow disk"
    assert seen == 8


def test_only_the_operator_and_the_keeper_have_a_token_and_the_operator_s_rights_are_few(render: Render) -> None:
    objects = render()
    for name, pod in pods(objects):
        known = name in ("demo-hapax-operator", "demo-hapax-certificates", "demo-hapax-etcd-keeper")
        assert pod.get("automountServiceAccountToken", True) == known, name
    rules = of(objects, "ClusterRole", "prod.demo-hapax-operator")["rules"]
    granted = {(group, kind, verb) for rule in rules for group in rule["apiGroups"] for kind in rule["resources"]
               for verb in rule["verbs"]}
    assert not {each for each in granted if "*" in each}
    assert {verb for group, _, verb in granted if group == "hapax.dev"} == {"get", "list", "watch", "patch"}
    assert {group for group, _, _ in granted} == {
        "", "hapax.dev", "events.k8s.io", "apiextensions.k8s.io", "storage.k8s.io"}
    assert {each for each in granted if not each[0]} == {("", "nodes", "get")}, "for racks: none are listed or watched"
    for rule in of(objects, "Role", "demo-hapax-brokers")["rules"]:
        named = set(rule.get("resourceNames", ["?"])) <= {"demo-hapax-broker", "demo-hapax-coordinator"}
        assert named or (rule["resources"], rule["verbs"]) in (
            (["brokerpools"], ["create"]), (["workloads"], ["create"]), (["events"], ["create", "get", "patch"]),
            # Admission policies leave it those of brokers and coordinators, and the sizes of brokers' claims.
            (["pods/eviction"], ["create"]), (["pods"], ["list", "watch", "delete"]),
            (["persistentvolumeclaims"], ["get", "list", "patch"]))
        assert rule["resources"] != ["statefulsets"] or "patch" not in rule["verbs"]
    narrow = render('operator.watchNamespaces=["team-a"]')
    cluster_wide = of(narrow, "ClusterRole", "prod.demo-hapax-operator")["rules"]
    assert [rule["resources"] for rule in cluster_wide] == [
        ["customresourcedefinitions"], ["brokerpools"], ["storageclasses"], ["nodes"], ["namespaces"]]
    assert cluster_wide[-1]["verbs"] == ["get"] and "team-a" in cluster_wide[-1]["resourceNames"]
    assert of(narrow, "Role", "prod.demo-hapax-operator")["metadata"]["namespace"] == "team-a"
    secrets = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "create", "patch", "delete"]}
    assert of(objects, "Role", "prod.demo-hapax-operator-users")["rules"] == [secrets], "none are listed or watched"
    assert of(objects, "Role", "prod.demo-hapax-operator-users")["metadata"]["namespace"] == "prod"
    elsewhere = [each for each in render('users.namespaces=["a","b"]') if each["metadata"]["name"].endswith("-users")]
    assert {(each["kind"], each["metadata"]["namespace"]) for each in elsewhere} == {
        ("Role", "a"), ("Role", "b"), ("RoleBinding", "a"), ("RoleBinding", "b")}
    assert not any(
        "spark" in each["metadata"]["name"] for each in objects if each["kind"] != "CustomResourceDefinition"
    ), "drivers' pods are wished for first"
    jobs = of(render("spark.enabled=true", 'spark.namespaces=["jobs"]'), "Role", "prod.demo-hapax-operator-spark")
    assert jobs["metadata"]["namespace"] == "jobs"
    assert jobs["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch", "create", "patch", "delete"]},
        {"apiGroups": [""], "resources": ["secrets", "services"], "verbs": ["create"]}], "no Secret is read"


def test_racks_come_from_the_nodes_label_that_the_values_name(render: Render) -> None:
    def brokers(*values: str) -> tuple[Any, str, list[str], bool]:
        objects = render(*values)
        pod = of(objects, "StatefulSet", "demo-hapax-broker")["spec"]["template"]["spec"]
        operator = of(objects, "Deployment", "demo-hapax-operator")["spec"]["template"]["spec"]["containers"][0]
        rules = of(objects, "ClusterRole", "prod.demo-hapax-operator")["rules"]
        words = operator["args"]
        return (environment(pod).get("HAPAX_BROKER_MACHINE"), pod["topologySpreadConstraints"][0]["topologyKey"],
                words[words.index("--rack-label"):][1:2] if "--rack-label" in words else [],
                any("nodes" in rule["resources"] for rule in rules))

    machine, zone = {"fieldRef": {"fieldPath": "spec.nodeName"}}, "topology.kubernetes.io/zone"
    assert brokers() == (machine, zone, [zone], True)
    assert brokers('broker.rack.topologyKey="example.com/row"') == (
        machine, "example.com/row", ["example.com/row"], True)
    assert brokers('broker.rack.topologyKey=""') == (None, zone, [], False)


def test_the_keeper_of_etcd_may_change_etcd_alone(render: Render) -> None:
    for rule in of(render(), "Role", "demo-hapax-etcd-keeper")["rules"]:
        named = {each.removeprefix("data-").rpartition("-etcd")[0] for each in rule.get("resourceNames", ())} == {
            "demo-hapax"}
        counted = {"get", "patch"} if rule["resources"] == ["events"] else set()
        assert named or set(rule["verbs"]) <= {"create", "list"} | counted, rule
        assert "secrets" not in rule["resources"]
    assert not [each for each in render(*EXTERNAL_ETCD) if "-etcd" in each["metadata"]["name"]]


def test_kubernetes_itself_replaces_no_pod_that_keeps_or_leads_something(render: Render) -> None:
    """With Parallel it may replace one while another is down."""
    found = [each["spec"] for each in render() if each["kind"] == "StatefulSet"]
    assert [each["updateStrategy"] for each in found] == [{"type": "OnDelete"}] * 3
    assert all(each["podManagementPolicy"] == "Parallel" for each in found)


def test_a_change_of_size_changes_no_pod_of_etcd(render: Render) -> None:
    one, three = (of(render(f"etcd.replicas={size}"), "StatefulSet", "demo-hapax-etcd") for size in (1, 3))
    assert one["spec"].pop("replicas") == 1 and three["spec"].pop("replicas") == 3
    assert one["spec"] == three["spec"], "members would restart, and be told of another cluster"
    size = {"hapax.dev/volume-size": "4Gi"}
    assert three["metadata"]["annotations"] == {"hapax.dev/replicas": "3", "hapax.dev/members": "3", **size}
    fewer = of(render("etcd.members=1"), "StatefulSet", "demo-hapax-etcd")["metadata"]["annotations"]
    assert fewer == {"hapax.dev/replicas": "3", "hapax.dev/members": "1", **size}


def policy(objects: list[dict[str, Any]]) -> NamespacePolicy:
    """As the operator reads it from the file that the chart gives it."""
    file = json.loads(of(objects, "ConfigMap", "demo-hapax-operator-access")["data"]["access.json"])
    return read_file(file).policy


def test_a_namespace_owns_what_begins_with_its_name_and_the_release_s_own_everything(render: Render) -> None:
    made = policy(render())
    assert made.owns("shop", ResourceType.TOPIC, "shop.orders") and made.owns_user("shop", "shop.app")
    for foreign in ("orders", "pay.orders", "shop-eu.orders"):
        assert not made.owns("shop", ResourceType.TOPIC, foreign) and not made.owns_user("shop", foreign)
        assert made.owns("prod", ResourceType.TOPIC, foreign) and made.owns_user("prod", foreign)
    changed = policy(render('namespacePolicy.rules=[{"names":["pay"],"topics":["orders"]}]'))
    assert changed.owns("pay", ResourceType.TOPIC, "orders")
    assert not changed.owns("shop", ResourceType.TOPIC, "shop.orders")
    opened = policy(render("namespacePolicy.enabled=false", 'namespacePolicy.reservedPrincipals=["User:root"]'))
    assert opened.owns("shop", ResourceType.TOPIC, "orders") and opened.is_reserved(Principal("User:root"))


def test_the_operator_is_told_where_clients_log_in(render: Render) -> None:
    objects = render('users.bootstrapServers="log.example:9093"', 'users.mechanisms=["SCRAM-SHA-256"]',
                     'users.caSecret="ca"', 'users.authoritySecret="clients"')
    file = json.loads(of(objects, "ConfigMap", "demo-hapax-operator-access")["data"]["access.json"])
    assert read_file(file).listeners == Listeners(
        "log.example:9093", "SASL_SSL", ("SCRAM-SHA-256",), "demo-hapax.prod.svc.cluster.local:9098",
        "/etc/hapax-ca/ca.crt", "/etc/hapax-clients-ca")
    pod = of(objects, "Deployment", "demo-hapax-operator")["spec"]["template"]["spec"]
    mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert mounts.keys() == volumes.keys()
    assert (mounts["ca"], mounts["clients-ca"]) == ("/etc/hapax-ca", "/etc/hapax-clients-ca")
    assert volumes["clients-ca"]["secret"]["secretName"] == "clients"
    none = json.loads(of(render(*OPEN), "ConfigMap", "demo-hapax-operator-access")["data"]["access.json"])
    assert read_file(none).listeners == Listeners()
    closed = json.loads(of(render(), "ConfigMap", "demo-hapax-operator-access")["data"]["access.json"])
    found = read_file(closed).listeners
    assert found.bootstrap == "demo-hapax.prod.svc.cluster.local:9092"
    assert found.ca_file == "/etc/hapax/client/clients-ca.crt"


def test_another_policy_starts_other_operators(render: Render) -> None:
    def annotations(*values: str) -> Any:
        return of(render(*values), "Deployment", "demo-hapax-operator")["spec"]["template"]["metadata"]["annotations"]

    assert annotations() != annotations("namespacePolicy.enabled=false")
    assert annotations('operator.podAnnotations={"a":"b"}') == annotations() | {"a": "b"}


@pytest.mark.parametrize(("role", "first", "module"), [
    ("broker", 0, "hapax.broker.main"), ("coordinator", 100, "hapax.coordinator.main"), ("pid", 200, "hapax.pid.main"),
    ("operator", 300, "hapax_operator.main"),
])
def test_a_pod_s_index_is_its_node_id_or_it_takes_a_free_one_and_its_settings_are_real(
    render: Render, role: str, first: int, module: str
) -> None:
    objects = render('settings={"num.partitions": 6}', f'{role}.settings={{"drain.timeout.ms": 7000}}')
    numbered = role in NUMBERED
    workload = of(objects, "StatefulSet" if numbered else "Deployment", f"demo-hapax-{role}")
    assert workload["spec"].get("ordinals") == ({"start": first} if numbered else None)
    pod = workload["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"][-1] == module
    given = environment(pod)
    texts = {name: value.replace("$(POD_NAME)", f"demo-hapax-{role}-{first}").replace("$(POD_IP)", "10.1.2.3")
             for name, value in given.items() if isinstance(value, str)}
    if numbered:
        assert given["HAPAX_NODE_ID"] == {"fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}}
        texts["HAPAX_NODE_ID"] = str(first)
    else:
        assert given["POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    settings = load(environment=texts)
    assert (settings.node_id, settings.num_partitions, settings.drain_timeout_ms) == (first, 6, 7000)
    assert settings.node_id_generation_enable != numbered
    assert settings.rpc_advertised == (
        f"demo-hapax-{role}-{first}.demo-hapax-{role}.prod.svc.cluster.local:9094" if numbered else "10.1.2.3:9094")
    host = f"demo-hapax-{role}-{first}.demo-hapax-{role}.prod.svc.cluster.local" if numbered else "10.1.2.3"
    told = "" if numbered else f"demo-hapax-{role}.prod.svc.cluster.local@"
    assert settings.public_rpc_advertised == f"{told}{host}:9096"
    assert settings.frames_advertised == (f"{host}:9097" if numbered else None)
    named = {port["name"]: port["containerPort"] for port in pod["containers"][0]["ports"]}
    assert (named["rpc"], named["public-rpc"], named.get("frames")) == (9094, 9096, 9097 if numbered else None)
    assert len(settings.etcd_addresses) == 3
    service = of(objects, "Service", f"demo-hapax-{role}")
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    assert service["spec"]["selector"].items() <= workload["spec"]["template"]["metadata"]["labels"].items()


def test_a_pod_has_longer_to_end_than_a_node_takes_to_drain(render: Render) -> None:
    for name, pod in pods(render()):
        if name.removeprefix("demo-hapax-") in ("broker", "coordinator", "pid", "operator"):
            assert pod["terminationGracePeriodSeconds"] * 1000 >= load().drain_timeout_ms + 10_000, name


@pytest.mark.parametrize(("values", "inside", "outside"), [
    ((), "9092", None),
    (('external.enabled=true', 'external.host="203.0.113.9"', 'external.firstNodePort=31000'), "9092",
     "203.0.113.9:{}"),
    (('external.enabled=true', 'external.type="LoadBalancer"', 'external.domain="log.example.com"'), "9092",
     "{}.log.example.com:9095"),
    (('external.enabled=true', 'external.type="LoadBalancer"', 'external.hostTemplate="x-{pod}.example"',
      "external.port=9443", "external.perNode=false"), "9092", "x-{}.example:9443"),
    (('external.enabled=true', 'external.type="TLSRoute"', 'external.domain="log.example.com"',
      'external.gateway={"name":"edge"}'), "9092", "{}.log.example.com:443"),
    (('external.enabled=true', 'external.type="Ingress"', 'external.domain="log.example.com"'), "9092",
     "{}.log.example.com:443"),
])
def test_clients_inside_and_outside_are_told_addresses_of_their_own(
    render: Render, values: tuple[str, ...], inside: str, outside: str | None
) -> None:
    objects = render(*values)
    services = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "Service"}
    for role, node_id in (("broker", 2), ("coordinator", 101)):
        workload = of(objects, "StatefulSet", f"demo-hapax-{role}")
        name = f"demo-hapax-{role}-{node_id}"
        texts = {each: value.replace("$(POD_NAME)", name)
                 for each, value in environment(workload["spec"]["template"]["spec"]).items() if isinstance(value, str)}
        settings = load(environment={**texts, "HAPAX_NODE_ID": str(node_id)})
        told = settings.advertised_kafka(settings.kafka_addresses)
        assert str(told["INTERNAL"]) == f"{name}.demo-hapax-{role}.prod.svc.cluster.local:9093"
        assert str(told["CLIENTS"]) == f"{name}.demo-hapax-{role}.prod.svc.cluster.local:{inside}"
        assert str(told["CERTIFICATES"]) == f"{name}.demo-hapax-{role}.prod.svc.cluster.local:9098"
        if outside is None:
            assert list(told) == ["INTERNAL", "CLIENTS", "CERTIFICATES"] and f"{name}-external" not in services
            continue
        service = services[f"{name}-external"]
        assert service["selector"]["apps.kubernetes.io/pod-index"] == str(node_id)
        assert service["ports"][0]["targetPort"] == "external"
        port = service["ports"][0].get("nodePort")
        assert str(told["EXTERNAL"]) == outside.format(port or name)
    ports = [spec["ports"][0].get("nodePort") for spec in services.values() if "nodePort" in spec["ports"][0]]
    assert len(set(ports)) == len(ports)
    if outside is not None:
        assert services["demo-hapax-external"]["selector"]["app.kubernetes.io/component"] == "broker"
        policy = of(objects, "NetworkPolicy", "demo-hapax-broker")
        assert 9095 in [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]]


def test_updates_and_evictions_wait_until_a_broker_has_caught_up(render: Render) -> None:
    objects = render()
    for role, path in (("broker", "/syncz"), ("coordinator", "/readyz")):
        spec = of(objects, "StatefulSet", f"demo-hapax-{role}")["spec"]
        assert spec["updateStrategy"] == {"type": "OnDelete"} and spec["minReadySeconds"] == 5
        assert of(objects, "StatefulSet", "demo-hapax-etcd")["spec"]["minReadySeconds"] == 30
        assert spec["podManagementPolicy"] == "Parallel"  # all at once after an outage: none is ready alone
        pod = spec["template"]["spec"]
        container = pod["containers"][0]
        assert container["readinessProbe"]["httpGet"]["path"] == path
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
        before = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        settings = load(environment={
            each: value for each, value in environment(pod).items() if isinstance(value, str)})
        assert settings.shutdown_linger_ms == 5_000  # a group's member and a Java client call every 3 s
        assert pod["terminationGracePeriodSeconds"] * 1000 >= (
            before * 1000 + settings.drain_timeout_ms + settings.shutdown_linger_ms + 10_000)
        budget = of(objects, "PodDisruptionBudget", f"demo-hapax-{role}")["spec"]
        assert budget["maxUnavailable"] == 1


@pytest.mark.parametrize(("value", "word"), [("soft", "preferred"), ("hard", "required")])
def test_pods_of_one_role_keep_apart_as_much_as_is_wanted(render: Render, value: str, word: str) -> None:
    workloads = [each for each in render(f'antiAffinity="{value}"')
                 if each["kind"] in WORKLOADS
                 and each["metadata"]["name"] not in ("demo-hapax-certificates", "demo-hapax-etcd-keeper")]
    assert len(workloads) == 5
    for each in workloads:
        if each["kind"] == "Deployment":  # apart at any price: there may be no machine left for one more
            assert each["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == (1 if value == "soft" else 0)
        template = each["spec"]["template"]
        ((kind, (term,)),) = template["spec"]["affinity"]["podAntiAffinity"].items()
        assert kind == f"{word}DuringSchedulingIgnoredDuringExecution"
        term = term.get("podAffinityTerm", term)
        assert term["topologyKey"] == "kubernetes.io/hostname"
        labels = term["labelSelector"]["matchLabels"]
        assert labels.items() <= template["metadata"]["labels"].items() and "app.kubernetes.io/component" in labels


def test_pods_that_keep_nothing_do_not_wait_for_a_machine_that_is_gone(render: Render) -> None:
    away = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    workloads = [each for each in render('admin.enabled=true', 'admin.auth="none"') if each["kind"] in WORKLOADS]
    for each in workloads:
        seconds = {toleration["key"]: toleration["tolerationSeconds"]
                   for toleration in each["spec"]["template"]["spec"]["tolerations"]}
        assert seconds == (dict.fromkeys(away, 30) if each["kind"] == "Deployment" else {}), each["metadata"]["name"]
    assert sum(each["kind"] == "Deployment" for each in workloads) == 5


def test_the_brokers_number_is_never_the_manifest_s(render: Render) -> None:
    """Else an upgrade, or going back to an older release, would delete brokers at once."""
    broker = of(render("broker.replicas=5"), "StatefulSet", "demo-hapax-broker")
    assert "replicas" not in broker["spec"] and broker["metadata"]["annotations"]["hapax.dev/replicas"] == "5"
    assert of(render("coordinator.replicas=5"), "StatefulSet", "demo-hapax-coordinator")["spec"]["replicas"] == 5


def test_records_outlive_the_release(render: Render) -> None:
    objects = render()
    for name in ("broker", "etcd"):
        spec = of(objects, "StatefulSet", f"demo-hapax-{name}")["spec"]
        assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
        assert spec["volumeClaimTemplates"][0]["spec"]["accessModes"] == ["ReadWriteOnce"]
    for each in objects:
        if each["kind"] == "CustomResourceDefinition":
            assert each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_budgets_meet_the_pods_that_they_mean(render: Render) -> None:
    objects = render()
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in objects if each["kind"] in WORKLOADS]
    budgets = [each for each in objects if each["kind"] == "PodDisruptionBudget"]
    assert len(budgets) == 5
    for budget in budgets:
        selector = budget["spec"]["selector"]["matchLabels"]
        assert sum(selector.items() <= each.items() for each in labels) == 1


def test_every_value_is_described_and_no_other_is_taken(helm: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def walk(value: Any, about: dict[str, Any], path: str) -> Iterator[str]:
        if "$ref" in about:
            about = schema["$defs"][about["$ref"].removeprefix("#/$defs/")]
        if not about.get("description") and path:
            yield f"{path} is not described"
        if isinstance(value, dict) and "properties" in about:
            if about.get("additionalProperties") is not False:
                yield f"{path} takes any key"
            for name, inner in value.items():
                yield from walk(inner, about["properties"].get(name, {}), f"{path}.{name}")

    assert list(walk(values, schema, "")) == []
    for bad in ("broker.replicas=0", 'clusterId="a/b"', "etcd.replicas=2", "brokers.replicas=1", 'image.pullPolicy="X"',
                'broker.settings={"Num": 1}'):
        done = helm("template", RELEASE, str(CHART), "--set-json", bad)
        assert done.returncode != 0, bad
    lacking = helm("template", RELEASE, str(CHART), "--set",
                   "external.enabled=true,external.type=LoadBalancer,external.perNode=false")
    assert "external.domain (each pod's name below it leads to its own) or" in lacking.stderr
    assert "must name an etcd" in helm("template", RELEASE, str(CHART), "--set", "etcd.enabled=false").stderr


def test_the_dashboard_and_the_alerts_are_installed_where_they_are_asked_for(render: Render) -> None:
    kinds = ("PrometheusRule", "ConfigMap")
    plain = [each["metadata"]["name"] for each in render() if each["kind"] in kinds]
    assert "demo-hapax-dashboard" not in plain and "demo-hapax" not in plain
    objects = render(
        "monitoring.dashboard.enabled=true", "monitoring.rules.enabled=true", 'monitoring.rules.labels={"team": "a"}')
    board = of(objects, "ConfigMap", "demo-hapax-dashboard")
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    files = CHART / "files" / "monitoring"
    assert json.loads(board["data"]["hapax.json"]) == json.loads((files / "dashboard.json").read_text())
    rule = of(objects, "PrometheusRule", "demo-hapax")
    assert rule["metadata"]["labels"]["team"] == "a"
    assert rule["spec"] == yaml.safe_load((files / "rules.yaml").read_text()), "braces of alerts are not the chart's"


def test_prometheus_finds_the_metrics_of_every_node_and_no_port_twice(render: Render) -> None:
    assert not [each for each in render() if each["kind"] == "ServiceMonitor"]
    objects = render('serviceMonitor.enabled=true', 'serviceMonitor.labels={"team": "a"}', 'external.enabled=true')
    monitor = of(objects, "ServiceMonitor", "demo-hapax")
    assert monitor["metadata"]["labels"]["team"] == "a"
    nodes, keeper = monitor["spec"]["endpoints"]
    (rule,) = monitor["spec"]["selector"]["matchExpressions"]
    for endpoint, port, roles in (
        (nodes, "http", ("broker", "coordinator", "operator", "pid")), (keeper, "keeper", ("etcd-keeper",)),
    ):
        assert (endpoint["port"], endpoint["path"]) == (port, "/metrics")
        found = [
            each["metadata"]["name"] for each in objects
            if each["kind"] == "Service" and each["metadata"]["labels"].get(rule["key"]) in rule["values"]
            and any(port["name"] == endpoint["port"] for port in each["spec"]["ports"])]
        assert sorted(found) == [f"demo-hapax-{role}" for role in roles]


def images(objects: list[dict[str, Any]]) -> set[str]:
    found = set()
    for each in objects:
        spec = each.get("spec", {})
        pod = spec if each["kind"] == "Pod" else spec.get("template", {}).get("spec", {})
        found |= {made["image"] for kind in ("containers", "initContainers") for made in pod.get(kind) or ()}
    return found


def test_an_image_is_never_someone_else_s(
    render: Render, helm: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    refused = helm("template", RELEASE, str(CHART), "--set", "image.registry=")
    assert "the image hapax has no registry" in refused.stderr and "set image.registry" in refused.stderr
    assert "or image.pullPolicy=Never if it is loaded on every node" in refused.stderr  # as before an upgrade
    named = helm("template", RELEASE, str(CHART), "--set", "image.repository=team/hapax")
    assert "the image team/hapax has no registry" in named.stderr
    everything = ("load.enabled=true", "admin.enabled=true", 'admin.tokensSecret="t"', 'image.tag="1"')
    for values, names in (
        (('image.registry="localhost:5000/team"',), ("localhost:5000/team/hapax", "localhost:5000/team/hapax-load")),
        (('image.repository="quay.example/x"',), ("quay.example/x", "quay.example/x-load")),
        (('image.repository="localhost/x"', 'load.image.repository="y.example/z"'), ("localhost/x", "y.example/z")),
        (('image.registry=""', 'image.pullPolicy="Never"'), ("hapax", "hapax-load")),
    ):
        found = images(render(*everything, *values)) - {"registry.k8s.io/etcd:3.6.16-0"}
        assert found == {f"{name}:1" for name in names}


def test_a_driver_s_account_is_the_release_s(render: Render) -> None:
    objects = render("spark.enabled=true")
    words = of(objects, "Deployment", "demo-hapax-operator")["spec"]["template"]["spec"]["containers"][0]["args"]
    account = words[words.index("--spark-account") + 1]
    assert of(objects, "ServiceAccount", account)["metadata"]["namespace"] == "demo-hapax-spark-prod"


def test_the_notes_say_what_to_do_next(helm: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    said = helm("install", RELEASE, str(CHART), "--namespace", "prod", "--dry-run=client", "--set",
                "external.enabled=true,broker.replicas=1,etcd.replicas=1").stdout
    notes = said[said.index("NOTES:"):]
    for sentence in (
        "demo-hapax.prod.svc.cluster.local:9092", "--for=condition=Ready --timeout=5m brokerpool/demo-hapax-broker",
        "scale brokerpool/demo-hapax-broker", "demo-hapax-external, port 30200 of any machine",
        "the loss of one disk can lose records", "etcd has a single member", "replicationFactor: 1",
        "get secret demo-hapax-admin", "no certificate names these: set tls.names",
    ):
        assert sentence in notes, notes
    assert "security.enabled is false" not in notes
    said = helm("install", RELEASE, str(CHART), "--dry-run=client", "--set", "security.enabled=false").stdout
    assert "every client that reaches a port may do everything" in said and "demo-hapax-admin" not in said


def test_the_inner_loop_builds_and_installs_what_is_here(helm: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    loop = yaml.safe_load((ROOT / "skaffold.yaml").read_text())
    (image,) = loop["build"]["artifacts"]
    assert (ROOT / image["docker"]["dockerfile"]).is_file()
    (release,) = loop["deploy"]["helm"]["releases"]
    values = {**release["setValues"], **release["setValueTemplates"]}
    name = image["image"].replace("/", "_")
    built = {f"{{{{.IMAGE_REPO_{name}}}}}": image["image"], f"{{{{.IMAGE_TAG_{name}}}}}": "built"}
    sets = [word for name, value in values.items() for word in ("--set", f"{name}={built.get(value, value)}")]
    done = helm("template", release["name"], str(ROOT / release["chartPath"]), *sets)
    assert done.returncode == 0, done.stderr
    names = {each["metadata"]["name"] for each in yaml.safe_load_all(done.stdout) if each and each["kind"] == "Service"}
    assert {each["resourceName"] for each in loop["portForward"]} <= names


def test_the_operator_works_with_the_chart_s_rights_alone(
    kube_api: KubeApi, namespace: Namespace, render: Render, start_operator: Callable[..., OperatorProcess],
    tmp_path: Path,
) -> None:
    """Under the account that the chart makes, bound to the roles that the chart makes."""
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    rights = tmp_path / "rights.yaml"
    rights.write_text(yaml.safe_dump_all(
        each for each in render(
            f'operator.watchNamespaces=["{namespace.name}"]', "spark.enabled=true",
            f'spark.namespaces=["{namespace.name}"]', namespace=namespace.name)
        if each["kind"] in kinds))
    done = kube_api.kubectl("apply", "-f", str(rights))
    assert done.returncode == 0, done.stderr
    access = tmp_path / "access.json"
    access.write_text(json.dumps({
        "namespaces": [{"names": ["*"], "topics": ["*"], "transactionalIds": ["*"], "users": ["*"]}],
        "clients": {"bootstrapServers": "none:1"}}))
    start_operator(
        namespace, kubeconfig=kube_api.kubeconfig_of(namespace.name, "demo-hapax-operator"),
        more=["--access", str(access)])
    namespace.topic("least", topicName=f"least-{namespace.name}", deletionPolicy="Delete")
    wait_until(lambda: namespace.ready("least"), "ready topic", 60)
    assert "TopicCreated" in namespace.events()
    namespace.producer(
        "job", transactionalId=f"job-{namespace.name}",
        spark={"image": "none", "job": "jobs.one", "checkpoint": {"ephemeral": True}, "suspend": True})
    wait_until(lambda: namespace.condition(PRODUCERS, "job", "SparkRunning")[1] == "Suspended", "a look at the job", 60)
    namespace.patch(PRODUCERS, "job", spark={"suspend": False})
    kubelet = Kubelet(kube_api, namespace.name)

    def runs() -> bool:
        kubelet.tick()
        return namespace.condition(PRODUCERS, "job", "SparkRunning")[0] == "True"

    wait_until(runs, "a run", 60)
    namespace.delete(PRODUCERS, "job")
    wait_until(lambda: kubelet.tick() is None and not namespace.exists(PRODUCERS, "job"), "end of the job", 60)
    kubelet.close()
    namespace.user("app", acls=[{"type": "Topic", "name": "t", "operations": ["Read"]}])
    wait_until(lambda: namespace.condition("users", "app", "CredentialInForce")[1] == "InSecret", "a Secret", 60)
    assert namespace.secret("app")["username"] == f"{namespace.name}.app"
    namespace.delete("users", "app")
    wait_until(lambda: not namespace.exists("users", "app") and not namespace.secret("app"), "end of the user", 60)
    namespace.delete("topics", "least")
    wait_until(lambda: not namespace.exists("topics", "least"), "end of the resource", 30)
    kube_api.kubectl("delete", "-f", str(rights))
