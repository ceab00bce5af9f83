"""Brokers come and leave, and lose their volumes, while a transactional producer writes: nothing is lost or doubled.

The clients run outside the pods and come by the external listeners.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator

import pytest
from kafka import KafkaAdminClient

from hapax.client import NewTopic
from hapax.client.blocking import Admin, Consumer, Producer
from hapax_kube.cluster import KubeCluster
from hapax_kube.page import Page
from hapax_kube.tools import Release
from integration.waiting import wait_until

pytestmark = pytest.mark.timeout(600)

NAME = "hapax-broker"
PATIENCE = "--timeout=240s"


class Load:
    """Transactions of three records, until it is closed; then what was committed."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.committed: list[bytes] = []
        self.failure: BaseException | None = None
        self._topic = topic
        self._options = {"bootstrap.servers": bootstrap, "transactional.id": topic, "delivery.timeout.ms": 120_000}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with Producer(self._options) as producer:
                number = 0
                while not self._end.is_set():
                    values = [b"%d" % (number + k) for k in range(3)]
                    with producer.transaction():
                        for value in values:
                            producer.send(self._topic, value)
                    self.committed += values
                    number += 3
                    self._end.wait(0.05)
        except BaseException as error:
            self.failure = error

    def close(self) -> list[bytes]:
        self._end.set()
        self._thread.join(180)
        assert not self._thread.is_alive(), "the producer hangs"
        if self.failure is not None:
            raise self.failure
        return self.committed


@pytest.fixture
def load(admin: Admin, outside: str) -> Iterator[Load]:
    topic = f"load-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, 6, 3, config={"min.insync.replicas": "2"})])
    load = Load(outside, topic)
    wait_until(lambda: len(load.committed) > 30 or load.failure is not None, "first transactions", 60)
    yield load
    before = len(load.committed)
    wait_until(lambda: len(load.committed) > before + 30 or load.failure is not None, "last transactions", 60)
    committed = load.close()
    read: Counter[bytes] = Counter()
    with Consumer({
        "bootstrap.servers": outside, "isolation.level": "read_committed", "auto.offset.reset": "earliest",
    }) as consumer:
        consumer.assign(consumer.partitions(topic))
        limit = time.monotonic() + 60
        while len(read) < len(committed) and time.monotonic() < limit:
            read.update(record.value for record in consumer.poll())
    assert read == Counter(committed)
    admin.delete_topics([topic])


def held(admin: Admin, broker: int) -> int:
    return sum(broker in each.replicas for topic in admin.list_topics() for each in topic.partitions)


def wait_for_pool(release: Release) -> None:
    release.tools.kubectl(
        "-n", release.namespace, "wait", "--for=condition=Ready", PATIENCE, f"brokerpool/{NAME}", timeout_s=260)


def names(release: Release) -> list[str]:
    return sorted(each["metadata"]["name"] for each in release.pods("broker"))


def test_clients_outside_are_told_addresses_that_they_reach(outside: str, release: Release) -> None:
    """By another's client, too."""
    client = KafkaAdminClient(bootstrap_servers=outside)
    try:
        told = {each["broker_id"]: (each["host"], each["port"]) for each in client.describe_cluster()["brokers"]}
    finally:
        client.close()
    machines = {
        address["address"] for node in release.tools.get("nodes")["items"] for address in node["status"]["addresses"]}
    assert {host for host, _ in told.values()} <= machines
    assert {node_id: port for node_id, (_, port) in told.items()} == {
        node_id: 30_000 + node_id for node_id in told} and len(told) >= 3


def test_a_broker_comes_gets_its_share_and_leaves_without_it(
    release: Release, page: Page, admin: Admin, load: Load, figures: dict[str, float]
) -> None:
    """As docs/kubernetes.md says."""
    began = time.monotonic()
    page.follow("More brokers")
    release.wait_ready()
    assert names(release)[-1] == f"{NAME}-3" and held(admin, 3) > 0
    figures["from 3 to 4 brokers, with their shares"] = time.monotonic() - began

    began = time.monotonic()
    page.follow("Fewer brokers")
    three = [f"{NAME}-{number}" for number in range(3)]
    wait_until(lambda: names(release) == three, "end of the pod", 60, every_s=0.5)
    assert held(admin, 3) == 0
    figures["from 4 to 3 brokers, once what it held had moved"] = time.monotonic() - began
    kept = release.tools.get("pvc", "-n", release.namespace, f"data-{NAME}-3")
    assert kept["metadata"].get("deletionTimestamp") is None
    release.tools.kubectl("-n", release.namespace, "delete", "pvc", f"data-{NAME}-3")
    with pytest.raises(AssertionError, match="replicas of broker 1 lie on this volume"):
        release.tools.kubectl("-n", release.namespace, "delete", "pvc", f"data-{NAME}-1")
    release.upgrade()  # its own values again
    assert len(names(release)) == 3


def test_a_machine_is_drained(
    cluster: KubeCluster, release: Release, page: Page, load: Load, figures: dict[str, float]
) -> None:
    """As docs/kubernetes.md says."""
    node = cluster.node_of(release.namespace, f"{NAME}-1")
    before = {pod["metadata"]["uid"] for pod in release.pods("broker") if pod["spec"]["nodeName"] == node}
    began = time.monotonic()
    page.follow("Draining a machine", NODE=node)
    figures["a machine drained, and all whole again"] = time.monotonic() - began
    assert before and not before & {pod["metadata"]["uid"] for pod in release.pods("broker")}
    release.wait_ready()
    machines = [pod["spec"]["nodeName"] for role in ("broker", "etcd") for pod in release.pods(role)]
    assert Counter(machines) == dict.fromkeys(cluster.nodes, 2), "one of each role on each machine"


def test_a_volume_is_replaced_and_its_broker_copies_all_of_it(
    release: Release, admin: Admin, load: Load, figures: dict[str, float]
) -> None:
    space, pool, claim = ("-n", release.namespace), f"brokerpool/{NAME}", f"data-{NAME}-2"
    former = release.tools.get("pvc", *space, claim)["metadata"]["uid"]
    began = time.monotonic()
    release.tools.kubectl(*space, "patch", pool, "--type=merge", "-p", '{"spec": {"replaceVolumeOf": 2}}')
    release.tools.kubectl(*space, "wait", "--for=condition=VolumeReplaceable", PATIENCE, pool, timeout_s=260)
    release.tools.kubectl(*space, "delete", "pvc", claim, "--wait=false")
    release.tools.kubectl(*space, "delete", "pod", f"{NAME}-2")

    def anew() -> bool:
        words = ("get", "pvc", claim, *space, "--ignore-not-found", "-o", "jsonpath={.metadata.uid}")
        found = release.tools.kubectl(*words)
        return bool(found) and found != former

    wait_until(anew, "another claim", 120, every_s=0.5)
    release.wait_ready()

    def in_sync() -> bool:
        return all(len(each.isr) == len(each.replicas) for topic in admin.list_topics() for each in topic.partitions)

    wait_until(in_sync, "all replicas in sync", 120, every_s=0.2)
    figures["another volume for a broker, and all copied to it"] = time.monotonic() - began
    release.tools.kubectl(*space, "patch", pool, "--type=merge", "-p", '{"spec": {"replaceVolumeOf": null}}')
    wait_for_pool(release)
