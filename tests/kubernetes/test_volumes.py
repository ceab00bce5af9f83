"""Volumes grow: the chart is upgraded by helm, the operator with the chart's rights alone changes the claims, and a
real API server judges.

There are no nodes and no storage here, so the test does what the StatefulSet's controller and the storage's driver
would: it makes and binds claims, and reports their new capacity.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hapax.local.cluster import LocalCluster
from hapax_kube.api import ApiError, KubeApi
from hapax_kube.binaries import ROOT
from hapax_kube.operator import Namespace, OperatorProcess
from integration.waiting import wait_until

NAME = "demo-hapax-broker"

pytestmark = pytest.mark.timeout(300)


class Installed:
    """The chart by helm, without pods."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace, self.api = namespace, namespace.api
        self._claims = f"/api/v1/namespaces/{namespace.name}/persistentvolumeclaims"
        for name, grows in self.classes().items():
            self.api.create("/apis/storage.k8s.io/v1/storageclasses", {
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
                "provisioner": "tests.hapax.dev/none", "allowVolumeExpansion": grows})
        self.helm("install")

    def classes(self) -> dict[str, bool]:
        return {f"{self.namespace.name}-grows": True, f"{self.namespace.name}-fixed": False}

    def helm(self, verb: str, size: str = "1Gi", **more: str) -> None:
        given = {"broker.storage.size": size, "broker.storage.className": f"{self.namespace.name}-grows",
                 "crds.install": "false", "security.enabled": "false", "broker.replicas": "2",
                 "image.registry": "r.example", **more}
        words = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
        self._run(verb, "demo", str(ROOT / "charts" / "hapax"), *words)

    def _run(self, *words: str) -> None:
        done = subprocess.run(
            [self.api.binaries / "helm", *words, "--namespace", self.namespace.name, "--kubeconfig",
             self.api.kubeconfig], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr

    def close(self) -> None:
        self._run("uninstall", "demo")
        for name in self.classes():
            self.api.delete(f"/apis/storage.k8s.io/v1/storageclasses/{name}")

    def stateful_set(self) -> Any:
        return self.api.get(f"/apis/apps/v1/namespaces/{self.namespace.name}/statefulsets/{NAME}")

    # --- what others do

    def make_claim(self, ordinal: int, storage_class: str = "grows") -> None:
        """As from the template, and bound."""
        (template,) = self.stateful_set()["spec"]["volumeClaimTemplates"]
        self.api.create(self._claims, {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": f"data-{NAME}-{ordinal}", "labels": template["metadata"]["labels"]},
            "spec": {**template["spec"], "storageClassName": f"{self.namespace.name}-{storage_class}"}})
        self.report(ordinal, template["spec"]["resources"]["requests"]["storage"])

    def report(self, ordinal: int, capacity: str, **status: Any) -> None:
        self.api.patch(f"{self._claims}/data-{NAME}-{ordinal}/status", {"status": {
            "phase": "Bound", "capacity": {"storage": capacity}, **status}})

    # --- what is there

    def asked(self, ordinal: int) -> str:
        found = self.api.get(f"{self._claims}/data-{NAME}-{ordinal}")
        return str(found["spec"]["resources"]["requests"]["storage"])

    def grown(self) -> tuple[str, str, str]:
        if not self.namespace.exists("workloads", NAME):
            return "", "", ""
        for each in self.namespace.get("workloads", NAME).get("status", {}).get("conditions", ()):
            if each["type"] == "VolumesGrown":
                return each["status"], each["reason"], each["message"]
        return "", "", ""

    def until(self, reason: str) -> str:
        wait_until(lambda: self.grown()[1] == reason, f"{reason}: {self.grown()}", 60, every_s=0.3)
        return self.grown()[2]


@pytest.fixture
def installed(namespace: Namespace) -> Iterator[Installed]:
    found = Installed(namespace)
    yield found
    found.close()


@pytest.fixture
def release(
    installed: Installed, start_operator: Callable[..., OperatorProcess], kube_api: KubeApi, hapax: LocalCluster
) -> Installed:
    """With an operator under the chart's account."""
    for ordinal in range(2):
        installed.make_claim(ordinal)
    start_operator(
        installed.namespace, kubeconfig=kube_api.kubeconfig_of(installed.namespace.name, "demo-hapax-operator"),
        brokers=NAME)
    installed.until("AsDescribed")
    return installed


def test_claims_follow_the_chart_s_values(release: Installed) -> None:
    release.helm("upgrade", "2Gi")
    (template,) = release.stateful_set()["spec"]["volumeClaimTemplates"]
    assert template["spec"]["resources"]["requests"]["storage"] == "1Gi", "it cannot be changed"
    wait_until(lambda: release.asked(0) == release.asked(1) == "2Gi", f"requests: {release.grown()}", 60)
    assert "data-demo-hapax-broker-0" in release.until("Expanding")
    release.report(0, "2Gi")
    release.report(1, "1Gi", conditions=[{
        "type": "ControllerResizeError", "status": "True", "message": "the quota of disks is exceeded"}])
    assert "the quota of disks is exceeded" in release.until("Failed")
    assert "Failed" in release.namespace.events()
    # Kubernetes takes a request back that could not be fulfilled, down to what the volume has.
    release.helm("upgrade", "1536Mi")
    wait_until(lambda: release.asked(1) == "1536Mi", f"a request that is lowered: {release.grown()}", 60)
    release.report(1, "1536Mi", conditions=[])
    assert "data-demo-hapax-broker-0 have more" in release.until("LargerThanDescribed")
    assert release.asked(0) == "2Gi" and "LargerThanDescribed" in release.namespace.events()
    release.helm("upgrade", "2Gi")
    wait_until(lambda: release.asked(1) == "2Gi", "request", 60)
    release.report(1, "2Gi")
    release.until("AsDescribed")
    # A broker that comes later has a claim from the template, which follows.
    release.helm("upgrade", "2Gi", **{"broker.replicas": "3"})
    wait_until(lambda: release.stateful_set()["spec"]["replicas"] == 3, "third broker", 60)
    release.make_claim(2)
    wait_until(lambda: release.asked(2) == "2Gi", f"request: {release.grown()}", 60)
    release.report(2, "2Gi")
    # And one whose class does not allow it is told.
    release.helm("upgrade", "2Gi", **{"broker.replicas": "4"})
    wait_until(lambda: release.stateful_set()["spec"]["replicas"] == 4, "fourth broker", 60)
    release.make_claim(3, "fixed")
    said = release.until("NotExpandable")
    assert "data-demo-hapax-broker-3" in said and f"{release.namespace.name}-fixed" in said
    assert release.asked(3) == "1Gi" and "NotExpandable" in release.namespace.events()


def test_the_operator_changes_nothing_else_of_claims(release: Installed) -> None:
    account = release.api.kubeconfig_of(release.namespace.name, "demo-hapax-operator")
    release.api.create(f"/api/v1/namespaces/{release.namespace.name}/persistentvolumeclaims", {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "other"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": f"{release.namespace.name}-grows",
                 "resources": {"requests": {"storage": "1Gi"}}}})
    release.api.patch(f"/api/v1/namespaces/{release.namespace.name}/persistentvolumeclaims/other/status", {
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}})
    token = json.loads(account.read_text())["users"][0]["user"]["token"]

    def asked(claim: str, patch: str) -> str:
        """Of a change that is only tried. The operator may not read single claims, as kubectl does before."""
        path = f"/api/v1/namespaces/{release.namespace.name}/persistentvolumeclaims/{claim}?dryRun=All"
        try:
            release.api.call("PATCH", path, json.loads(patch), "application/merge-patch+json", token=token)
        except ApiError as error:
            return error.message
        return ""

    label, size = '{"metadata":{"labels":{"a":"b"}}}', '{"spec":{"resources":{"requests":{"storage":"3Gi"}}}}'
    wait_until(lambda: "the size of brokers' claims alone" in asked("other", size), "policy", 60, every_s=0.5)
    assert "the size of brokers' claims alone" in asked(f"data-{NAME}-0", label)
    assert asked(f"data-{NAME}-0", size) == ""


def test_without_a_cluster_to_look_at_the_template_keeps_a_size_by_a_value(
    installed: Installed, render: Callable[..., list[dict[str, Any]]]
) -> None:
    """As a tool does that applies the manifests of `helm template`."""
    def apply(*values: str) -> str:
        (found,) = (each for each in render(*values, "crds.install=false", namespace=installed.namespace.name)
                    if (each["kind"], each["metadata"]["name"]) == ("StatefulSet", NAME))
        body = {key: value for key, value in found["spec"].items() if key == "volumeClaimTemplates"}
        done = installed.api.kubectl(
            "-n", installed.namespace.name, "patch", "statefulset", NAME, "--type=merge", "-p",
            json.dumps({"spec": body}), "--dry-run=server")
        return done.stderr

    name = f'broker.storage.className="{installed.namespace.name}-grows"'
    assert "Forbidden" in apply(name, 'broker.storage.size="2Gi"')
    assert apply(name, 'broker.storage.size="2Gi"', 'broker.storage.templateSize="1Gi"') == ""
