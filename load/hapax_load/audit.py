"""Reads the topics of a load and compares them with its ledger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Self

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from hapax.client import Admin, HapaxError
from hapax.core.errors import ErrorCode
from hapax_load.connecting import librdkafka, native
from hapax_load.ledger import Ledger, Seen, Verdict, by_topic, judge, judge_copy
from hapax_load.topics import ALL, COPIES, GROUP, PARTITIONS, PLAIN, number_of


def create_topics(
    bootstrap: str, replication: int, timeout_s: float = 60.0, *, replace: bool = False,
    config: Mapping[str, str] | None = None,
) -> None:
    """Creates the topics of the load. They must not exist, because older records would count as doubled. `replace`
    deletes the topics and committed offsets of an earlier load first."""
    admin = AdminClient(librdkafka(bootstrap))
    there = set(admin.list_topics(timeout=timeout_s).topics) & set(ALL)
    if there and replace:
        for deleted in admin.delete_topics(sorted(there)).values():
            deleted.result(timeout_s)
        asyncio.run(_forget_group(bootstrap))
    elif there:
        raise ValueError(f"{', '.join(sorted(there))} exist; their records would count as doubled: delete them first")
    new = [NewTopic(name, PARTITIONS, replication, config=dict(config or {})) for name in ALL]
    for created in admin.create_topics(new).values():
        created.result(timeout_s)


async def _forget_group(bootstrap: str) -> None:
    async with Admin(native(bootstrap)) as admin:
        try:
            await admin.delete_group_offsets(GROUP)
        except HapaxError as error:
            if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
                raise


class Reading:
    """Reads every committed record of some topics from offset 0, during the load or after it."""

    def __init__(self, bootstrap: str, topics: Iterable[str]) -> None:
        """Raises KafkaException."""
        self.seen = {topic: Seen() for topic in topics}
        self._consumer = Consumer(librdkafka(bootstrap, **{
            "group.id": "load-audit", "enable.auto.commit": False,
            "isolation.level": "read_committed", "auto.offset.reset": "error", "enable.partition.eof": True,
        }))
        known = self._consumer.list_topics(timeout=60).topics
        self._partitions = [TopicPartition(topic, p, 0) for topic in self.seen for p in known[topic].partitions]
        self._consumer.assign(self._partitions)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def step(self) -> None:
        """Reads the records that are there or arrive within a second. Raises KafkaException (also if records were
        deleted before they were read), ValueError."""
        for message in self._consumer.consume(5_000, 1.0):
            error = message.error()
            if error is not None:
                if error.name() != "_PARTITION_EOF":
                    raise KafkaException(error)
            else:
                self.seen[message.topic() or ""].add(*number_of(message.value() or b""))

    def to_the_end(self, limit_s: float = 300.0) -> None:
        """Reads up to the present ends. Raises KafkaException, TimeoutError, ValueError."""
        # An open transaction of a killed client holds the last stable offset back until it is aborted: wait for it.
        deadline = time.monotonic() + limit_s
        ends = {(p.topic, p.partition): _end(self._consumer, p, deadline) for p in self._partitions}
        open_ones = {place for place, end in ends.items() if end > 0}
        while open_ones:
            if time.monotonic() > deadline:
                raise TimeoutError(f"partitions {sorted(open_ones)} are not readable to their ends")
            self.step()
            for position in self._consumer.position([TopicPartition(*place) for place in open_ones]):
                if position.offset >= ends[position.topic, position.partition]:
                    open_ones.discard((position.topic, position.partition))


def _end(consumer: Consumer, partition: TopicPartition, deadline: float) -> int:
    """The high watermark. Retries until the partition has a leader."""
    while True:
        try:
            return int(consumer.get_watermark_offsets(partition, timeout=10)[1])
        except KafkaException:
            if time.monotonic() > deadline:
                raise


def audit(seen: Mapping[str, Seen], ledger: Ledger, *, copied: bool) -> dict[str, Verdict]:
    """Topic -> verdict, for the topics that were written. `copied`: COPIES must contain every record of PLAIN once."""
    verdicts = {topic: judge(facts, seen[topic]) for topic, facts in by_topic(ledger.facts()).items()}
    if copied:
        verdicts[COPIES] = judge_copy(seen[PLAIN], seen[COPIES])
    return verdicts
