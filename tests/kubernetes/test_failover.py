"""The controller that the operator hosts: it takes over and fails over, whatever the API server does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import end_cluster, start_cluster
from hapax.client.blocking import Admin, Producer
from hapax.local.cluster import LocalCluster
from hapax_kube.api import KubeApi
from hapax_kube.operator import Namespace, OperatorProcess
from integration.waiting import wait_until

pytestmark = pytest.mark.timeout(180)

TOPIC = "orders"


@pytest.fixture
def three(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = start_cluster(tmp_path / "hapax", brokers=3)
    yield cluster
    end_cluster(cluster)


def leaders(admin: Admin) -> list[int]:
    (topic,) = (each for each in admin.list_topics() if each.name == TOPIC)
    return [each.leader for each in topic.partitions]


def write(producer: Producer) -> None:
    """Every partition takes a record, by one transaction."""
    with producer.transaction():
        for partition in range(6):
            producer.send(TOPIC, b"x", partition=partition)


def test_failover_needs_neither_the_api_server_nor_another_controller(
    three: LocalCluster, kube_api: KubeApi, namespace: Namespace, tmp_path: Path
) -> None:
    operator = OperatorProcess(three, kube_api.kubeconfig, namespace.name, 300, tmp_path / "operator")
    (controller,) = (each.name for each in three.status().processes if each.role == "controller")
    three.kill(controller)  # its node id, too, is free for the operator then
    operator.start()
    try:
        namespace.topic(TOPIC, partitions=6, replicationFactor=3, config={"min.insync.replicas": "2"})
        wait_until(
            lambda: namespace.get("topics", TOPIC).get("status", {}).get("inSync") == "6/6", "topic wholly in sync", 90)
        here = {"bootstrap.servers": ",".join(
            f"127.0.0.1:{each.port}" for each in three.status().processes if each.role == "broker")}
        with Admin(here) as admin, Producer({**here, "transactional.id": TOPIC}) as producer:
            lost = leaders(admin)[0]
            kube_api.pause_server()
            try:
                write(producer)
                three.kill(f"broker-{lost}")
                wait_until(
                    lambda: lost not in (now := leaders(admin)) and -1 not in now, "leader for every partition", 30)
                write(producer)
            finally:
                kube_api.resume_server()
            namespace.patch("topics", TOPIC, partitions=7)
            wait_until(lambda: len(leaders(admin)) == 7, "what was asked for since", 60)
        wait_until(lambda: namespace.get("topics", TOPIC)["status"]["inSync"] == "0/7", "status of the lost broker", 60)
        assert namespace.ready(TOPIC)
        three.start(f"broker-{lost}")
        wait_until(lambda: namespace.get("topics", TOPIC)["status"]["inSync"] == "7/7", "broker caught up", 90)
        assert operator.stop() == 0
    finally:
        operator.close()
