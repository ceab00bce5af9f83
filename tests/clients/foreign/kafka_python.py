"""kafka-python."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import kafka.errors as errors
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from clients.foreign.face import Abortable, Fatal, Record

TIMEOUT = 60.0
_FATAL = (
    errors.ProducerFencedError,
    errors.InvalidProducerEpochError,
    errors.InvalidProducerIdMappingError,
    errors.IllegalStateError,
    errors.InvalidTxnStateError,
)


class KafkaPythonProducer:
    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            linger_ms=0,
            max_block_ms=int(TIMEOUT * 1000),
        )
        self._sent: list[Any] = []
        self._call(self._producer.init_transactions)

    def _call(self, operation: Callable[..., Any], *args: Any) -> None:
        try:
            operation(*args)
        except _FATAL as error:
            raise Fatal(repr(error)) from error
        except errors.KafkaError as error:
            raise Abortable(repr(error)) from error

    def begin(self) -> None:
        self._sent = []
        self._call(self._producer.begin_transaction)

    def send(self, topic: str, partition: int, key: bytes, value: bytes) -> None:
        self._call(lambda: self._sent.append(self._producer.send(topic, value, key, partition=partition)))

    def flush(self) -> None:
        self._call(lambda: self._producer.flush(TIMEOUT))
        for future in self._sent:
            self._call(lambda future=future: future.get(TIMEOUT))

    def send_offsets(self, topic: str, partition: int, offset: int, group: str) -> None:
        where = {TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)}
        self._call(self._producer.send_offsets_to_transaction, where, group)

    def commit(self) -> None:
        self._call(self._producer.commit_transaction)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.close(timeout=1)


class KafkaPythonReader:
    def __init__(self, bootstrap: str, committed: bool, group: str) -> None:
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            enable_auto_commit=False,
            isolation_level="read_committed" if committed else "read_uncommitted",
            fetch_max_wait_ms=100,
        )

    def committed(self, topic: str, partition: int) -> int:
        found = self._consumer.committed(TopicPartition(topic, partition))
        return -1 if found is None else int(found)

    def read_to(self, topic: str, partition: int, end: int) -> list[Record]:
        where = TopicPartition(topic, partition)
        self._consumer.assign([where])
        self._consumer.seek(where, 0)
        records: list[Record] = []
        deadline = time.monotonic() + TIMEOUT
        while self._consumer.position(where) < end:
            assert time.monotonic() < deadline, f"{topic}-{partition}: at {self._consumer.position(where)}, not {end}"
            for batch in self._consumer.poll(timeout_ms=200).values():
                records += [(r.key, r.value) for r in batch if r.offset < end]
        return records

    def close(self) -> None:
        self._consumer.close()


class KafkaPython:
    name = "kafka_python"

    def produce_idempotently(self, bootstrap: str, topic: str, records: list[tuple[int, bytes, bytes]]) -> list[int]:
        producer = KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=1)
        try:
            sent = [producer.send(topic, value, key, partition=partition) for partition, key, value in records]
            return [future.get(TIMEOUT).offset for future in sent]
        finally:
            producer.close(timeout=5)

    def transactional_producer(self, bootstrap: str, transactional_id: str) -> KafkaPythonProducer:
        return KafkaPythonProducer(bootstrap, transactional_id)

    def reader(self, bootstrap: str, *, committed: bool, group: str = "readers") -> KafkaPythonReader:
        return KafkaPythonReader(bootstrap, committed, group)
