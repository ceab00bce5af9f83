"""A real client that uses fetch sessions (KIP-227) reads everything once, whatever it pauses, seeks and forgets."""

from __future__ import annotations

import time
import urllib.request

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from clients.test_foreign_clients import new_topic
from hapax.local.cluster import LocalCluster

PARTITIONS = 20
ROUNDS = 40


def sessions(cluster: LocalCluster) -> dict[str, float]:
    """The broker's metrics of fetch sessions."""
    port = cluster.status().process("broker-0").http_port
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = (line.rpartition(" ") for line in lines if line.startswith("hapax_broker_fetch_session"))
    return {name: float(value) for name, _, value in found}


def test_kafka_python_reads_in_a_session(cluster: LocalCluster) -> None:
    topic = new_topic(cluster.bootstrap, PARTITIONS)
    everything = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap)
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False,
        isolation_level="read_committed", fetch_max_wait_ms=100)
    consumer.assign(everything)
    read: list[tuple[int, int]] = []
    sent = 0
    most = 0.0

    def poll() -> None:
        for found in consumer.poll(200).values():
            read.extend((record.partition, record.offset) for record in found)

    for number in range(ROUNDS):
        for index in range(5):
            producer.send(topic, b"%d" % sent, partition=(7 * number + index) % PARTITIONS)
            sent += 1
        producer.flush()
        poll()
        if number == ROUNDS // 4:
            consumer.pause(*everything[:3])
        if number == ROUNDS // 2:
            consumer.resume(*everything[:3])
            most = sessions(cluster)["hapax_broker_fetch_session_partitions"]
    until = time.monotonic() + 30
    while len(read) < sent and time.monotonic() < until:
        poll()
    assert len(read) == len(set(read)) == sent
    for partition in range(PARTITIONS):
        offsets = [offset for index, offset in read if index == partition]
        assert offsets == list(range(len(offsets)))
    assert most >= PARTITIONS - 3, "it used no session"
    consumer.close()
    producer.close()
