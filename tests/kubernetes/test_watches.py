"""Watches that die without a sign, and Events that occur again, against a real API server."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hapax.client.blocking import Admin
from hapax.local.cluster import LocalCluster
from hapax_kube.api import KubeApi
from hapax_kube.operator import Namespace, OperatorProcess, readiness
from hapax_kube.swallow import SwallowingProxy
from integration.etcd_process import free_ports
from integration.waiting import wait_until

TOPICS = "topics"

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def proxy(kube_api: KubeApi) -> Iterator[SwallowingProxy]:
    made = SwallowingProxy(free_ports(1)[0], (kube_api.address, kube_api.port)).start()
    yield made
    made.close()


def name() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


def test_a_watch_that_is_dead_makes_the_process_unready_and_is_found(
    namespace: Namespace, start_operator: Callable[..., OperatorProcess], kube_api: KubeApi, proxy: SwallowingProxy,
    tmp_path: Path,
) -> None:
    kubeconfig = json.loads(kube_api.kubeconfig.read_text())
    kubeconfig["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{proxy.port}"
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig))
    (port,) = free_ports(1)
    start_operator(namespace, kubeconfig=path, more=("--set", f"http.listen=127.0.0.1:{port}"))
    first, second, third = name(), name(), name()
    namespace.topic(first)
    wait_until(lambda: namespace.ready(first), "ready topic", 60)
    wait_until(lambda: readiness(port) == "", "ready process", 30)

    proxy.kill_connections()
    namespace.topic(second)
    wait_until(lambda: "missed" in readiness(port), "process that is not ready", 90)
    wait_until(lambda: namespace.ready(second), "topic that no watch reported", 60)
    namespace.delete(TOPICS, first)
    wait_until(lambda: readiness(port) == "", "watch that was made again", 120)
    namespace.topic(third)
    wait_until(lambda: namespace.ready(third), "topic of the watch that was made again", 30)

    proxy.hangs = True
    proxy.kill_connections()
    wait_until(lambda: "listed no resources" in readiness(port), "process that is not ready", 120)
    proxy.hangs = False
    proxy.kill_connections()
    wait_until(lambda: readiness(port) == "", "server that answers again", 120)


def test_an_event_that_occurs_again_is_counted_up(
    namespace: Namespace, start_operator: Callable[..., OperatorProcess], hapax: LocalCluster
) -> None:
    operator = start_operator(namespace)
    topic = name()
    namespace.topic(topic)
    wait_until(lambda: namespace.ready(topic), "ready topic", 60)

    def made() -> list[int]:
        found = namespace.api.get(f"/apis/events.k8s.io/v1/namespaces/{namespace.name}/events")
        return [(each.get("series") or {"count": 1})["count"] for each in found["items"]
                if each["reason"] == "TopicCreated"]

    assert made() == [1]
    for times in (2, 3):
        with Admin({"bootstrap.servers": hapax.bootstrap}) as admin:
            admin.delete_topics([topic])
        wait_until(lambda times=times: made() == [times], f"count of {times}", 60)  # type: ignore[misc]
        operator.stop()
        operator = start_operator(namespace)
    shown = namespace.api.kubectl("-n", namespace.name, "describe", "topic", topic).stdout
    assert "x3 over" in shown or "TopicCreated" in shown
