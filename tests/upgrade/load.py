"""What runs through the cluster while its nodes change: everything in it is numbered, so nothing goes unnoticed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from confluent_kafka import Producer as LibrdkafkaProducer

from hapax.client import CommitToken, HapaxError, OffsetAndMetadata, TopicPartition
from hapax.client.blocking import Consumer, Producer
from integration.waiting import nothing_is_open, wait_until

GROUP = "upgrade"


class Load:
    """Numbers, one after the other, until told to stop. Subclasses write one and return once it is acknowledged."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.longest_s = 0.0
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._moved = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait_for_more(self, count: int, seconds: float = 90) -> None:
        with self._moved:
            wanted = self.acknowledged + count
            done = self._moved.wait_for(lambda: self.acknowledged >= wanted or self.failure is not None, seconds)
        if self.failure is not None:
            raise self.failure
        assert done, f"{type(self).__name__} stands at {self.acknowledged}"

    def stop(self) -> int:
        """How many were acknowledged."""
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure
        return self.acknowledged

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                self.write(self.acknowledged)
                with self._moved:
                    self.acknowledged += 1
                    self.longest_s = max(self.longest_s, time.monotonic() - began)
                    self._moved.notify_all()
        except BaseException as error:
            with self._moved:
                self.failure = error
                self._moved.notify_all()
        finally:
            self.close()

    def write(self, number: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Transactions(Load):
    """The native client: each number in two partitions and as a group's offset, in one transaction with its token. A
    transaction that failed is repeated under the same token by a new producer, whatever became of the first."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__()
        self._topic = topic
        self._settings = {"bootstrap.servers": bootstrap, "transactional.id": "upgrade"}
        self._producer: Producer | None = None
        self.repeated: list[str] = []
        """Why attempts were."""

    def write(self, number: int) -> None:
        while True:
            try:
                if self._producer is None:
                    self._producer = Producer(self._settings).start()
                self._attempt(self._producer, number)
                return
            except HapaxError as error:
                self.repeated.append(f"{number}: {error}")
                self.close()

    def _attempt(self, producer: Producer, number: int) -> None:
        producer.begin()
        for partition in (0, 1):
            producer.send(self._topic, b"%d" % number, partition=partition)
        position = OffsetAndMetadata(number)
        producer.send_offsets({TopicPartition(self._topic, 0): position}, GROUP)  # type: ignore[arg-type]
        producer.commit(CommitToken("upgrade", number, records=2))

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None


class Idempotent(Load):
    """librdkafka, ten records a time."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__()
        self._topic = topic
        self._producer = LibrdkafkaProducer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "delivery.timeout.ms": 120_000, "linger.ms": 0}
        )

    def write(self, number: int) -> None:
        errors: list[object] = []
        heard: Callable[[object, object], None] = lambda error, _: errors.append(error)  # noqa: E731
        for i in range(10):
            self._producer.produce(self._topic, b"%d" % (10 * number + i), partition=i % 2, on_delivery=heard)
        self._producer.flush()
        failed = [error for error in errors if error is not None]
        assert len(errors) == 10 and not failed, failed

    def close(self) -> None:
        self._producer.flush(10)


def contents(bootstrap: str, topic: str) -> dict[int, list[int]]:
    """The committed numbers of each partition, in the order of the log, once every transaction is decided."""
    wait_until(lambda: nothing_is_open(bootstrap, topic), "end of all transactions")
    settings = {"bootstrap.servers": bootstrap, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    found: dict[int, list[int]] = {}
    with Consumer({**settings, "enable.auto.commit": "false"}) as consumer:
        partitions = consumer.partitions(topic)
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        while any(consumer.position(p) < ends[p] for p in partitions):
            for record in consumer.poll(500):
                found.setdefault(record.partition, []).append(int(record.value or b""))
    return found


def committed_offset(bootstrap: str, topic: str) -> int:
    with Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": "false"}) as consumer:
        where = TopicPartition(topic, 0)  # type: ignore[arg-type]
        committed = consumer.committed([where])[where]
        assert committed is not None
        return int(committed.offset)
