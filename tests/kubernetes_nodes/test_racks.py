"""Racks on machines with zones: each broker has its machine's, consumers read in theirs, and a broker that moves
has the other machine's."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Iterator

import pytest
from kafka import KafkaAdminClient

from hapax.client import Consumer, NewTopic
from hapax.client.blocking import Admin, Producer
from hapax_kube.cluster import KubeCluster
from hapax_kube.tools import Release
from integration.waiting import wait_until

pytestmark = pytest.mark.timeout(600)

NAME = "hapax-broker"
ZONE = "topology.kubernetes.io/zone"


def told(release: Release) -> tuple[str, str]:
    """Reason and message of the condition."""
    found = release.tools.get("brokerpool", NAME, "-n", release.namespace)["status"]["conditions"]
    return next(((each["reason"], each["message"]) for each in found if each["type"] == "RacksKnown"), ("", ""))


def placed(release: Release) -> dict[int, str]:
    return {int(pod["metadata"]["name"].rpartition("-")[2]): pod["spec"].get("nodeName", "")
            for pod in release.pods("broker")}


@pytest.fixture
def zones(cluster: KubeCluster, release: Release) -> Iterator[dict[str, str]]:
    """Node -> the zone that the test gives it; it has none before."""
    nodes = release.tools.get("nodes")["items"]
    former = {node["metadata"]["name"]: node["metadata"]["labels"].get(ZONE) for node in nodes}
    release.tools.kubectl("label", "nodes", "--all", f"{ZONE}-")
    yield {node: f"new-{node}" for node in cluster.nodes}
    release.tools.kubectl("uncordon", *cluster.nodes)
    for node, zone in former.items():
        release.tools.kubectl("label", "--overwrite", "node", node, f"{ZONE}={zone}" if zone else f"{ZONE}-")


async def read_from(outside: str, topic: str, rack: str, records: int) -> set[int]:
    """The brokers from which a consumer of this rack read the topic."""
    nodes: set[int] = set()
    async with Consumer({
        "bootstrap.servers": outside, "client.rack": rack, "auto.offset.reset": "earliest", "fetch.max.wait.ms": 100,
    }) as consumer:
        consumer.assign(await consumer.partitions(topic))
        seen = 0
        async with asyncio.timeout(60):
            while seen < records or not nodes:
                seen += len(await consumer.poll(200))
                nodes |= {each.node_id for each in consumer._fetcher.replicas._chosen.values()}
    return nodes


def test_brokers_have_the_zones_of_their_machines(
    cluster: KubeCluster, release: Release, admin: Admin, outside: str, zones: dict[str, str],
    figures: dict[str, float],
) -> None:
    def racks() -> dict[int, str]:
        found = client.describe_cluster()["brokers"]
        return {each["broker_id"]: each["rack"] for each in found if each["broker_id"] < 100}

    def follow_the_machines() -> bool:
        return racks() == {broker: zones.get(node) for broker, node in placed(release).items()}

    before = {pod["metadata"]["uid"] for pod in release.pods("broker")}
    wait_until(lambda: all(f"{NAME}-{broker}: node {node} has no label {ZONE}" in told(release)[1]
                           for broker, node in placed(release).items()), "condition", 60, every_s=0.5)
    assert told(release)[0] == "RackUnknown"
    began = time.monotonic()
    for node, zone in zones.items():
        release.tools.kubectl("label", "node", node, f"{ZONE}={zone}")
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=outside)) as client:
        wait_until(follow_the_machines, "racks", 60, every_s=0.5)
        figures["from labelled machines to brokers with racks"] = time.monotonic() - began
        wait_until(lambda: told(release)[0] == "Labelled", "condition", 30, every_s=0.5)
        assert {pod["metadata"]["uid"] for pod in release.pods("broker")} == before, "without a restart"

        topic = f"racks-{uuid.uuid4().hex[:8]}"
        admin.create_topics([NewTopic(topic, 1, 3)])
        with Producer({"bootstrap.servers": outside}) as producer:
            for number in range(10):
                producer.send(topic, b"%d" % number).result()
        (led,) = (each.partitions[0].leader for each in admin.list_topics() if each.name == topic)
        far = next(broker for broker in placed(release) if broker != led)
        assert asyncio.run(read_from(outside, topic, racks()[far], 10)) == {far}
        admin.delete_topics([topic])

        node = placed(release)[1]
        release.tools.kubectl("cordon", node)
        release.tools.kubectl("-n", release.namespace, "delete", "pod", f"{NAME}-1")
        wait_until(lambda: placed(release).get(1, "") not in ("", node), "pod elsewhere", 60, every_s=0.5)
        release.wait_ready()
        wait_until(follow_the_machines, "rack of the other machine", 60, every_s=0.5)
        # The scheduler prefers machines without a broker, and weighs other things too.
        release.tools.kubectl("cordon", *(each for each in cluster.nodes if each != node))
        release.tools.kubectl("uncordon", node)
        release.tools.kubectl("-n", release.namespace, "delete", "pod", f"{NAME}-1")
        wait_until(lambda: placed(release).get(1) == node, "pod where it was", 60, every_s=0.5)
        release.wait_ready()
        wait_until(follow_the_machines, "rack of the former machine", 60, every_s=0.5)
