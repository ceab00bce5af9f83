"""confluent-kafka (librdkafka)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from clients.foreign.face import Abortable, Fatal, Record

TIMEOUT = 60.0
QUIET = {"log_level": 0}
"""A broker that is being killed is no news; and lines on stderr from its threads outlive the test."""
FAULTS = (KafkaException, SystemError)
"""The binding raises a fatal error out of its error callback; if a delivery report follows in the same turn, Python
sees a callback that began with an exception set, and makes it a SystemError."""


class ConfluentProducer:
    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "linger.ms": 0,
                "error_cb": lambda error: None,
                **QUIET,
                "reconnect.backoff.max.ms": 500,
            }
        )
        self._failed: KafkaError | None = None
        self._call(self._producer.init_transactions, TIMEOUT)

    def _call(self, operation: Callable[..., Any], *args: Any) -> None:
        """librdkafka's own advice: retriable errors are repeated, the others say what they are."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                operation(*args)
                return
            except SystemError as raised:
                raise Fatal(str(raised.__cause__ or raised)) from raised
            except KafkaException as raised:
                error = raised.args[0]
                if error.retriable() and time.monotonic() < deadline:
                    continue
                if error.txn_requires_abort():
                    raise Abortable(str(error)) from raised
                raise Fatal(str(error)) from raised

    def begin(self) -> None:
        self._failed = None
        self._call(self._producer.begin_transaction)

    def send(self, topic: str, partition: int, key: bytes, value: bytes) -> None:
        try:
            self._producer.produce(topic, value, key, partition=partition, on_delivery=self._delivered)
            self._producer.poll(0)
        except FAULTS as raised:
            raise Fatal(str(raised.__cause__ or raised)) from raised

    def _delivered(self, error: KafkaError | None, _message: Any) -> None:
        if self._failed is None:
            self._failed = error

    def flush(self) -> None:
        try:
            left = self._producer.flush(TIMEOUT)
        except FAULTS as raised:
            raise Fatal(str(raised.__cause__ or raised)) from raised
        if left or self._failed is not None:
            error = self._failed
            raise (Fatal if error is not None and error.fatal() else Abortable)(str(error or f"{left} unsent"))

    def send_offsets(self, topic: str, partition: int, offset: int, group: str) -> None:
        consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": group, **QUIET})
        try:
            metadata = consumer.consumer_group_metadata()
        finally:
            consumer.close()
        where = [TopicPartition(topic, partition, offset)]
        self._call(self._producer.send_offsets_to_transaction, where, metadata, TIMEOUT)

    def commit(self) -> None:
        self._call(self._producer.commit_transaction, TIMEOUT)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction, TIMEOUT)

    def close(self) -> None:
        with contextlib.suppress(*FAULTS):
            self._producer.purge()
            self._producer.flush(1)


class ConfluentReader:
    def __init__(self, bootstrap: str, committed: bool, group: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 100,
                **QUIET,
            }
        )

    def committed(self, topic: str, partition: int) -> int:
        (found,) = self._consumer.committed([TopicPartition(topic, partition)], timeout=TIMEOUT)
        return max(-1, found.offset)

    def read_to(self, topic: str, partition: int, end: int) -> list[Record]:
        self._consumer.assign([TopicPartition(topic, partition, 0)])
        records: list[Record] = []
        deadline = time.monotonic() + TIMEOUT
        while True:
            assert time.monotonic() < deadline, f"{topic}-{partition}: no end of partition within {TIMEOUT} s"
            message = self._consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is not None:
                if message.error().code() == KafkaError._PARTITION_EOF and message.offset() >= end:
                    return records
                continue
            if message.offset() >= end:
                return records
            records.append((message.key(), message.value()))

    def close(self) -> None:
        self._consumer.close()


class Confluent:
    name = "confluent"

    def produce_idempotently(self, bootstrap: str, topic: str, records: list[tuple[int, bytes, bytes]]) -> list[int]:
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1, **QUIET})
        offsets: list[int] = []

        def delivered(error: KafkaError | None, message: Any) -> None:
            assert error is None, error
            offsets.append(message.offset())

        for partition, key, value in records:
            producer.produce(topic, value, key, partition=partition, on_delivery=delivered)
        assert producer.flush(TIMEOUT) == 0
        return offsets

    def transactional_producer(self, bootstrap: str, transactional_id: str) -> ConfluentProducer:
        return ConfluentProducer(bootstrap, transactional_id)

    def reader(self, bootstrap: str, *, committed: bool, group: str = "readers") -> ConfluentReader:
        return ConfluentReader(bootstrap, committed, group)
