"""Two releases in one Kubernetes cluster: each operator acts on its own resources, and no two objects share a name."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import end_cluster, start_cluster
from hapax.client.blocking import Admin
from hapax.local.cluster import LocalCluster
from hapax_kube.binaries import ROOT
from hapax_kube.operator import Namespace, OperatorProcess, readiness
from integration.etcd_process import free_ports
from integration.waiting import wait_until

CHART = ROOT / "charts" / "hapax"
TOPICS, PRODUCERS, USERS = "topics", "transactionalproducers", "users"
LABEL = "hapax.dev/cluster"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = start_cluster(tmp_path_factory.mktemp("other"), brokers=1)
    yield cluster
    end_cluster(cluster)


def topics(cluster: LocalCluster) -> dict[str, int]:
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        return {each.name: len(each.partitions) for each in admin.list_topics()}


def label(namespace: Namespace, plural: str, name: str, cluster: str) -> None:
    namespace.api.patch(namespace.path(plural, name), {"metadata": {"labels": {LABEL: cluster}}})


def pool(namespace: Namespace, release: str) -> None:
    namespace.api.create(namespace.path("brokerpools"), {
        "apiVersion": "hapax.dev/v1alpha1", "kind": "BrokerPool", "metadata": {"name": f"{release}-broker"},
        "spec": {"replicas": 1}})


def test_an_operator_that_may_not_look_for_other_clusters_is_not_ready(
    namespace: Namespace, start_operator: Callable[..., OperatorProcess]
) -> None:
    """It reconciles nothing, which a release that is installed must not pass over."""
    api, account = namespace.api, "watcher"
    api.create(f"/api/v1/namespaces/{namespace.name}/serviceaccounts", {"metadata": {"name": account}})
    (port,) = free_ports(1)
    start_operator(namespace, kubeconfig=api.kubeconfig_of(namespace.name, account), more=(
        "--cluster", f"{namespace.name}.one", "--set", f"http.listen=127.0.0.1:{port}"))
    wait_until(lambda: "has not been asked for other clusters" in readiness(port), "process that is not ready", 60)
    given = f"{namespace.name}-watcher"
    done = api.kubectl("create", "clusterrolebinding", given, "--clusterrole=cluster-admin",
                       f"--serviceaccount={namespace.name}:{account}")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: readiness(port) == "", "process that is ready", 60)
    api.kubectl("delete", "clusterrolebinding", given)


def test_each_operator_acts_on_its_own(
    namespace: Namespace, hapax: LocalCluster, other: LocalCluster, start_operator: Callable[..., OperatorProcess],
    tmp_path: Path,
) -> None:
    one, two = f"{namespace.name}.one", f"{namespace.name}.two"
    every = "/apis/hapax.dev/v1alpha1/brokerpools"
    wait_until(lambda: not namespace.api.get(every)["items"], "end of other tests' clusters", 60)
    pool(namespace, "one")
    first = start_operator(namespace, more=["--cluster", one])
    namespace.topic("alone", topicName="alone", partitions=1)
    wait_until(lambda: namespace.ready("alone"), "topic of the only cluster", 60)
    assert namespace.get(TOPICS, "alone")["status"]["cluster"] == one

    pool(namespace, "two")
    first.kill()
    first.start()  # it looks at once
    second = OperatorProcess(
        other, namespace.api.kubeconfig, namespace.name, 311, tmp_path / "second", more=["--cluster", two])
    second.start()
    try:
        namespace.topic("whose", topicName="whose", partitions=1)
        namespace.producer("id", transactionalId="id")
        namespace.user("app")
        for plural, name in ((TOPICS, "whose"), (PRODUCERS, "id"), (USERS, "app")):
            wait_until(lambda: namespace.condition(plural, name) == ("False", "ClusterNotNamed"), f"{plural}", 60)  # noqa: B023
        (asked,) = namespace.get(TOPICS, "whose")["status"]["conditions"]
        assert f"{one}, {two}" in asked["message"] and "cluster" not in namespace.get(TOPICS, "whose")["status"]
        for resource, cluster, partitions in (("mine", one, 2), ("theirs", two, 3)):
            namespace.topic(resource, topicName="shared", partitions=partitions, managed=False)
            label(namespace, TOPICS, resource, cluster)
            namespace.patch(TOPICS, resource, managed=True)
        label(namespace, TOPICS, "whose", two)
        label(namespace, PRODUCERS, "id", two)
        namespace.patch(TOPICS, "alone", partitions=4)
        for name in ("mine", "theirs", "whose", "alone"):
            wait_until(lambda: namespace.ready(name), f"topic {name}", 60)  # noqa: B023
        wait_until(lambda: namespace.condition(PRODUCERS, "id")[0] == "True", "the id", 60)
        assert topics(hapax) == {**topics(hapax), "shared": 2, "alone": 4} and "whose" not in topics(hapax)
        assert topics(other) == {**topics(other), "shared": 3, "whose": 1} and "alone" not in topics(other)
        assert namespace.get(TOPICS, "theirs")["status"]["cluster"] == two
    finally:
        second.close()


Objects = list[dict[str, Any]]


def objects(
    helm: Callable[..., subprocess.CompletedProcess[str]], release: str, namespace: str, *values: str
) -> Objects:
    done = helm("template", release, str(CHART), "--namespace", namespace, *values)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def test_names_do_not_collide(helm: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Neither of two releases of one name, nor where namespace and name run into each other."""
    seen: dict[tuple[str, str, str], str] = {}
    everything = ("--set", "crds.install=false,spark.enabled=true,external.enabled=true,monitoring.rules.enabled=true",
                  "--set", "monitoring.dashboard.enabled=true,serviceMonitor.enabled=true,fullnameOverride=")
    for release, namespace in (("hapax", "a"), ("hapax", "b"), ("hapax-x", "a"), ("x-hapax", "a"), ("hapax", "a-x")):
        for each in objects(helm, release, namespace, *everything):
            where = each["metadata"].get("namespace", "")
            name = (each["kind"], where, each["metadata"]["name"])
            assert name not in seen, f"{name} of {namespace}/{release} and {seen[name]}"
            seen[name] = f"{namespace}/{release}"


def test_definitions_are_installed_once(helm: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    kinds = [each["kind"] for each in objects(helm, "second", "b", "--set", "crds.install=false")]
    assert "CustomResourceDefinition" not in kinds and "Deployment" in kinds
    kept = [each for each in objects(helm, "first", "a") if each["kind"] == "CustomResourceDefinition"]
    assert kept and all(
        each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for each in kept), "others need them"
