"""Mirrors against a real API server; the test plays what runs pods, and the copiers in them."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hapax_kube.answering import answering
from hapax_kube.api import KubeApi
from hapax_kube.binaries import ROOT
from hapax_kube.copiers import Copiers
from hapax_kube.operator import Namespace, OperatorProcess
from hapax_operator.mirror_pods import METRICS_PORT
from integration.waiting import wait_until

pytestmark = pytest.mark.timeout(240)

MIRRORS = "mirrors"
Start = Callable[..., OperatorProcess]
OWN = ["{namespace}.*", "hapax-copy.{namespace}.*"]
ACCESS = {
    "namespaces": [{"names": ["*"], "topics": OWN, "groups": OWN, "transactionalIds": OWN, "users": OWN}],
    "copiers": {"bootstrapServers": "hapax.home.svc:9092", "image": "hapax:1", "imagePullPolicy": "Never"}}


@pytest.fixture
def told() -> list[Any]:
    """What each copier reports: its last item."""
    return [None]


@pytest.fixture
def copiers(namespace: Namespace, told: list[Any]) -> Iterator[Copiers]:
    with answering(METRICS_PORT, lambda: told[-1]) as address:
        made = Copiers(namespace.api, namespace.name, address)
        yield made
        made.close()


def access(folder: Path) -> list[str]:
    path = folder / "access.json"
    path.write_text(json.dumps(ACCESS))
    return ["--access", str(path)]


@pytest.fixture
def operator(start_operator: Start, namespace: Namespace, tmp_path: Path) -> OperatorProcess:
    return start_operator(namespace, more=access(tmp_path))


def mirror(namespace: Namespace, name: str = "orders", **spec: Any) -> None:
    namespace.mirror(name, **{
        "source": {"bootstrapServers": "old:9092"}, "topics": [f"{namespace.name}.{name}"], **spec})


def report(records: int, *topics: dict[str, Any], started: int = 1_767_225_600_000) -> dict[str, Any]:
    return {"startedMs": started, "records": records, "sourceError": "", "matching": len(topics),
            "topics": list(topics)}


def topic(name: str, lag: int = 0, **more: Any) -> dict[str, Any]:
    return {"name": name, "partitions": 2, "lagRecords": lag, "lagMs": lag * 100, "kind": "", "error": "", **more}


def until(
    copiers: Copiers, namespace: Namespace, reason: str, name: str = "orders", kind: str = "Ready"
) -> dict[str, Any]:
    """The status, once the condition has the reason."""
    def look() -> bool:
        copiers.tick()
        return namespace.condition(MIRRORS, name, kind)[1] == reason

    try:
        wait_until(look, reason, 90)
    except AssertionError:
        raise AssertionError(namespace.get(MIRRORS, name).get("status")) from None
    return namespace.get(MIRRORS, name)["status"]  # type: ignore[no-any-return]


def until_status(namespace: Namespace, done: Callable[[dict[str, Any]], bool], what: str, name: str = "orders") -> None:
    wait_until(lambda: done(namespace.get(MIRRORS, name)["status"]), what, 60)


def test_a_mirror_copies_and_shows_how_far_it_is_and_what_holds_it_up(
    namespace: Namespace, operator: OperatorProcess, copiers: Copiers, told: list[Any]
) -> None:
    mirror(namespace, prefix=f"{namespace.name}.", topics=["orders"])
    status = until(copiers, namespace, "NoReport")
    assert status["group"] == f"hapax-copy.{namespace.name}.orders" and status["target"] == "hapax.home.svc:9092"
    assert copiers.deployment("orders")["spec"]["template"]["spec"]["containers"][0]["image"] == "hapax:1"
    told.append(report(7, topic("orders", 30)))
    status = until(copiers, namespace, "Copying")
    assert (status["lag"], status["recordsCopied"], status["readyReplicas"]) == ({"records": 30, "seconds": 3}, 7, 1)
    assert status["topics"][0]["target"] == f"{namespace.name}.orders"
    told.append(report(9, topic("orders", 0)))
    until_status(namespace, lambda now: now["lag"] == {"records": 0, "seconds": 0} and now["recordsCopied"] == 9, "lag")

    told.append(report(9, topic("orders", 4, kind="lost", error="orders-0: the source has removed records")))
    status = until(copiers, namespace, "Lost", kind="Blocked")
    assert namespace.condition(MIRRORS, "orders") == ("False", "Blocked")
    assert status["topics"][0]["blocked"] and "has removed records" in status["topics"][0]["error"]
    told.append({**report(9, topic("orders", 4)), "sourceError": "nobody answers"})
    until(copiers, namespace, "SourceUnreachable")
    assert {"Copying", "Lost", "SourceUnreachable"} & namespace.events() == {"Copying", "SourceUnreachable"}
    assert "Blocked" in namespace.events()


def test_copiers_are_what_the_mirror_says_whoever_changed_them(
    namespace: Namespace, operator: OperatorProcess, copiers: Copiers, told: list[Any]
) -> None:
    told.append(report(1, topic("orders")))
    mirror(namespace, replicas=2)
    until(copiers, namespace, "Copying")
    path = f"/apis/apps/v1/namespaces/{namespace.name}/deployments/orders-mirror"
    namespace.api.patch(path, {"spec": {"replicas": 5}})
    wait_until(lambda: copiers.deployment("orders")["spec"]["replicas"] == 2, "two copiers", 60)
    namespace.patch(MIRRORS, "orders", topics=[f"{namespace.name}.*"], onLost="Skip")
    wait_until(lambda: "skip" in copiers.arguments("orders"), "another command line", 60)
    assert any(each.endswith(".*") for each in copiers.arguments("orders"))
    namespace.api.patch(namespace.path(MIRRORS, "orders") + "/scale", {"spec": {"replicas": 3}})
    wait_until(lambda: copiers.deployment("orders")["spec"]["replicas"] == 3, "three copiers", 60)

    namespace.annotate(MIRRORS, "orders", pause="true")
    until(copiers, namespace, "Annotated", kind="Paused")
    namespace.api.patch(path, {"spec": {"replicas": 1}})
    namespace.annotate(MIRRORS, "orders", look="1")
    until_status(namespace, lambda now: now["replicas"] == 3, "a look before the tick")
    assert copiers.deployment("orders")["spec"]["replicas"] == 1
    namespace.annotate(MIRRORS, "orders", pause=None)
    wait_until(lambda: copiers.deployment("orders")["spec"]["replicas"] == 3, "three copiers again", 60)

    namespace.patch(MIRRORS, "orders", suspend=True)
    until(copiers, namespace, "Suspended")
    assert copiers.deployment("orders")["spec"]["replicas"] == 0
    namespace.delete(MIRRORS, "orders")
    wait_until(lambda: not namespace.api.exists(path), "end of the Deployment", 60)


def test_a_copier_that_does_not_come_up_says_why(
    namespace: Namespace, operator: OperatorProcess, copiers: Copiers
) -> None:
    copiers.come_up = False
    mirror(namespace)
    status = until(copiers, namespace, "CopiersNotReady")
    wait_until(lambda: "the login failed" in namespace.get(MIRRORS, "orders")["status"]["conditions"][0]["message"],
               "the reason", 60)
    assert status["readyReplicas"] == 0


def test_a_mirror_writes_only_what_its_namespace_owns_and_what_no_older_one_writes(
    namespace: Namespace, operator: OperatorProcess, copiers: Copiers, told: list[Any]
) -> None:
    told.append(report(1, topic("orders")))
    mirror(namespace, "foreign", topics=["other.orders"])
    until(copiers, namespace, "OutsidePolicy", "foreign")
    assert not namespace.api.exists(f"/apis/apps/v1/namespaces/{namespace.name}/deployments/foreign-mirror")
    mirror(namespace, "some", topics=[f"{namespace.name}.a*"])
    mirror(namespace, "one", topics=[f"{namespace.name}.abc"])
    older, younger = sorted(("some", "one"), key=lambda name: age(namespace, name))  # both may be of one second
    until(copiers, namespace, "Copying", older)
    until(copiers, namespace, "ResourceConflict", younger)
    assert {"OutsidePolicy", "ResourceConflict"} <= namespace.events()
    namespace.delete(MIRRORS, older)
    until(copiers, namespace, "Copying", younger)
    namespace.patch(MIRRORS, younger, topics=["other.orders"])
    until(copiers, namespace, "OutsidePolicy", younger)
    assert copiers.deployment(younger)["spec"]["replicas"] == 0


def age(namespace: Namespace, name: str) -> tuple[str, str]:
    metadata = namespace.get(MIRRORS, name)["metadata"]
    return metadata["creationTimestamp"], metadata["uid"]


def test_the_chart_s_rights_suffice_and_reach_no_deployment_of_others(
    kube_api: KubeApi, namespace: Namespace, start_operator: Start, copiers: Copiers, told: list[Any],
    render: Callable[..., list[dict[str, Any]]], tmp_path: Path,
) -> None:
    """Under the account that the chart makes, with its admission policies. The release has a namespace of its own."""
    home = f"home-{uuid.uuid4().hex[:8]}"
    kube_api.create("/api/v1/namespaces", {"metadata": {"name": home}})
    applied = tmp_path / "objects.yaml"
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding",
             "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    applied.write_text(yaml.safe_dump_all(each for each in render(
        f'mirrors.namespaces=["{namespace.name}"]', 'operator.watchNamespaces=["none"]', namespace=home)
        if each["kind"] in kinds and each["metadata"].get("namespace") != "none"))
    done = kube_api.kubectl("apply", "-f", str(applied))
    assert done.returncode == 0, done.stderr
    account = kube_api.kubeconfig_of(home, "demo-hapax-operator")

    def asked(*words: str) -> str:
        done: subprocess.CompletedProcess[str] = kube_api.kubectl(
            f"--kubeconfig={account}", "-n", namespace.name, *words, "--dry-run=server")
        return done.stderr

    try:
        start_operator(namespace, kubeconfig=account, more=access(tmp_path))
        told.append(report(1, topic("orders")))
        mirror(namespace)
        until(copiers, namespace, "Copying")
        own = copiers.deployment("orders")
        (tmp_path / "foreign.json").write_text(json.dumps({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "foreign"}, "spec": own["spec"]}))
        wait_until(lambda: "Deployments of Mirrors alone" in asked("create", "-f", str(tmp_path / "foreign.json")),
                   "the policy", 60, every_s=0.3)
        assert kube_api.kubectl("-n", namespace.name, "create", "-f", str(tmp_path / "foreign.json")).returncode == 0
        scaled = ("patch", "deployment", "--type=merge", "-p", '{"spec":{"replicas":0}}')
        assert "Deployments of Mirrors alone" in asked(*scaled, "foreign")
        assert asked(*scaled, "orders-mirror") == ""
        namespace.patch(MIRRORS, "orders", podTemplate={"spec": {"hostNetwork": True}})
        until(copiers, namespace, "Refused")
        assert "copiers get nothing of their machine" in json.dumps(namespace.get(MIRRORS, "orders")["status"])
    finally:
        kube_api.kubectl("delete", "--wait=false", "-f", str(applied))
        kube_api.delete(f"/api/v1/namespaces/{home}")


def test_mirrors_have_namespaces_of_their_own(
    helm: Callable[..., subprocess.CompletedProcess[str]], render: Callable[..., list[dict[str, Any]]]
) -> None:
    words = ("template", "demo", str(ROOT / "charts" / "hapax"), "--namespace", "prod")
    refused = helm(*words, "--set-json", 'mirrors.namespaces=["prod"]')
    assert "has those of the cluster: choose another" in refused.stderr
    told = "operator-mirrors"
    assert told not in json.dumps(render())
    objects = render('mirrors.namespaces=["shop"]', "serviceMonitor.enabled=true", 'operator.watchNamespaces=["web"]',
                     'networkPolicy.clients=[{"podSelector": {}}]')
    roles = [each for each in objects if each["kind"] == "Role" and each["metadata"]["name"].endswith(told)]
    assert [each["metadata"]["namespace"] for each in roles] == ["shop"]
    assert "secrets" not in {kind for rule in roles[0]["rules"] for kind in rule["resources"]}
    (monitor,) = (each for each in objects if each["kind"] == "PodMonitor")
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["shop"]}
    (operator,) = (each for each in objects if each["kind"] == "Deployment" and each["metadata"]["name"] ==
                   "demo-hapax-operator")
    assert "shop" in operator["spec"]["template"]["spec"]["containers"][0]["args"], "it watches it"
    policies = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "NetworkPolicy"}
    assert {"ports": [{"port": METRICS_PORT, "protocol": "TCP"}]} in policies["demo-hapax-operator"]["egress"]
    assert "hapax-copy" in json.dumps(policies["demo-hapax-broker"]["ingress"])
    (config,) = (each for each in objects if each["metadata"]["name"] == "demo-hapax-operator-access")
    assert json.loads(config["data"]["access.json"])["copiers"] == {
        "bootstrapServers": "demo-hapax.prod.svc.cluster.local:9092", "imagePullPolicy": "IfNotPresent",
        "image": f"registry.example/hapax:{CHART['appVersion']}", "imagePullSecrets": []}


CHART = yaml.safe_load((ROOT / "charts" / "hapax" / "Chart.yaml").read_text())
