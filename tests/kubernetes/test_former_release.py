"""`helm upgrade` of a release of the first phase (commit a76baed): what the API server takes, and what the chart
refuses. `make kube-upgrade` does the same with pods and load."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from hapax_kube import former
from hapax_kube.api import KubeApi
from hapax_kube.binaries import ROOT
from hapax_kube.operator import Namespace

CHART = ROOT / "charts" / "hapax"
OPEN = "security.enabled=false"
SETS = "statefulsets"

Helm = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def release(helm: Helm, kube_api: KubeApi, namespace: Namespace) -> Helm:
    """`release("upgrade", chart, "name=value")`"""

    def run(verb: str, chart: Any, *values: str) -> subprocess.CompletedProcess[str]:
        sets = [word for value in ("crds.install=false", "image.repository=registry.example/hapax", *values)
                for word in ("--set", value)]
        return helm(verb, "hapax", str(chart), "--namespace", namespace.name,
                    f"--kubeconfig={kube_api.kubeconfig}", *sets)

    installed = run("install", former.tree() / "charts" / "hapax")
    assert installed.returncode == 0, installed.stderr
    return run


def test_upgraded_in_the_steps_of_the_page(release: Helm, namespace: Namespace) -> None:
    workloads = f"/apis/apps/v1/namespaces/{namespace.name}"
    before = {kind: {each["metadata"]["name"]: each for each in namespace.api.get(f"{workloads}/{kind}")["items"]}
              for kind in (SETS, "deployments")}
    assert len(before[SETS]) == 3 and len(before["deployments"]) == 2
    refused = release("upgrade", CHART, OPEN, "formerCalls=true")
    assert refused.returncode != 0 and "patch statefulset hapax-etcd" in refused.stderr
    namespace.api.patch(f"{workloads}/{SETS}/hapax-etcd", {
        "spec": {"updateStrategy": {"type": "OnDelete", "rollingUpdate": None}}})
    first = release("upgrade", CHART, OPEN, "formerCalls=true")
    assert first.returncode == 0, first.stderr
    for kind, items in before.items():
        for name, each in items.items():
            now = namespace.api.get(f"{workloads}/{kind}/{name}")
            assert now["metadata"]["uid"] == each["metadata"]["uid"], f"{name} was made again"
            assert now["spec"]["selector"] == each["spec"]["selector"]
            if kind == SETS:
                assert now["spec"]["updateStrategy"] == {"type": "OnDelete"}
                assert now["spec"].get("volumeClaimTemplates") == each["spec"].get("volumeClaimTemplates")
    second = release("upgrade", CHART, OPEN)
    assert second.returncode == 0, second.stderr


@pytest.mark.parametrize(("values", "says"), [
    ((), "security.enabled=false"),
    ((OPEN,), "From the first phase"),
    (("formerCalls=true", "security.migrate=true"), "security.enabled=false"),
])  # fmt: skip
def test_no_step_is_left_out(release: Helm, values: tuple[str, ...], says: str) -> None:
    refused = release("upgrade", CHART, *values)
    assert refused.returncode != 0 and says in refused.stderr
