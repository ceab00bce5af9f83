"""Reads the topics of a load back and holds them against its ledger."""

from __future__ import annotations

import asyncio
import time

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from hapax.client import Admin, HapaxError
from hapax.core.errors import ErrorCode
from hapax_load.ledger import Ledger, Seen, Verdict, by_topic, judge, judge_copy
from hapax_load.topics import ALL, COPIES, GROUP, PARTITIONS, PLAIN, number_of


def create_topics(bootstrap: str, replication: int, timeout_s: float = 60.0, *, replace: bool = False) -> None:
    """Those of the load, which must not be there yet: what they held before would count as doubled. `replace`: those
    of a former load go first, and what its group had committed."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    there = set(admin.list_topics(timeout=timeout_s).topics) & set(ALL)
    if there and replace:
        for deleted in admin.delete_topics(sorted(there)).values():
            deleted.result(timeout_s)
        asyncio.run(_forget_group(bootstrap))
    elif there:
        raise ValueError(f"{', '.join(sorted(there))} exist: a load counts what it wrote itself; delete them first")
    for created in admin.create_topics([NewTopic(name, PARTITIONS, replication) for name in ALL]).values():
        created.result(timeout_s)


async def _forget_group(bootstrap: str) -> None:
    async with Admin({"bootstrap.servers": bootstrap}) as admin:
        try:
            await admin.delete_group_offsets(GROUP)
        except HapaxError as error:
            if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
                raise


def read(bootstrap: str, topic: str, limit_s: float = 300.0) -> Seen:
    """Every committed record. Raises KafkaException, TimeoutError, ValueError."""
    seen = Seen()
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "load-audit", "enable.auto.commit": False,
        "isolation.level": "read_committed", "auto.offset.reset": "error", "enable.partition.eof": True,
    })
    try:
        partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
        # An open transaction of a client that was killed holds the end back until it is aborted: wait for it.
        deadline = time.monotonic() + limit_s
        ends = {p: _end(consumer, TopicPartition(topic, p), deadline) for p in partitions}
        consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
        open_ones = {p for p, end in ends.items() if end > 0}
        while open_ones:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}: partitions {sorted(open_ones)} are not readable to their ends")
            for message in consumer.consume(5_000, 1.0):
                error = message.error()
                if error is not None:
                    if error.name() != "_PARTITION_EOF":
                        raise KafkaException(error)
                else:
                    seen.add(*number_of(message.value() or b""))
            for position in consumer.position([TopicPartition(topic, p) for p in open_ones]):
                if position.offset >= ends[position.partition]:
                    open_ones.discard(position.partition)
    finally:
        consumer.close()
    return seen


def _end(consumer: Consumer, partition: TopicPartition, deadline: float) -> int:
    """The high watermark, once the partition has a leader that says it."""
    while True:
        try:
            return int(consumer.get_watermark_offsets(partition, timeout=10)[1])
        except KafkaException:
            if time.monotonic() > deadline:
                raise


def audit(bootstrap: str, ledger: Ledger, *, copied: bool) -> dict[str, Verdict]:
    """Topic -> verdict, of those that were written to. `copied`: so was COPIES, and all of PLAIN is to be in it."""
    seen = {topic: read(bootstrap, topic) for topic in by_topic(ledger.facts())}
    verdicts = {topic: judge(facts, seen[topic]) for topic, facts in by_topic(ledger.facts()).items()}
    if copied:
        verdicts[COPIES] = judge_copy(seen.get(PLAIN) or read(bootstrap, PLAIN), read(bootstrap, COPIES))
    return verdicts
