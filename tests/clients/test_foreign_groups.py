"""Groups of kafka-python's and aiokafka's consumers (the classic protocol), and mixed with librdkafka's."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer
from kafka.coordinator.assignors.range import RangePartitionAssignor

from hapax.local.cluster import LocalCluster
from integration.polling import Polling
from integration.waiting import wait_until

PARTITIONS = 4


class Member(Protocol):
    owned: frozenset[int]
    values: list[bytes]

    def close(self) -> None: ...


class _Threaded(Polling):
    """`owned` is what the client says it has."""

    def __init__(self) -> None:
        self.owned: frozenset[int] = frozenset()
        self.values: list[bytes] = []
        super().__init__()


class KafkaPythonMember(_Threaded):
    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._consumer = KafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest",
            enable_auto_commit=False, session_timeout_ms=6000, heartbeat_interval_ms=500,
            partition_assignment_strategy=[RangePartitionAssignor])
        super().__init__()

    def _run(self) -> None:
        while not self._stop.is_set():
            for records in self._consumer.poll(timeout_ms=100).values():
                self.values += [record.value for record in records]
                self._consumer.commit()
            self.owned = frozenset(each.partition for each in self._consumer.assignment())
        self._consumer.close()


class AiokafkaMember(_Threaded):
    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._settings = (bootstrap, group, topic)
        super().__init__()

    def _run(self) -> None:
        asyncio.run(self._poll())

    async def _poll(self) -> None:
        bootstrap, group, topic = self._settings
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest",
            enable_auto_commit=False, session_timeout_ms=6000, heartbeat_interval_ms=500)
        await consumer.start()
        try:
            while not self._stop.is_set():
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    self.values += [record.value for record in records]
                    await consumer.commit()
                self.owned = frozenset(each.partition for each in consumer.assignment())
        finally:
            await consumer.stop()


class LibrdkafkaMember(_Threaded):
    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._consumer = Consumer({
            "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0,
            "enable.auto.commit": False, "session.timeout.ms": 6000, "heartbeat.interval.ms": 500,
            "partition.assignment.strategy": "range"})
        self._consumer.subscribe([topic])
        super().__init__()

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                value = message.value()
                assert value is not None
                self.values.append(value)
                self._consumer.commit(message=message, asynchronous=False)
            self.owned = frozenset(each.partition for each in self._consumer.assignment())
        self._consumer.close()


Made = Callable[[str, str, str], Member]
PAIRS: dict[str, tuple[Made, Made]] = {
    "kafka-python": (KafkaPythonMember, KafkaPythonMember),
    "aiokafka": (AiokafkaMember, AiokafkaMember),
    "mixed": (LibrdkafkaMember, KafkaPythonMember),
}


@pytest.fixture
def topic(cluster: LocalCluster) -> Iterator[str]:
    name = f"t-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"log_level": 0, "bootstrap.servers": cluster.bootstrap})
    for created in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        created.result(30)
    yield name


def produce(bootstrap: str, topic: str, first: int, count: int) -> set[bytes]:
    producer = Producer({"log_level": 0, "bootstrap.servers": bootstrap, "enable.idempotence": True})
    sent = [b"%d" % number for number in range(first, first + count)]
    for number, value in enumerate(sent):
        producer.produce(topic, value=value, partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    return set(sent)


def shared(*members: Member) -> bool:
    owned = Counter(partition for member in members for partition in member.owned)
    return owned == Counter(range(PARTITIONS)) and all(member.owned for member in members)


@pytest.mark.parametrize("pair", PAIRS)
def test_members_share_come_and_go(cluster: LocalCluster, topic: str, pair: str) -> None:
    first_made, second_made = PAIRS[pair]
    sent = produce(cluster.bootstrap, topic, 0, 200)
    first = first_made(cluster.bootstrap, f"g-{topic}", topic)
    try:
        wait_until(lambda: shared(first), "share of one")
        wait_until(lambda: sent <= set(first.values), "record")
        second = second_made(cluster.bootstrap, f"g-{topic}", topic)
        try:
            wait_until(lambda: shared(first, second), "share of two")
            more = produce(cluster.bootstrap, topic, 200, 200)
            wait_until(lambda: more <= {*first.values, *second.values}, "record for two")
            assert not sent & set(second.values), "the second read again what the first had committed"
        finally:
            second.close()
        wait_until(lambda: shared(first), "share of the one that is left")
    finally:
        first.close()
