"""Topics with a compression of their own on three real brokers: the replicas copy what the leader has compressed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer

from hapax.cli.dump import entries
from hapax.local.cluster import LocalCluster
from integration.test_replication import REPLICATED, TIMEOUT, all_in_sync, make_topic, partition_of, read, servers
from integration.waiting import wait_until

ZSTD = 4


def batches(cluster: LocalCluster, broker: int, topic: str) -> list[tuple[object, ...]]:
    """Offset, codec, size, producer, sequence and leader epoch of each data batch that a broker has."""
    (log,) = Path(cluster.folder.path, f"broker-{broker}").rglob(f"{topic}-0/*.log")
    names = ("offset", "compression", "bytes", "producer_id", "sequence", "leader_epoch")
    return [tuple(entry[name] for name in names) for entry in entries(log) if entry["kind"] != "control"]


def replace_leader(cluster: LocalCluster, topic: str) -> None:
    leader = partition_of(cluster, topic).leader
    cluster.kill(f"broker-{leader}")
    wait_until(lambda: partition_of(cluster, topic).leader not in (-1, leader), "a new leader")
    cluster.restart(f"broker-{leader}")


def test_replicas_hold_what_the_leader_compressed_and_a_new_leader_knows_retries(
    cluster_factory: Callable[..., LocalCluster],
) -> None:
    cluster = cluster_factory(brokers=3, coordinators=1, settings=REPLICATED)
    make_topic(cluster, "packed", compression_type="zstd")
    expected = []
    producer = Producer({
        "bootstrap.servers": servers(cluster), "compression.type": "lz4", "transactional.id": "packed",
        "linger.ms": 5, "log_level": 0})
    producer.init_transactions(TIMEOUT)
    for transaction in range(6):
        producer.begin_transaction()
        for number in range(100):
            value = b"%d.%d" % (transaction, number)
            producer.produce("packed", value, key=b"k", partition=0)
            if transaction % 3 != 1:
                expected.append(value)
        if transaction % 3 == 1:
            producer.flush(TIMEOUT)
            producer.abort_transaction(TIMEOUT)
        else:
            producer.commit_transaction(TIMEOUT)
        if transaction == 2:
            replace_leader(cluster, "packed")
    plain = KafkaProducer(bootstrap_servers=servers(cluster), compression_type="gzip", acks="all")
    for number in range(50):
        plain.send("packed", b"plain %d" % number, partition=0)
        expected.append(b"plain %d" % number)
    plain.flush(TIMEOUT)
    plain.close()
    assert read(cluster, "packed", 1)[0] == expected
    all_in_sync(cluster, "packed")
    stored = [batches(cluster, broker, "packed") for broker in range(3)]
    assert stored[0] == stored[1] == stored[2] and {entry[1] for entry in stored[0]} == {"zstd"}


def test_a_record_without_a_key_is_refused_by_a_compacted_topic(cluster_factory: Callable[..., LocalCluster]) -> None:
    cluster = cluster_factory(brokers=1, coordinators=1)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("keyed", 1, 1, config={"cleanup.policy": "compact"})])["keyed"].result(TIMEOUT)
    told: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    producer.produce("keyed", b"v", on_delivery=lambda error, _: told.append(error and error.code()))
    producer.flush(TIMEOUT)
    producer.produce("keyed", b"v", key=b"k", on_delivery=lambda error, _: told.append(error and error.code()))
    producer.flush(TIMEOUT)
    assert told == [KafkaError.INVALID_RECORD, None]
