"""One of the watched namespaces is deleted, and its rights with it: the others are served as before."""

from __future__ import annotations

import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hapax_kube.api import KubeApi
from hapax_kube.operator import Namespace, OperatorProcess, readiness
from integration.etcd_process import free_ports
from integration.scraping import parsed, total
from integration.waiting import wait_until

pytestmark = pytest.mark.timeout(400)


def name() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


def test_the_other_namespaces_go_on_when_one_is_deleted(
    namespace: Namespace, render: Callable[..., list[dict[str, Any]]], kube_api: KubeApi, tmp_path: Path,
    start_operator: Callable[..., OperatorProcess],
) -> None:
    other = Namespace(kube_api, f"{namespace.name}-other")
    rights = [each for each in render(
        f'operator.watchNamespaces=["{namespace.name}", "{other.name}"]', namespace=namespace.name)
        if each["kind"] in ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")]
    given = tmp_path / "rights.yaml"
    given.write_text(yaml.safe_dump_all(rights))

    kube_api.create("/api/v1/namespaces", {"metadata": {"name": other.name}})
    done = kube_api.kubectl("apply", "-f", str(given))
    assert done.returncode == 0, done.stderr
    (port,) = free_ports(1)
    operator = start_operator(
        namespace, kubeconfig=kube_api.kubeconfig_of(namespace.name, "demo-hapax-operator"),
        more=("--namespace", other.name, "--set", f"http.listen=127.0.0.1:{port}"))
    here, there = name(), name()
    namespace.topic(here)
    other.topic(there)
    both, also = name(), name()
    other.topic("elder", topicName=both)
    namespace.topic("mine", topicName=also, deletionPolicy="Delete")
    wait_until(lambda: namespace.ready(here) and other.ready(there), "ready topics", 90)
    wait_until(lambda: other.ready("elder") and namespace.ready("mine"), "ready topics", 30)
    namespace.topic("younger", topicName=both)
    other.topic("late", topicName=also)
    for where, each in ((namespace, "younger"), (other, "late")):
        wait_until(lambda where=where, each=each:  # type: ignore[misc]
                   where.condition("topics", each, "Ready") == ("False", "ResourceConflict"), "conflict", 30)

    other.delete("topics", there)
    wait_until(lambda: not other.exists("topics", there), "end of the topic", 30)
    kube_api.delete(f"/api/v1/namespaces/{other.name}")
    wait_until(lambda: not kube_api.exists(f"/api/v1/namespaces/{other.name}"), "end of the namespace", 60)
    wait_until(lambda: "may not be read" in operator.log() and other.name in operator.log(), "line about it", 120)
    wait_until(lambda: unreadable(port) == 1, "metric", 30)
    assert readiness(port) == ""
    second = name()
    namespace.topic(second)
    wait_until(lambda: namespace.ready(second), "topic in the namespace that is left", 30)
    # What was described there no longer takes precedence, and holds up no deletion.
    wait_until(lambda: namespace.condition("topics", "younger", "Ready")[1] != "ResourceConflict", "end of it", 60)
    namespace.delete("topics", "mine")
    wait_until(lambda: not namespace.exists("topics", "mine"), "end of the topic", 60)

    kube_api.kubectl("delete", "--wait=false", "--ignore-not-found", "-f", str(given))


def unreadable(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return total(parsed(answer.read().decode()), "hapax_operator_namespaces_unreadable")
