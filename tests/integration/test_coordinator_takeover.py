"""Several coordinators, as processes of their own: shared shards, clean hand-overs, deaths, many producers at once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from hapax.local.cluster import LocalCluster
from integration.waiting import nothing_is_open, wait_until

ClusterFactory = Callable[..., LocalCluster]


def new_topic(bootstrap: str, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        created.result(30)


def producer_of(bootstrap: str, transactional_id: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0})
    producer.init_transactions(60)
    return producer


def commit(producer: Producer, topic: str, value: bytes, partitions: int) -> None:
    producer.begin_transaction()
    for partition in range(partitions):
        producer.produce(topic, value=value, partition=partition)
    producer.commit_transaction(60)


def committed_values(bootstrap: str, topic: str, partition: int) -> list[bytes | None]:
    """Once every transaction is decided."""
    wait_until(lambda: nothing_is_open(bootstrap, topic), "end of all transactions")
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "check", "isolation.level": "read_committed",
        "enable.auto.commit": False, "enable.partition.eof": True, "auto.offset.reset": "earliest",
    })
    consumer.assign([TopicPartition(topic, partition, 0)])
    values: list[bytes | None] = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None, "no answer in 30 s"
            if message.error() is None:
                values.append(message.value())
            elif message.error().name() == "_PARTITION_EOF":
                return values
            else:
                raise KafkaException(message.error())
    finally:
        consumer.close()


def test_producers_go_on_through_stops_and_deaths_of_coordinators(cluster_factory: ClusterFactory) -> None:
    """Eight producers, one transaction after the other, each value in both partitions; meanwhile one coordinator is
    stopped cleanly, the other killed, each comes back. No value is lost, doubled or in one partition only."""
    cluster = cluster_factory(brokers=1, coordinators=2)
    new_topic(cluster.bootstrap, "t", 2)
    producers = [producer_of(cluster.bootstrap, f"producer-{number}") for number in range(8)]
    told: list[list[bytes]] = [[] for _ in producers]
    slowest = [0.0] * len(producers)
    stop = threading.Event()
    failures: list[str] = []

    def work(number: int) -> None:
        count = 0
        while not stop.is_set():
            value = b"%d-%d" % (number, count)
            began = time.monotonic()
            try:
                commit(producers[number], "t", value, 2)
            except KafkaException as error:
                failures.append(f"{number}: {error}")
                return
            slowest[number] = max(slowest[number], time.monotonic() - began)
            told[number].append(value)
            count += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(producers))]
    for thread in threads:
        thread.start()
    cluster.restart("coordinator-0")
    cluster.kill("coordinator-1")
    cluster.restart("coordinator-1")
    cluster.wait_ready()
    settled = [len(of) for of in told]
    deadline = time.monotonic() + 30
    while any(len(of) < before + 3 for of, before in zip(told, settled, strict=True)) and not failures:
        assert time.monotonic() < deadline, "a producer does not go on"
        stop.wait(0.05)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert max(slowest) < 15, f"a take-over took {max(slowest):.1f} s"
    expected = Counter(value for of in told for value in of)
    for partition in (0, 1):
        assert Counter(committed_values(cluster.bootstrap, "t", partition)) == expected


def test_a_stopped_coordinator_hands_over_without_waiting_for_its_lease(cluster_factory: ClusterFactory) -> None:
    cluster = cluster_factory(brokers=1, coordinators=2)
    new_topic(cluster.bootstrap, "t", 1)
    producers = [producer_of(cluster.bootstrap, f"producer-{number}") for number in range(4)]
    for producer in producers:
        commit(producer, "t", b"before", 1)
    began = time.monotonic()
    cluster.stop("coordinator-0")
    for producer in producers:
        commit(producer, "t", b"after", 1)
    assert time.monotonic() - began < 5, "the lease is 9 s"
    assert Counter(committed_values(cluster.bootstrap, "t", 0)) == {b"before": 4, b"after": 4}
