"""scripts/volumes.py against a real API server with the real definitions of volume snapshots.

There are no nodes and no storage here. `Storage` plays the scheduler, the kubelets, and a driver with the controller of
snapshots: it cuts snapshots at once, has them ready when it is told, and creates volumes in the zone of the first pod.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hapax_kube.api import ApiError, KubeApi
from hapax_kube.binaries import ROOT
from hapax_kube.operator import Namespace
from hapax_kube.snapshots import definitions
from integration.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

GROUP = "/apis/snapshot.storage.k8s.io/v1"
ZONE = "topology.kubernetes.io/zone"
ZONES = {"data-demo-hapax-broker-0": "a", "data-demo-hapax-broker-1": "b", "data-demo-hapax-etcd-0": "b"}


class Storage:
    def __init__(self, api: KubeApi, namespace: str, tag: str) -> None:
        self.api, self.tag, self.namespace = api, tag, namespace
        self.driver = f"{tag}.hapax.dev"
        self.ready = False
        """Whether snapshots get ready."""
        self.error = ""
        """With which snapshots fail."""
        self.astray = False
        """Whether volumes are created without a regard for pods, in zone a."""
        self.handles: dict[str, str] = {}
        """Claim that was restored -> handle of the snapshot."""
        self.pod_zones: dict[str, str] = {}
        self.tolerated: dict[str, set[str]] = {}
        """Claim that was restored -> keys of the taints that its pod tolerates."""
        self._end = threading.Event()
        for zone in ("a", "b"):
            api.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {
                "name": f"{tag}-{zone}", "labels": {ZONE: zone, "kubernetes.io/hostname": f"{tag}-{zone}"}}})
        api.create(f"{GROUP}/volumesnapshotclasses", {
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "metadata": {"name": tag},
            "driver": self.driver, "deletionPolicy": "Retain"})
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def close(self) -> None:
        self._end.set()
        self._thread.join(30)
        for path in (*(f"/api/v1/nodes/{self.tag}-{zone}" for zone in ("a", "b")),
                     f"{GROUP}/volumesnapshotclasses/{self.tag}"):
            self.api.delete(path)
        for kind in ("/api/v1/persistentvolumes", f"{GROUP}/volumesnapshotcontents"):
            for each in self.api.get(kind)["items"]:
                if each["metadata"]["name"].startswith((self.tag, self.namespace)):
                    self.api.patch(f"{kind}/{each['metadata']['name']}", {"metadata": {"finalizers": None}})
                    with contextlib.suppress(ApiError):
                        self.api.delete(f"{kind}/{each['metadata']['name']}")

    def path(self, kind: str, name: str = "") -> str:
        group = GROUP if "snapshot" in kind else "/api/v1"
        return f"{group}/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    def names(self, kind: str) -> set[str]:
        return {each["metadata"]["name"] for each in self.api.get(self.path(kind))["items"]}

    def claim(self, name: str, zone: str) -> None:
        component = name.rpartition("-")[0].rpartition("-")[2]
        self.api.create(self.path("persistentvolumeclaims"), {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "labels": {
                "app.kubernetes.io/instance": "demo", "app.kubernetes.io/component": component}},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "any",
                     "resources": {"requests": {"storage": "1Gi"}}}})
        self._bind(self.api.get(self.path("persistentvolumeclaims", name)), zone)

    def _bind(self, claim: dict[str, Any], zone: str) -> None:
        name, uid = claim["metadata"]["name"], claim["metadata"]["uid"]
        volume = f"{self.tag}-{uid}"
        self.api.create("/api/v1/persistentvolumes", {
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume},
            "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "any",
                     "persistentVolumeReclaimPolicy": "Retain", "csi": {"driver": self.driver, "volumeHandle": uid},
                     "claimRef": {"namespace": self.namespace, "name": name, "uid": uid},
                     "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                         {"key": ZONE, "operator": "In", "values": [zone]}]}]}}}})
        path = self.path("persistentvolumeclaims", name)
        self.api.patch(path, {"spec": {"volumeName": volume}})
        self.api.patch(f"{path}/status", {"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}})

    # --- what goes on by itself

    def _work(self) -> None:
        while not self._end.wait(0.2):
            with contextlib.suppress(ApiError):  # something was deleted meanwhile
                for each in self.api.get(self.path("volumesnapshots"))["items"]:
                    self._snapshot(each)
                for each in self.api.get(self.path("pods"))["items"]:
                    self._pod(each)

    def _snapshot(self, body: dict[str, Any]) -> None:
        name, source, status = body["metadata"]["name"], body["spec"]["source"], body.get("status") or {}
        path = self.path("volumesnapshots", name) + "/status"
        if self.error:
            self.api.patch(path, {"status": {"readyToUse": False, "error": {
                "message": self.error, "time": "2026-01-01T00:00:00Z"}}})
        elif "volumeSnapshotContentName" in source:
            if not status.get("readyToUse"):
                self.api.patch(path, {"status": {
                    "boundVolumeSnapshotContentName": source["volumeSnapshotContentName"], "readyToUse": True}})
        elif not status.get("creationTime"):
            content = f"{self.tag}-{body['metadata']['uid']}"
            self.api.create(f"{GROUP}/volumesnapshotcontents", {
                "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
                "metadata": {"name": content},
                "spec": {"deletionPolicy": "Retain", "driver": self.driver,
                         "source": {"volumeHandle": source["persistentVolumeClaimName"]},
                         "volumeSnapshotRef": {"name": name, "namespace": self.namespace}}})
            self.api.patch(f"{GROUP}/volumesnapshotcontents/{content}/status", {"status": {
                "snapshotHandle": f"handle-of-{name}", "readyToUse": False}})
            self.api.patch(path, {"status": {
                "boundVolumeSnapshotContentName": content, "creationTime": "2026-01-01T00:00:00Z",
                "readyToUse": False}})
        elif self.ready and not status.get("readyToUse"):
            self.api.patch(path, {"status": {"readyToUse": True, "restoreSize": "2Gi"}})

    def _pod(self, body: dict[str, Any]) -> None:
        """It is scheduled, its volume created where it is, and it is ready."""
        if any(each["type"] == "Ready" for each in body.get("status", {}).get("conditions") or ()):
            return
        (volume,) = body["spec"]["volumes"]
        name = volume["persistentVolumeClaim"]["claimName"]
        terms = (body["spec"].get("affinity") or {}).get("nodeAffinity", {}).get(
            "requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms")
        zone = terms[0]["matchExpressions"][0]["values"][0] if terms else "a"
        claim = self.api.get(self.path("persistentvolumeclaims", name))
        if not claim["spec"].get("volumeName"):
            self.pod_zones[name] = zone
            self.tolerated[name] = {each.get("key", "") for each in body["spec"].get("tolerations") or ()}
            snapshot = self.api.get(self.path("volumesnapshots", claim["spec"]["dataSource"]["name"]))
            content = self.api.get(
                f"{GROUP}/volumesnapshotcontents/{snapshot['status']['boundVolumeSnapshotContentName']}")
            self.handles[name] = content["spec"]["source"].get("snapshotHandle") or content["status"]["snapshotHandle"]
            self._bind(claim, "a" if self.astray else zone)
        self.api.patch(self.path("pods", body["metadata"]["name"]) + "/status", {"status": {
            "conditions": [{"type": "Ready", "status": "True"}]}})


@pytest.fixture
def snapshots(kube_api: KubeApi) -> KubeApi:
    found = definitions()
    if found is None:
        pytest.skip("the definitions of volume snapshots come from a Go module, and there is no Go toolchain")
    for path in found:
        done = kube_api.kubectl("apply", "--server-side", "-f", str(path))
        assert done.returncode == 0, done.stderr
        done = kube_api.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(path))
        assert done.returncode == 0, done.stderr
    return kube_api


@pytest.fixture
def storage(snapshots: KubeApi, namespace: Namespace) -> Iterator[Storage]:
    found = Storage(snapshots, namespace.name, f"s{uuid.uuid4().hex[:8]}")
    for name, zone in ZONES.items():
        found.claim(name, zone)
    yield found
    found.close()


@pytest.fixture
def elsewhere(kube_api: KubeApi) -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    kube_api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    kube_api.delete(f"/api/v1/namespaces/{name}")


def volumes(storage: Storage, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    image = () if verb == "finish" else ("image",)
    folder, *options = words
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / "volumes.py", verb, storage.namespace, "demo", *image, folder, *options],
        capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "KUBECONFIG": str(storage.api.kubeconfig),
             "PATH": f"{storage.api.binaries}:{os.environ['PATH']}"})


def done(storage: Storage, verb: str, *words: str) -> str:
    found = volumes(storage, verb, *words)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def test_snapshots_of_one_moment_with_retention_and_restored_in_their_zones(
    storage: Storage, elsewhere: str, tmp_path: Path
) -> None:
    folder = str(tmp_path)
    pod = storage.path("pods")
    storage.api.create(pod, {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "b-0", "labels": {"app.kubernetes.io/instance": "demo"}},
        "spec": {"containers": [{"name": "c", "image": "none"}], "volumes": [{
            "name": "v", "persistentVolumeClaim": {"claimName": "data-demo-hapax-broker-0"}}]}})
    refused = volumes(storage, "save", folder)
    assert refused.returncode == 1 and "running: pod/b-0" in refused.stderr
    assert storage.names("volumesnapshots") == set()
    storage.api.delete(f"{pod}/b-0?gracePeriodSeconds=0")

    first = Path(done(storage, "save", folder))
    assert not storage.ready, "the release may start before the storage has stored what it took"
    assert storage.names("volumesnapshots") == {f"{name}-{first.name}" for name in ZONES}
    early = volumes(storage, "restore", folder)
    assert early.returncode == 1 and "volumes of the release already" in early.stderr
    storage.ready = True
    done(storage, "finish", folder, "--keep=1")
    backup = json.loads((first / "backup.json").read_text())
    assert {each["name"]: each["zone"] for each in backup["claims"]} == ZONES
    assert all(each["handle"] == f"handle-of-{each['snapshot']}" for each in backup["claims"])

    wait_until(lambda: not first.with_name(now()).exists(), "another second", 5)
    like = tmp_path.with_name(f"{tmp_path.name}.json")  # it is uninstalled: nothing here says what its pods were like
    like.write_text(json.dumps({"items": [{
        "metadata": {"labels": {"app.kubernetes.io/instance": "demo", "app.kubernetes.io/component": "broker"}},
        "spec": {"template": {"spec": {"tolerations": [{"key": "disk", "operator": "Exists"}]}}}}]}))
    second = Path(done(storage, "save", folder, f"--like={like}"))
    done(storage, "finish", str(second), "--keep=1")
    assert [path.name for path in tmp_path.iterdir()] == [second.name]
    wait_until(lambda: storage.names("volumesnapshots") == {f"{name}-{second.name}" for name in ZONES}, "retention", 30)
    policies = {each["spec"]["volumeSnapshotRef"]["name"].rpartition("-")[2]: each["spec"]["deletionPolicy"]
                for each in storage.api.get(f"{GROUP}/volumesnapshotcontents")["items"]
                if each["spec"]["driver"] == storage.driver}
    assert policies == {first.name: "Delete", second.name: "Retain"}, "or the storage would keep what it has"

    # Into another namespace, where the snapshots are not: by the storage's own handles.
    storage.namespace = elsewhere
    for release in ("demo", "other"):  # of etcd's keeper, as a release leaves it: it says which members were removed
        storage.api.create(storage.path("configmaps"), {
            "apiVersion": "v1", "kind": "ConfigMap", "data": {"removed": "a"},
            "metadata": {"name": f"{release}-hapax-etcd", "labels": {
                "app.kubernetes.io/instance": release, "app.kubernetes.io/component": "etcd"}}})
    done(storage, "restore", folder)
    assert storage.names("configmaps") - {"kube-root-ca.crt"} == {"other-hapax-etcd"}, "members that were removed later"
    assert storage.pod_zones == ZONES
    assert {name for name, keys in storage.tolerated.items() if "disk" in keys} == {
        name for name in ZONES if "broker" in name}, "a backup remembers it"
    assert storage.handles == {name: f"handle-of-{name}-{second.name}" for name in ZONES}
    claims = {each["metadata"]["name"]: each for each in storage.api.get(
        storage.path("persistentvolumeclaims"))["items"]}
    assert {each["spec"]["resources"]["requests"]["storage"] for each in claims.values()} == {"2Gi"}
    assert claims["data-demo-hapax-etcd-0"]["metadata"]["labels"]["app.kubernetes.io/component"] == "etcd"
    wait_until(lambda: storage.names("pods") == set(), "end of the pods", 30)


def now() -> str:
    return datetime.now(UTC).strftime("%Y%m%dt%H%M%Sz")


def test_what_cannot_be_kept_is_told(storage: Storage, elsewhere: str, tmp_path: Path) -> None:
    storage.error = "the storage is full"
    full = volumes(storage, "save", str(tmp_path))
    assert full.returncode == 1 and "the storage is full" in full.stderr
    unfinished = volumes(storage, "finish", str(tmp_path))
    assert unfinished.returncode == 1 and f"no backup of demo in {storage.namespace} that is cut" in unfinished.stderr
    storage.error, storage.ready = "", True
    wait_until(lambda: not list(tmp_path.glob(now())), "another second", 5)
    done(storage, "save", str(tmp_path))
    done(storage, "finish", str(tmp_path))
    storage.namespace, storage.astray = elsewhere, True
    astray = volumes(storage, "restore", str(tmp_path))
    assert astray.returncode == 1 and "data-demo-hapax-broker-1 is in a, was in b" in astray.stderr
    assert "broker-0" not in astray.stderr and "WaitForFirstConsumer" in astray.stderr
