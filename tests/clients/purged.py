"""A hole that librdkafka (2.16) and Apache Kafka (4.3) have together: a committed transaction without its records.

An abort purges the records that wait to be sent again, and the next transaction's records get their sequences, although
the broker may have stored them and only its answer was lost. A broker that takes those for duplicates acknowledges
what is stored nowhere.
"""

from __future__ import annotations

import json
import os
import signal

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from integration.waiting import wait_until

_RETRY_MS = 6_000
"""Long enough to abort before the client tries again."""


def commit_after_a_purge(bootstrap: str, topic: str, broker_pid: int) -> bytes:
    """Aborts a transaction whose second record was stored without an answer, then commits one record to partition 0 of
    the empty topic; returns its value. Raises KafkaException."""
    asked_in_vain = 0

    def heard(statistics: str) -> None:
        nonlocal asked_in_vain
        asked_in_vain = sum(broker["req_timeouts"] for broker in json.loads(statistics)["brokers"].values())

    producer = Producer(
        {
            "log_level": 0, "bootstrap.servers": bootstrap, "transactional.id": f"tx-{topic}", "linger.ms": 0,
            "socket.timeout.ms": 1000, "retry.backoff.ms": _RETRY_MS, "retry.backoff.max.ms": _RETRY_MS,
            "statistics.interval.ms": 50, "stats_cb": heard, "error_cb": lambda error: None,
        }
    )  # fmt: skip
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"given up 0", partition=0)
    producer.flush(30)
    producer.poll(0)
    before = asked_in_vain
    os.kill(broker_pid, signal.SIGSTOP)
    try:
        producer.produce(topic, b"given up 1", partition=0)
        wait_until(lambda: producer.poll(0.05) >= 0 and asked_in_vain > before, "request that timed out")
    finally:
        os.kill(broker_pid, signal.SIGCONT)
    wait_until(lambda: _end(bootstrap, topic) == 2, "record that was stored without an answer")
    producer.abort_transaction(30)
    attempt = 0
    while True:
        value = b"%d" % attempt
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        try:
            producer.commit_transaction(30)
            return value
        except KafkaException as failure:
            if attempt == 2 or not failure.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(30)
            attempt += 1


def _end(bootstrap: str, topic: str) -> int:
    """The high watermark."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "ends", "isolation.level": "read_uncommitted"}
    consumer = Consumer({"log_level": 0, **settings})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1])
    finally:
        consumer.close()
