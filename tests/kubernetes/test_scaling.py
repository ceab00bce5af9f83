"""Brokers come and go: the operator with the chart's rights alone, a real API server, a real cluster of three brokers.

There is no kubelet here, so the test does what it would: it ends a broker whose ordinal the StatefulSet has no more.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import end_cluster, start_cluster
from hapax.client import NewTopic
from hapax.client.blocking import Admin
from hapax.codec.metadata import DrainingRecord, Keys
from hapax.core.types import NodeId
from hapax.local.cluster import LocalCluster
from hapax.runtime.etcd import EtcdStore
from hapax.runtime.ports import Put
from hapax_kube.api import ApiError, KubeApi
from hapax_kube.operator import Namespace, OperatorProcess
from integration.waiting import wait_until

NAME = "demo-hapax-broker"
POOLS = "brokerpools"
KINDS = (
    "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
)

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def hapax(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    factors = [f"{name}.replication.factor=2" for name in ("transaction.state.log", "offsets.topic")]
    shards = [f"{name}.num.partitions=4" for name in ("transaction.state.log", "offsets.topic")]
    cluster = start_cluster(tmp_path_factory.mktemp("hapax"), brokers=3, settings=[*factors, *shards])
    yield cluster
    end_cluster(cluster)


@pytest.fixture
def admin(hapax: LocalCluster) -> Iterator[Admin]:
    with Admin({"bootstrap.servers": hapax.bootstrap}) as admin:
        yield admin


class Release:
    """What the chart makes of the brokers, in one namespace, and an operator with no other rights."""

    def __init__(self, namespace: Namespace, objects: list[dict[str, Any]], start: Callable[..., OperatorProcess],
                 folder: Path) -> None:
        self.namespace = namespace
        self.api = namespace.api
        self._objects = folder / "objects.yaml"
        self._objects.write_text(yaml.safe_dump_all(
            each for each in objects
            if each["kind"] in KINDS or (each["kind"], each["metadata"]["name"]) == ("StatefulSet", NAME)))
        done = self.api.kubectl("apply", "-f", str(self._objects))
        assert done.returncode == 0, done.stderr
        self._account = self.api.kubeconfig_of(namespace.name, "demo-hapax-operator")
        self._start = start
        self.operator = self.started()

    def started(self) -> OperatorProcess:
        return self._start(self.namespace, kubeconfig=self._account, brokers=NAME)

    def close(self) -> None:
        self.operator.stop()  # so that the next one need not wait for a lease to end
        self.api.kubectl("delete", "--wait=false", "-f", str(self._objects))

    def path(self, kind: str = "statefulsets") -> str:
        return f"/apis/apps/v1/namespaces/{self.namespace.name}/{kind}/{NAME}"

    def replicas(self) -> int:
        return int(self.api.get(self.path())["spec"]["replicas"])

    def scale(self, replicas: int) -> None:
        done = self.api.kubectl("-n", self.namespace.name, "scale", f"brokerpool/{NAME}", f"--replicas={replicas}")
        assert done.returncode == 0, done.stderr

    def ready(self) -> tuple[str, str]:
        return self.namespace.condition(POOLS, NAME)

    def message(self) -> str:
        (ready,) = (
            each for each in self.namespace.get(POOLS, NAME)["status"]["conditions"] if each["type"] == "Ready")
        return str(ready["message"])

    def until(self, status: str, reason: str) -> None:
        wait_until(lambda: self.ready() == (status, reason), f"{reason} instead of {self.ready()}", 60)


@pytest.fixture
def release(
    namespace: Namespace, render: Callable[..., list[dict[str, Any]]], start_operator: Callable[..., OperatorProcess],
    hapax: LocalCluster, tmp_path: Path,
) -> Iterator[Release]:
    objects = render(f'operator.watchNamespaces=["{namespace.name}"]', namespace=namespace.name)
    release = Release(namespace, objects, start_operator, tmp_path)
    wait_until(lambda: namespace.exists(POOLS, NAME), "pool of the chart's values", 60)
    release.until("True", "AsDescribed")
    yield release
    release.close()


def held(admin: Admin, broker: int) -> int:
    return sum(broker in each.replicas for topic in admin.list_topics() for each in topic.partitions)


def test_an_installation_gets_its_brokers_from_the_operator(release: Release) -> None:
    assert release.replicas() == 3  # its manifest names no number, so it began with one
    shown = release.api.kubectl("-n", release.namespace.name, "get", "brokerpools").stdout
    assert "WANTED" in shown and NAME in shown
    pool = release.namespace.get(POOLS, NAME)
    assert pool["metadata"]["ownerReferences"][0]["kind"] == "StatefulSet"
    assert "app.kubernetes.io/component=broker" in pool["status"]["selector"]


def test_a_broker_leaves_when_all_it_held_has_moved_and_comes_back_to_its_share(
    release: Release, admin: Admin, hapax: LocalCluster
) -> None:
    admin.create_topics([NewTopic("orders", 6, 1), NewTopic("payments", 3, 2)])
    assert held(admin, 2) > 0
    release.scale(2)
    wait_until(lambda: release.replicas() == 2, "smaller StatefulSet", 60)
    assert held(admin, 2) == 0
    hapax.stop("broker-2")
    release.until("True", "AsDescribed")
    assert {"Draining", "ScalingDown"} <= release.namespace.events()
    assert release.namespace.get(POOLS, NAME)["status"]["leaving"] == []

    release.api.patch(release.path(), {"metadata": {"annotations": {"hapax.dev/replicas": "4"}}})  # as helm upgrade
    wait_until(lambda: release.replicas() == 4, "larger StatefulSet", 60)
    release.until("False", "BrokersMissing")
    release.api.patch(release.path(), {"metadata": {"annotations": {"hapax.dev/replicas": "3"}}})
    wait_until(lambda: release.replicas() == 3, "StatefulSet of the values", 60)
    hapax.start("broker-2")
    release.until("True", "AsDescribed")
    assert held(admin, 2) >= 4 and "Rebalancing" in release.namespace.events()
    admin.delete_topics(["orders", "payments"])


def test_a_scale_down_that_would_leave_too_few_is_refused_with_a_condition_until_it_would_not(
    release: Release, admin: Admin, hapax: LocalCluster
) -> None:
    admin.create_topics([NewTopic("wide", 2, 3)])
    release.scale(2)
    release.until("False", "Refused")
    assert "wide-0 has 3 replicas and only 2 brokers would be left for them" in release.message()
    assert release.replicas() == 3 and "Refused" in release.namespace.events()
    admin.delete_topics(["wide"])
    wait_until(lambda: release.replicas() == 2, "smaller StatefulSet", 60)
    release.scale(3)
    release.until("True", "AsDescribed")


def test_an_operator_that_is_killed_while_brokers_leave_goes_on(
    release: Release, admin: Admin, hapax: LocalCluster
) -> None:
    admin.create_topics([NewTopic("orders", 9, 2)])
    release.scale(2)
    wait_until(lambda: bool(release.namespace.get(POOLS, NAME)["status"]["leaving"]), "drain", 60)
    release.operator.kill()
    release.operator = release.started()
    wait_until(lambda: release.replicas() == 2, "smaller StatefulSet", 90)
    assert held(admin, 2) == 0
    release.scale(3)
    release.until("True", "AsDescribed")
    admin.delete_topics(["orders"])


def test_a_pool_that_is_made_again_takes_the_live_number_and_ends_the_former_one_s_drains(
    release: Release, hapax: LocalCluster
) -> None:
    release.operator.kill()
    state = hapax.status()

    async def drain() -> None:
        """Marks broker 2 as the former pool did."""
        store, key = EtcdStore([f"127.0.0.1:{state.process('etcd').port}"]), Keys(state.cluster_id).draining(NodeId(2))
        try:
            await store.txn([], [Put(key, DrainingRecord(0, "BrokerPool").encode())])
        finally:
            await store.close()

    asyncio.run(drain())
    release.namespace.delete(POOLS, NAME)
    wait_until(lambda: not release.namespace.exists(POOLS, NAME), "end of the pool", 30)
    release.api.patch(release.path(), {"metadata": {"annotations": {"hapax.dev/replicas": "5"}}})
    release.operator = release.started()
    wait_until(lambda: release.namespace.exists(POOLS, NAME), "pool of the live number", 60)
    release.until("True", "AsDescribed")
    assert release.replicas() == release.namespace.get(POOLS, NAME)["spec"]["replicas"] == 3
    assert "Released" in release.namespace.events()
    assert release.namespace.get(POOLS, NAME)["status"]["leaving"] == []


def test_nobody_else_changes_the_statefulset_s_replicas(release: Release) -> None:
    def refusal() -> str:
        done = release.api.kubectl("-n", release.namespace.name, "scale", f"statefulset/{NAME}", "--replicas=1")
        return done.stderr if done.returncode else ""

    wait_until(lambda: f"scale brokerpool/{NAME} --replicas=N" in refusal(), "refusal", 30)
    with pytest.raises(ApiError, match="brokers come and go by their BrokerPool"):
        release.api.patch(release.path(), {"spec": {"replicas": 1}})
    release.api.patch(release.path(), {"metadata": {"annotations": {"any": "thing"}}})
    assert release.replicas() == 3


def claim(namespace: Namespace, broker: int) -> str:
    """As the StatefulSet's controller would make it; its path."""
    path, name = f"/api/v1/namespaces/{namespace.name}/persistentvolumeclaims", f"data-{NAME}-{broker}"
    namespace.api.create(path, {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})
    # The controller that takes this one off when no pod uses the claim does not run here.
    namespace.api.patch(f"{path}/{name}", {"metadata": {"finalizers": None}})
    return f"{path}/{name}"


def test_a_volume_with_records_is_not_deleted(release: Release, admin: Admin) -> None:
    api, namespace = release.api, release.namespace
    needed, unused, other = claim(namespace, 1), claim(namespace, 3), claim(namespace, 0)

    def refusal(path: str) -> str:
        try:
            api.delete(path)
        except ApiError as error:
            return error.message
        return ""

    wait_until(lambda: "volume" in refusal(f"{needed}?dryRun=All"), "policy", 30)
    assert "replicas of broker 1 lie on this volume" in refusal(needed)
    assert refusal(unused) == ""  # no broker of this ordinal is wanted, and none holds anything
    admin.create_topics([NewTopic("single", 3, 1), NewTopic("twice", 3, 2)])
    namespace.patch(POOLS, NAME, replaceVolumeOf=1)
    wait_until(lambda: namespace.condition(POOLS, NAME, "VolumeReplaceable") == ("False", "LastCopy"), "refusal", 30)
    wait_until(lambda: "1 partitions of broker 1 have no other replica in sync: single-" in refusal(needed), "why", 30)
    admin.delete_topics(["single"])
    wait_until(lambda: namespace.condition(POOLS, NAME, "VolumeReplaceable") == ("True", "Replicated"), "consent", 30)
    assert "replicas of broker 0 lie on this volume" in refusal(other)  # one at a time
    wait_until(lambda: refusal(needed) == "", "deletion", 30)
    admin.delete_topics(["twice"])


def test_what_keeps_volumes_does_not_keep_a_namespace(
    kube_api: KubeApi, render: Callable[..., list[dict[str, Any]]], start_operator: Callable[..., OperatorProcess],
    tmp_path: Path,
) -> None:
    name = f"going-{uuid.uuid4().hex[:8]}"
    kube_api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    namespace = Namespace(kube_api, name)
    objects = render(f'operator.watchNamespaces=["{name}"]', namespace=name)
    release = Release(namespace, objects, start_operator, tmp_path)
    kept = claim(namespace, 0)
    wait_until(lambda: namespace.exists(POOLS, NAME), "pool of the chart's values", 60)
    wait_until(lambda: "volumesKeptOf" in namespace.get(POOLS, NAME).get("status", {}), "status of the pool", 60)
    wait_until(lambda: kube_api.kubectl("delete", "--raw", f"{kept}?dryRun=All").returncode != 0, "policy", 30)
    release.operator.kill()
    kube_api.patch(namespace.path(POOLS, NAME), {"metadata": {"finalizers": ["hapax.dev/test"]}})  # it goes last
    kube_api.delete(f"/api/v1/namespaces/{name}")
    wait_until(lambda: not kube_api.exists(kept), "end of the claim", 60)
    kube_api.patch(namespace.path(POOLS, NAME), {"metadata": {"finalizers": None}})
    wait_until(lambda: not kube_api.exists(f"/api/v1/namespaces/{name}"), "end of the namespace", 60)
    for each in ("brokers", "volumes"):
        for kind in ("validatingadmissionpolicies", "validatingadmissionpolicybindings"):
            kube_api.delete(f"/apis/admissionregistration.k8s.io/v1/{kind}/{name}.demo-hapax-{each}")


@pytest.mark.parametrize(("spec", "sentence"), [
    ({"replicas": 0}, "at least one broker must stay"), ({"replicas": 101}, "at most 100 brokers"),
    ({}, "Required value"), ({"replicas": 3, "rebalance": "Sometimes"}, "supported values"),
])
def test_a_bad_pool_is_refused_with_a_sentence(
    namespace: Namespace, kube_api: KubeApi, spec: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ApiError, match=sentence):
        kube_api.create(namespace.path(POOLS), {
            "apiVersion": "hapax.dev/v1alpha1", "kind": "BrokerPool", "metadata": {"name": "a"}, "spec": spec})
