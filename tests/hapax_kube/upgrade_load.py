"""What runs through a cluster that is upgraded: each client numbers its records and notes how long it stood still.

The clients are librdkafka's, from outside the Kubernetes cluster, as an application has them that is not restarted.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from typing import Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

_JOIN_S: Final = 120.0
_EVERY_S: Final = 0.02
PARTITIONS: Final = 3
_logger = logging.getLogger("librdkafka")
_logger.addHandler(logging.NullHandler())
_logger.propagate = False
_COMMON: Final = {
    # As docs/kubernetes.md advises for the time in which pods are replaced. librdkafka's default is 30 s.
    "socket.connection.setup.timeout.ms": 2_000,
    "logger": _logger,  # it tells of each node that restarts; what counts is in `notes`
}  # fmt: skip


class Client(ABC):
    """Works in a thread until told to stop. `gaps` has each time that passed between two of its successes."""

    def __init__(self, name: str, bootstrap: str) -> None:
        self.name = name
        self.done = 0
        self.longest_s = 0.0
        self.longest_at = 0.0
        self.notes: list[str] = []
        self.failure: BaseException | None = None
        self.bootstrap = bootstrap
        self.stopping = threading.Event()
        self._last = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self.stopping.set()
        self._thread.join(_JOIN_S)
        assert not self._thread.is_alive(), f"{self.name} does not end"
        if self.failure is not None:
            raise self.failure

    def succeeded(self, count: int = 1) -> None:
        now = time.monotonic()
        if self._last and now - self._last > self.longest_s:
            self.longest_s, self.longest_at = now - self._last, time.time()
        self._last = now
        self.done += count

    def stands_still_s(self) -> float:
        return time.monotonic() - self._last if self._last else 0.0

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.failure = error

    @abstractmethod
    def work(self) -> None:
        """Until `stopping` is set. What it raises is the failure that `end` raises."""


class Writer(Client):
    """An idempotent producer: numbers from 0, one after another, each to its partition `number % PARTITIONS`. A
    success is an acknowledgement; several records are on their way at a time."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__("idempotent producer", bootstrap)
        self._topic = topic

    def work(self) -> None:
        producer = Producer({
            "bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 0,
            "delivery.timeout.ms": 120_000, **_COMMON,
        })  # fmt: skip
        number = 0
        while not self.stopping.is_set():
            producer.produce(self._topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._delivered)
            number += 1
            producer.poll(_EVERY_S)
        producer.flush(60)
        assert self.done == number, f"{self.done} of {number} records were acknowledged: {self.notes}"

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.notes.append(str(error))
        else:
            self.succeeded()


class Copier(Client):
    """Reads one topic and writes what it read to another one, with its positions, in transactions (EOS). A success is
    a commit."""

    def __init__(self, bootstrap: str, source: str, target: str) -> None:
        super().__init__("transactions with offsets", bootstrap)
        self._source = source
        self._target = target

    def work(self) -> None:
        consumer = Consumer({
            "bootstrap.servers": self.bootstrap, "group.id": f"{self._target}-copier", "enable.auto.commit": False,
            "auto.offset.reset": "earliest", "isolation.level": "read_committed", **_COMMON,
        })  # fmt: skip
        consumer.assign(_all_of(self._source))
        producer = self._producer()
        while not self.stopping.is_set():
            found = [each for each in consumer.consume(20, 0.2) if each.error() is None]
            if not found:
                continue
            try:
                producer.begin_transaction()
                for each in found:
                    producer.produce(self._target, each.value(), partition=each.partition() or 0)
                producer.send_offsets_to_transaction(
                    consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 30)
                producer.commit_transaction(30)
                self.succeeded(len(found))
            except KafkaException as error:
                self.notes.append(str(error))
                producer = self._again(producer, consumer, error)
        consumer.close()

    def _producer(self) -> Producer:
        producer = Producer({
            "bootstrap.servers": self.bootstrap, "transactional.id": f"{self._target}-copier", "linger.ms": 0,
            "transaction.timeout.ms": 30_000, **_COMMON,
        })  # fmt: skip
        while True:
            try:
                producer.init_transactions(30)
                return producer
            except KafkaException as error:
                self.notes.append(str(error))
                assert error.args[0].retriable(), error

    def _again(self, producer: Producer, consumer: Consumer, error: KafkaException) -> Producer:
        """The producer to go on with, and the consumer at the last committed positions, as Kafka's documentation
        says."""
        what = error.args[0]
        if not what.txn_requires_abort() and what.retriable():
            try:
                producer.commit_transaction(60)
                self.notes.append("the commit was repeated")
                return producer
            except KafkaException as second:
                what = second.args[0]
        if what.fatal():
            producer = self._producer()
        else:
            producer.abort_transaction(60)
        for each in consumer.committed(consumer.assignment(), 30):
            consumer.seek(TopicPartition(
                each.topic, each.partition, each.offset if each.offset >= 0 else OFFSET_BEGINNING))
        return producer


class Reader(Client):
    """A consumer. A success is a record, and it remembers them all."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(f"consumer of {topic}", bootstrap)
        self._topic = topic
        self.found: dict[int, list[int]] = {}

    def work(self) -> None:
        consumer = Consumer({
            "bootstrap.servers": self.bootstrap, "group.id": f"{self._topic}-reader", "auto.offset.reset": "earliest",
            "isolation.level": "read_committed", **_COMMON,
        })  # fmt: skip
        consumer.assign(_all_of(self._topic))
        while not self.stopping.is_set():
            for each in consumer.consume(100, 0.2):
                if each.error() is not None:
                    self.notes.append(str(each.error()))
                    continue
                self.succeeded()
                self.found.setdefault(each.partition() or 0, []).append(int(each.value() or b""))
        consumer.close()


def contents(bootstrap: str, topic: str) -> dict[int, list[int]]:
    """What a read_committed reader finds in each partition, in its order."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "nothing", "enable.auto.commit": False,
        "isolation.level": "read_committed", "enable.partition.eof": True, **_COMMON,
    })  # fmt: skip
    consumer.assign(_all_of(topic))
    found: dict[int, list[int]] = {each: [] for each in range(PARTITIONS)}
    at_end: set[int] = set()
    limit = time.monotonic() + 120
    while len(at_end) < PARTITIONS:
        assert time.monotonic() < limit, f"{topic} cannot be read to its end: {at_end}"
        for each in consumer.consume(500, 1.0):
            partition = each.partition() or 0
            error = each.error()
            if error is None:
                found[partition].append(int(each.value() or b""))
                at_end.discard(partition)
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(partition)
    consumer.close()
    return found


def _all_of(topic: str) -> list[TopicPartition]:
    """Assigned by hand: the former release has no group membership."""
    return [TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(PARTITIONS)]
