"""Brokers and coordinators get new pods: the operator with the chart's rights alone, a real API server, a real cluster.

There are no nodes and no controller of StatefulSets here, so the test does what they would: it makes the pods of the
revision that the StatefulSet shows, runs the brokers that they stand for, and reports who is ready.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import end_cluster, start_cluster
from hapax.client import NewTopic
from hapax.client.blocking import Admin
from hapax.local.cluster import LocalCluster
from hapax_kube.api import ApiError
from hapax_kube.operator import Namespace, OperatorProcess
from integration.waiting import wait_until

NAME = "demo-hapax-broker"
COORDINATOR = "demo-hapax-coordinator"
BUDGETS = "/apis/policy/v1/namespaces/{}/poddisruptionbudgets"
KINDS = ("PodDisruptionBudget", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding",
         "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def hapax(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    factors = [f"{name}.replication.factor=3" for name in ("transaction.state.log", "offsets.topic")]
    shards = [f"{name}.num.partitions=4" for name in ("transaction.state.log", "offsets.topic")]
    cluster = start_cluster(tmp_path_factory.mktemp("hapax"), brokers=3, settings=[*factors, *shards])
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.create_topics([NewTopic("kept", 4, 3, {"min.insync.replicas": "2"})])
    yield cluster
    end_cluster(cluster)


class Release:
    """The StatefulSets with their pods, and an operator with no other rights than the chart's."""

    def __init__(self, namespace: Namespace, objects: list[dict[str, Any]], start: Callable[..., OperatorProcess],
                 folder: Path, hapax: LocalCluster) -> None:
        self.namespace, self.api, self.hapax = namespace, namespace.api, hapax
        self._objects = folder / "objects.yaml"
        self._objects.write_text(yaml.safe_dump_all(
            each for each in objects if each["kind"] in KINDS
            or (each["kind"], each["metadata"]["name"]) in (("StatefulSet", NAME), ("StatefulSet", COORDINATOR))))
        done = self.api.kubectl("apply", "-f", str(self._objects))
        assert done.returncode == 0, done.stderr
        self._core = f"/api/v1/namespaces/{namespace.name}"
        self.bad: set[str] = set()
        """Revisions whose pods never become ready."""
        self.down: set[str] = set()
        """Names of pods that are not ready."""
        self.deleted: list[str] = []
        for name in (NAME, COORDINATOR):
            self.revise(name, "first")
        self.tick()
        account = self.api.kubeconfig_of(namespace.name, "demo-hapax-operator")
        self.operator = start(namespace, kubeconfig=account, brokers=NAME,
                              more=("--coordinators", f"{namespace.name}/{COORDINATOR}"))

    def close(self) -> None:
        self.operator.stop()
        for name in (NAME, COORDINATOR):
            for pod in self.pods(name).values():
                self._gone(pod)
        self.api.kubectl("delete", "--wait=false", "-f", str(self._objects))

    def path(self, name: str) -> str:
        return f"/apis/apps/v1/namespaces/{self.namespace.name}/statefulsets/{name}"

    def revise(self, name: str, revision: str) -> None:
        """As a change of the template, and what its controller makes of it."""
        body = self.api.patch(self.path(name), {"spec": {"template": {"metadata": {"annotations": {"r": revision}}}}})
        self.api.patch(self.path(name) + "/status", {"status": {
            "replicas": 3, "observedGeneration": body["metadata"]["generation"], "updateRevision": revision}})

    def ordinals(self, name: str) -> range:
        return range(3) if name == NAME else range(100, 101)

    def pods(self, name: str) -> dict[str, dict[str, Any]]:
        found = self.api.get(f"{self._core}/pods")["items"]
        return {each["metadata"]["name"]: each for each in found
                if each["metadata"]["name"].rpartition("-")[0] == name}

    def revisions(self, name: str) -> dict[str, str]:
        return {pod: body["metadata"]["labels"]["controller-revision-hash"] for pod, body in self.pods(name).items()}

    def tick(self) -> None:
        for name in (NAME, COORDINATOR):
            workload, present = self.api.get(self.path(name)), self.pods(name)
            if workload["status"]["observedGeneration"] != workload["metadata"]["generation"]:  # replicas have changed
                self.api.patch(self.path(name) + "/status", {"status": {
                    "observedGeneration": workload["metadata"]["generation"]}})
            revision = workload["status"]["updateRevision"]
            for pod, body in present.items():
                if "deletionTimestamp" in body["metadata"]:
                    away = [other for other in present if other != pod and not _ready(present[other])]
                    assert not away or not _ready(body), f"{pod} was deleted while {away} were not ready"
                    self._gone(body)
                    self.deleted.append(pod)
                    if name == NAME:
                        self.hapax.restart(f"broker-{pod.rpartition('-')[2]}")
                else:
                    self._report(body)
            for ordinal in self.ordinals(name):
                if f"{name}-{ordinal}" not in present:
                    self._make(workload, f"{name}-{ordinal}", revision)

    def _make(self, workload: dict[str, Any], pod: str, revision: str) -> None:
        template = workload["spec"]["template"]
        spec = {key: value for key, value in template["spec"].items() if key != "serviceAccountName"}
        volumes = spec.pop("volumes", None) or []
        if not any(each["name"] == "data" for each in volumes):
            volumes.append({"name": "data", "emptyDir": {}})
        self.api.create(f"{self._core}/pods", {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": pod, "labels": {**template["metadata"]["labels"], "controller-revision-hash": revision},
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "StatefulSet", "name": workload["metadata"]["name"],
                    "uid": workload["metadata"]["uid"], "controller": True}]},
            "spec": {**spec, "nodeName": "machine", "volumes": volumes}})

    def _report(self, body: dict[str, Any]) -> None:
        revision = body["metadata"]["labels"]["controller-revision-hash"]
        ready = revision not in self.bad and body["metadata"]["name"] not in self.down
        if _ready(body) != ready:
            # A pending pod is evicted whatever the budgets say.
            self.api.patch(f"{self._core}/pods/{body['metadata']['name']}/status", {"status": {
                "phase": "Running", "conditions": [{
                    "type": "Ready", "status": str(ready), "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})

    def _gone(self, body: dict[str, Any]) -> None:
        with contextlib.suppress(ApiError):
            self.api.call("DELETE", f"{self._core}/pods/{body['metadata']['name']}", {
                "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0,
                "preconditions": {"uid": body["metadata"]["uid"]}})

    def rolled(self, name: str = NAME) -> tuple[str, str, str]:
        if not self.namespace.exists("workloads", name):
            return "", "", ""
        for each in self.namespace.get("workloads", name).get("status", {}).get("conditions", ()):
            if each["type"] == "Rolled":
                return each["status"], each["reason"], each["message"]
        return "", "", ""

    def until(self, done: Callable[[], bool], what: str) -> None:
        def stepped() -> bool:
            self.tick()
            return done()

        wait_until(stepped, what, 120, every_s=0.2)

    def stays(self, seconds: float) -> None:
        """Nothing is deleted for this long."""
        before, end = list(self.deleted), time.monotonic() + seconds
        while time.monotonic() < end:
            self.tick()
            assert self.deleted == before


def _ready(body: dict[str, Any]) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True"
               for each in body.get("status", {}).get("conditions") or ())


@pytest.fixture
def release(
    namespace: Namespace, render: Callable[..., list[dict[str, Any]]], start_operator: Callable[..., OperatorProcess],
    hapax: LocalCluster, tmp_path: Path,
) -> Iterator[Release]:
    objects = render(f'operator.watchNamespaces=["{namespace.name}"]', "coordinator.replicas=1",
                     "broker.minReadySeconds=0", "coordinator.minReadySeconds=0", namespace=namespace.name)
    for each in objects:
        if each["kind"] == "StatefulSet" and each["metadata"]["name"] == COORDINATOR:
            each["spec"]["ordinals"]["start"] = 100
    release = Release(namespace, objects, start_operator, tmp_path, hapax)
    release.until(lambda: release.rolled()[0] == "True" and release.rolled(COORDINATOR)[0] == "True", "first look")
    yield release
    release.close()


def test_pods_are_replaced_one_at_a_time_while_all_is_in_sync(release: Release) -> None:
    release.revise(NAME, "second")
    release.until(lambda: set(release.revisions(NAME).values()) == {"second"}, "new pods")
    assert release.deleted == [f"{NAME}-2", f"{NAME}-1", f"{NAME}-0"]
    release.until(lambda: release.rolled()[:2] == ("True", "UpToDate"), f"end of the roll: {release.rolled()}")
    shown = release.api.kubectl("-n", release.namespace.name, "get", "workloads").stdout
    assert "ROLLED" in shown and "UpToDate" in shown
    release.revise(COORDINATOR, "second")
    release.until(lambda: set(release.revisions(COORDINATOR).values()) == {"second"}, "the coordinator's")


def test_a_bad_revision_takes_one_pod_and_its_repair_comes_through(release: Release) -> None:
    release.bad.add("bad")
    release.revise(NAME, "bad")
    release.until(lambda: "bad" in release.revisions(NAME).values(), "first new pod")
    told = f"{NAME}-2, which is not ready with the new revision"
    release.until(
        lambda: release.rolled()[1] == "PodNotReady" and told in release.rolled()[2], f"what it waits for: {told}")
    release.stays(6)
    assert sorted(release.revisions(NAME).values()) == ["bad", "first", "first"]
    release.revise(NAME, "good")
    release.until(lambda: set(release.revisions(NAME).values()) == {"good"}, "the repair")
    assert release.deleted[:2] == [f"{NAME}-2", f"{NAME}-2"]


def test_it_waits_for_replicas_in_sync_and_pauses_by_an_annotation(release: Release) -> None:
    release.hapax.kill("broker-1")
    release.revise(NAME, "second")
    release.until(lambda: release.rolled()[1] == "NotInSync", f"condition: {release.rolled()}")
    assert "not in sync" in release.rolled()[2]
    release.stays(4)
    release.namespace.annotate("workloads", NAME, pause="true")
    release.hapax.restart("broker-1")
    release.until(lambda: release.rolled()[1] == "Paused", "pause")
    release.stays(6)
    release.namespace.annotate("workloads", NAME, pause=None)
    release.until(lambda: set(release.revisions(NAME).values()) == {"second"}, "new pods")
    release.until(lambda: release.namespace.condition("workloads", NAME, "Paused") == ("", ""), "end of the pause")


def test_a_budget_that_permits_no_disruption_stops_the_roll_and_says_so(release: Release) -> None:
    """Of a team that wants no change now, or has one beside the chart's."""
    budgets = BUDGETS.format(release.namespace.name)
    own = f"{budgets}/{NAME}"
    spec = release.api.get(own)["spec"]
    other = {"metadata": {"name": "freeze"}, "spec": {"maxUnavailable": 0, "selector": spec["selector"]}}
    release.api.create(budgets, other)
    release.revise(NAME, "second")
    release.until(lambda: release.rolled()[1] == "EvictionRefused", f"condition: {release.rolled()}")
    assert "more than one PodDisruptionBudget" in release.rolled()[2], release.rolled()
    release.api.delete(own)
    release.until(lambda: "freeze" in release.rolled()[2], f"the other budget's refusal: {release.rolled()}")
    assert release.rolled()[1] == "EvictionRefused" and f"{NAME}-2 may not be evicted now" in release.rolled()[2]
    release.stays(3)
    release.api.delete(f"{budgets}/freeze")
    release.until(lambda: set(release.revisions(NAME).values()) == {"second"}, "new pods")


def test_pods_that_take_no_part_are_repaired_whatever_the_budget_permits(release: Release) -> None:
    """With two of them, the chart's own budget permits no eviction."""
    for broker in (1, 2):
        release.hapax.kill(f"broker-{broker}")
        release.down.add(f"{NAME}-{broker}")
    budget = f"{BUDGETS.format(release.namespace.name)}/{NAME}"
    release.until(
        lambda: release.api.get(budget)["status"].get("disruptionsAllowed") == 0, "what the budget permits")
    release.revise(NAME, "second")
    release.until(lambda: f"{NAME}-1" in release.deleted, f"first repair: {release.rolled()}")
    release.down.clear()
    release.hapax.restart("broker-2")
    release.until(lambda: set(release.revisions(NAME).values()) == {"second"}, "new pods")


def test_the_operator_deletes_no_other_pods(release: Release) -> None:
    account = release.api.kubeconfig_of(release.namespace.name, "demo-hapax-operator")
    release.api.create(f"/api/v1/namespaces/{release.namespace.name}/pods", {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"},
        "spec": {"containers": [{"name": "c", "image": "none"}]}})

    def asked(pod: str) -> str:
        return release.api.kubectl(
            f"--kubeconfig={account}", "-n", release.namespace.name, "delete", "pod", pod, "--dry-run=server").stderr

    wait_until(lambda: "pods of brokers, coordinators and Spark alone" in asked("other"), "policy", 60, every_s=0.5)
    assert asked(f"{NAME}-0") == ""

    def evicted(pod: str) -> str:
        eviction = json.dumps({
            "apiVersion": "policy/v1", "kind": "Eviction", "deleteOptions": {"dryRun": ["All"]},
            "metadata": {"name": pod, "namespace": release.namespace.name}})
        path = f"/api/v1/namespaces/{release.namespace.name}/pods/{pod}/eviction?dryRun=All"
        return release.api.kubectl(f"--kubeconfig={account}", "create", "--raw", path, "-f", "-", text=eviction).stderr

    assert "pods of brokers, coordinators and Spark alone" in evicted("other")
    assert evicted(f"{NAME}-0") == ""
