"""DeleteRecords by real clients on three real brokers, one of which is killed: what is deleted stays deleted."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition as KafkaTopicPartition

from hapax.local.cluster import LocalCluster
from integration.test_replication import REPLICATED, TIMEOUT, make_topic, partition_of, servers
from integration.waiting import wait_until

Make = Callable[..., LocalCluster]


def begin_of(cluster: LocalCluster, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": servers(cluster), "group.id": "begin", "log_level": 0})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT)[0])
    finally:
        consumer.close()


def values(cluster: LocalCluster, topic: str, count: int) -> list[bytes]:
    """By a reader whose position is among the deleted records."""
    consumer = Consumer({
        "bootstrap.servers": servers(cluster), "group.id": "values", "auto.offset.reset": "earliest", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    try:
        while len(found) < count:
            message = consumer.poll(TIMEOUT)
            assert message is not None and message.error() is None
            found.append(message.value()[:3])
    finally:
        consumer.close()
    return found


def test_deleted_records_stay_deleted_through_a_failover_and_a_restart(cluster_factory: Make) -> None:
    cluster = cluster_factory(brokers=3, coordinators=1, settings=REPLICATED)
    make_topic(cluster, "logs", segment_bytes="4096")
    producer = Producer({"bootstrap.servers": servers(cluster), "log_level": 0, "acks": "all"})
    for number in range(100):
        producer.produce("logs", b"%03d" % number + bytes(200), partition=0)
        producer.flush(TIMEOUT)
    admin = AdminClient({"bootstrap.servers": servers(cluster), "log_level": 0})
    (answer,) = admin.delete_records([TopicPartition("logs", 0, 42)]).values()
    assert answer.result(TIMEOUT).low_watermark == 42
    (answer,) = admin.delete_records([TopicPartition("logs", 0, 101)]).values()
    try:
        answer.result(TIMEOUT)
        raise AssertionError("there is no such offset")
    except KafkaException as error:
        assert error.args[0].name() == "OFFSET_OUT_OF_RANGE"
    leader = partition_of(cluster, "logs").leader
    cluster.kill(f"broker-{leader}")
    wait_until(lambda: partition_of(cluster, "logs").leader not in (-1, leader), "a new leader")
    assert begin_of(cluster, "logs") == 42
    assert values(cluster, "logs", 58) == [b"%03d" % number for number in range(42, 100)]
    python = KafkaAdminClient(bootstrap_servers=servers(cluster))
    try:
        wait_until(lambda: len(partition_of(cluster, "logs").isrs) == 2, "the in-sync set without it")
        answered = python.delete_records({KafkaTopicPartition("logs", 0): 77})
        assert answered[KafkaTopicPartition("logs", 0)]["low_watermark"] == 77
    finally:
        python.close()
    cluster.restart(f"broker-{leader}")
    wait_until(lambda: len(partition_of(cluster, "logs").isrs) == 3, "in-sync set of all")
    for each in range(3):
        if each != leader:
            cluster.kill(f"broker-{each}")
    wait_until(lambda: partition_of(cluster, "logs").leader == leader, "the one that was away leads")
    assert begin_of(cluster, "logs") == 77
