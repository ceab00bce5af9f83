"""Consume, process, produce: copies every record of a topic once, with the offsets in the same transaction."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from hapax_load.connecting import librdkafka
from hapax_load.topics import COPIES, GROUP, PLAIN

ANSWER_S: Final = 120.0
"""Time-out of each call to the cluster."""
_MOST: Final = 500


class Copier:
    """Copies one partition; `step` is one transaction. All copiers of a partition use the same transactional id, so a
    second copier fences the first."""

    def __init__(self, bootstrap: str, partition: int) -> None:
        self._partition = partition
        self._settings = librdkafka(bootstrap, **{"client.id": f"load-copy-{partition}", "log_level": 2})
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None

    def step(self, wait_s: float = 1.0) -> int:
        """Copies up to 500 records and returns their number. Raises KafkaException if the outcome is unknown (all
        records or none were copied); the next step finds out."""
        try:
            return self._step(wait_s)
        except KafkaException:
            self.close()
            raise

    def _step(self, wait_s: float) -> int:
        if self._producer is None or self._consumer is None:
            self._producer, self._consumer = self._open()
        producer, consumer = self._producer, self._consumer
        messages = consumer.consume(_MOST, wait_s)
        for message in messages:
            if message.error():
                raise KafkaException(message.error())
        if not messages:
            return 0
        producer.begin_transaction()
        for message in messages:
            producer.produce(COPIES, message.value(), message.key())
        offsets = [TopicPartition(PLAIN, self._partition, (messages[-1].offset() or 0) + 1)]
        until_done(lambda: producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata()))
        until_done(producer.commit_transaction)
        return len(messages)

    def _open(self) -> tuple[Producer, Consumer]:
        producer = Producer({**self._settings, "transactional.id": f"load-copy-{self._partition}"})
        # This comes first: it ends the open transaction of an earlier copier, so the offset read below is final.
        producer.init_transactions(ANSWER_S)
        consumer = Consumer({
            **self._settings, "group.id": GROUP, "isolation.level": "read_committed", "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        })
        (committed,) = consumer.committed([TopicPartition(PLAIN, self._partition)], timeout=ANSWER_S)
        consumer.assign([TopicPartition(PLAIN, self._partition, max(committed.offset, 0))])
        return producer, consumer

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = self._producer = None


def until_done(call: Callable[[], Any]) -> None:
    """Repeats a call while its errors are retriable, as the transactional API requires. Raises KafkaException."""
    deadline = time.monotonic() + ANSWER_S
    while True:
        try:
            call()
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
