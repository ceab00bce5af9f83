"""All volumes of etcd are lost, and a snapshot of the keeper's is put in their place: etcd alone, without nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import yaml

from hapax_kube.binaries import ROOT
from hapax_kube.tools import CHART, Tools
from integration.waiting import wait_until

from .conftest import VALUES

pytestmark = pytest.mark.timeout(600)

SPACE = "snapshot"
NAME = "snap-hapax-etcd"
KINDS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ConfigMap", "Service",
         "StatefulSet", "Deployment", "PersistentVolumeClaim")


@pytest.fixture
def etcd(tools: Tools, release: object) -> Iterator[Tools]:
    """One member and its keeper. The definitions are those of the release."""
    rendered = tools.helm("template", "snap", str(CHART), "-n", SPACE, "-f", str(VALUES), "--set",
                          "etcd.replicas=1,crds.install=false")
    objects = [each for each in yaml.safe_load_all(rendered)
               if each and each["kind"] in KINDS and "etcd" in each["metadata"]["name"]]
    tools.kubectl("create", "namespace", SPACE)
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    tools.kubectl("apply", "-f", "-", text=text)
    yield tools
    tools.kubectl("delete", "-f", "-", "--ignore-not-found", "--wait=false", text=text)
    tools.kubectl("delete", "namespace", SPACE, "--wait=false")


def run(tools: Tools, *words: str) -> str:
    return tools.kubectl("exec", "-n", SPACE, *words).strip()


def ready(tools: Tools, status: str = "True") -> None:
    tools.kubectl("wait", "-n", SPACE, f"--for=condition=Ready={status}", f"workload/{NAME}", "--timeout=100s")


def test_a_snapshot_of_the_keeper_is_restored(etcd: Tools) -> None:
    etcd.kubectl("wait", "-n", SPACE, "--for=create", f"workload/{NAME}", "--timeout=60s")
    ready(etcd)
    member, keeper = f"{NAME}-0", f"deploy/{NAME}-keeper"
    run(etcd, member, "--", "etcdctl", "put", "kept", "1")
    run(etcd, keeper, "--", "sh", "-c", "rm -f /snapshots/*.db")
    wait_until(lambda: ".db" in run(etcd, keeper, "--", "ls", "/snapshots"), "a snapshot", 60, every_s=1)
    run(etcd, member, "--", "etcdctl", "put", "lost", "1")

    def restore() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, ROOT / "scripts" / "volumes.py", "restore-etcd", SPACE, "snap"], text=True,
            capture_output=True, check=False, timeout=300, env={
                **os.environ, "KUBECONFIG": str(etcd.kubeconfig), "PATH": f"{etcd.binaries}:{os.environ['PATH']}"})

    refused = restore()
    assert refused.returncode == 1 and "a snapshot replaces no data" in refused.stderr
    etcd.kubectl("delete", "-n", SPACE, "pvc", f"data-{member}", "--wait=false")
    etcd.kubectl("delete", "-n", SPACE, "pod", member)
    last = refused

    def waits() -> bool:
        nonlocal last
        last = restore()
        return "does not wait" not in last.stderr

    wait_until(waits, "an empty volume", 90, every_s=2)
    assert last.returncode == 0, last.stderr
    ready(etcd)
    assert run(etcd, member, "--", "etcdctl", "get", "--prefix", "", "--print-value-only") == "1"
    run(etcd, member, "--", "etcdctl", "put", "again", "1")
