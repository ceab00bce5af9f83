"""Volumes grow, as the page says, and are backed up where they are.

Folders of the machines do not grow, so the test reports as the storage's driver would.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hapax_kube.binaries import ROOT
from hapax_kube.cluster import KubeCluster
from hapax_kube.images import HAPAX
from hapax_kube.page import Page
from hapax_kube.tools import Release

pytestmark = pytest.mark.timeout(600)

SELECTOR = "app.kubernetes.io/component=broker"


@contextmanager
def driver(release: Release) -> Iterator[list[str]]:
    """Gives each claim of a broker what it asks for. Yields the names of those that were given more."""
    grown: list[str] = []
    end = threading.Event()

    def give() -> None:
        tools, space = release.tools, ("-n", release.namespace)
        for claim in tools.get("pvc", *space, "-l", SELECTOR)["items"]:
            name, asked = claim["metadata"]["name"], claim["spec"]["resources"]["requests"]["storage"]
            if claim["status"].get("capacity", {}).get("storage") == "1Gi" != asked:
                capacity = {"capacity": {"storage": asked}}
                tools.kubectl("patch", "pv", claim["spec"]["volumeName"], "-p", json.dumps({"spec": capacity}))
                tools.kubectl("patch", "pvc", name, *space, "--subresource=status", "-p",
                              json.dumps({"status": capacity}))
                grown.append(name)

    def work() -> None:
        while not end.wait(1):
            give()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield grown
    finally:
        end.set()
        thread.join(60)


def test_volumes_of_brokers_grow(cluster: KubeCluster, release: Release, page: Page) -> None:
    before = {each["metadata"]["name"]: each["metadata"]["uid"] for each in release.pods("broker")}
    with driver(release) as grown:
        page.follow("Larger volumes")
    assert {f"data-{name}" for name in before} <= set(grown)
    assert {each["metadata"]["name"]: each["metadata"]["uid"] for each in release.pods("broker")} == before
    release.wait_ready()


ZONE = "topology.kubernetes.io/zone"
SPACE = "zones"
CLAIMS = {"data-zoned-broker-0": "node-1", "data-zoned-broker-1": "node-2"}


@pytest.fixture
def zoned(cluster: KubeCluster) -> Iterator[KubeCluster]:
    """Two machines in zones of their own, with two volumes each that no other machine reaches."""
    tools, given = cluster.tools, []
    for node in CLAIMS.values():
        if ZONE not in tools.get("node", node)["metadata"]["labels"]:
            tools.kubectl("label", "node", node, f"{ZONE}=zone-of-{node}")
            given.append(node)
    items: list[Any] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}},
        {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "zoned"},
         "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}]
    for name in [f"{node}-{number}" for node in CLAIMS.values() for number in range(2)]:
        path = cluster.folder / "zoned" / name
        path.mkdir(parents=True)
        path.chmod(0o777)
        items.append({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"zoned-{name}"}, "spec": {
            "capacity": {"storage": "1Gi"}, "storageClassName": "zoned", "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": str(path)}, "persistentVolumeReclaimPolicy": "Retain",
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [name.rpartition("-")[0]]}]}]}}}})
    tools.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    yield cluster
    tools.kubectl("delete", "namespace", SPACE, "--wait=false")
    tools.kubectl("delete", "pv", *(each["metadata"]["name"] for each in items[2:]), "--wait=false")
    tools.kubectl("delete", "storageclass", "zoned")
    for node in given:
        tools.kubectl("label", "node", node, f"{ZONE}-")


def run(cluster: KubeCluster, script: str, nodes: dict[str, str]) -> dict[str, str]:
    """What the script prints in a pod with each claim, on these machines where they are given."""
    tools = cluster.tools
    for claim in CLAIMS:
        tools.kubectl("apply", "-f", "-", text=json.dumps({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": claim, "namespace": SPACE},
            "spec": {"restartPolicy": "Never", "securityContext": {"runAsUser": 10001},
                     "nodeSelector": {"kubernetes.io/hostname": nodes[claim]} if nodes else {},
                     "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}],
                     "containers": [{
                         "name": "c", "image": HAPAX, "imagePullPolicy": "Never", "command": ["sh", "-c", script],
                         "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}}))
    said = {}
    for claim in CLAIMS:
        tools.kubectl("wait", "-n", SPACE, f"pod/{claim}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
        said[claim] = tools.kubectl("logs", "-n", SPACE, claim).strip()
    tools.kubectl("delete", "pod", "-n", SPACE, *CLAIMS)
    return said


def places(cluster: KubeCluster) -> dict[str, str]:
    """Claim -> the machine that its volume is on."""
    found = {}
    for claim in cluster.tools.get("pvc", "-n", SPACE)["items"]:
        volume = cluster.tools.get("pv", claim["spec"]["volumeName"])
        (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        found[claim["metadata"]["name"]] = term["matchExpressions"][0]["values"][0]
    return found


def test_volumes_that_no_machine_reaches_together_are_backed_up_and_restored_where_they_were(
    zoned: KubeCluster, tmp_path: Path
) -> None:
    tools = zoned.tools
    environment = {**os.environ, "KUBECONFIG": str(tools.kubeconfig), "PATH": f"{tools.binaries}:{os.environ['PATH']}"}

    def volumes(verb: str) -> None:
        image = () if verb == "finish" else (HAPAX,)
        subprocess.run([sys.executable, ROOT / "scripts" / "volumes.py", verb, SPACE, "zoned", *image, tmp_path],
                       env=environment, check=True, timeout=300)

    tools.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": [{
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": SPACE, "labels": {
            "app.kubernetes.io/instance": "zoned", "app.kubernetes.io/component": "broker"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "zoned",
                 "resources": {"requests": {"storage": "1Gi"}}}} for name in CLAIMS]}))
    run(zoned, "mkdir /v/d && hostname > /v/d/name", CLAIMS)
    assert places(zoned) == CLAIMS
    volumes("save")
    volumes("finish")
    tools.kubectl("delete", "pvc", "-n", SPACE, *CLAIMS)
    volumes("restore")
    assert places(zoned) == CLAIMS
    assert run(zoned, "cat /v/d/name", {}) == {claim: claim for claim in CLAIMS}
