"""Consume, process, produce: a consumer group's member that copies 500 records in each transaction, on Hapax and on
Apache Kafka.

The program is the same for both: librdkafka subscribes, polls 500 records, produces one for each, sends the group's
offsets to the transaction with the group's metadata, and commits. Both clusters are up at the same time, with one
broker each, and take turns. Each turn has a group and a transactional id of its own, reads the same input from its
first record, and warms up before it counts; the first turn of each cluster does not count at all. A transaction lasts
from `begin_transaction` to the return of `commit_transaction`. The rate includes the polls between transactions.

Durability is the same on both sides: first, every append is synced before it counts; then, neither waits for the disk.
Kafka runs with the JVM options of its own start script. Without Kafka, there are only Hapax's figures.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.bench_transactions import local_cluster
from bench.figures import record
from clients.kafka_from_maven import AS_KAFKA_STARTS_IT, KafkaFromMaven

TURNS: Final = int(os.environ.get("HAPAX_BENCH_TURNS", "5"))
TRANSACTIONS: Final = int(os.environ.get("HAPAX_BENCH_TRANSACTIONS", "100"))
"""In a turn, after WARM_UP others."""
WARM_UP: Final = 10
BATCH: Final = 500
PARTITIONS: Final = 4
VALUE: Final = b"x" * 100
SOURCE: Final = "processing-in"
TARGET: Final = "processing-out"
AHEAD: Final = 1.0
P99_AT_MOST: Final = 0.2
WAIT_S: Final = 60.0
DURABILITIES: Final = {
    "synced": ("durability=fsync", "log.flush.interval.messages=1"),
    "page_cache": ("durability=page-cache", "log.flush.interval.messages=9223372036854775807"),
}
"""Name -> (Hapax's setting, Kafka's)."""


@dataclass(slots=True)
class Measured:
    """What one cluster did in its turns."""

    rates: list[float] = field(default_factory=list)
    """Records per second, one for each turn."""
    times_ms: list[float] = field(default_factory=list)
    """Duration of each transaction."""

    def add(self, seconds: float, times_ms: Sequence[float]) -> None:
        self.rates.append(len(times_ms) * BATCH / seconds)
        self.times_ms += times_ms

    @property
    def rate(self) -> float:
        """Median of the turns."""
        return statistics.median(self.rates)

    def quantile_ms(self, part: float) -> float:
        ordered = sorted(self.times_ms)
        return ordered[min(int(len(ordered) * part), len(ordered) - 1)]


def prepare(bootstrap: str, source: str, target: str, records: int) -> None:
    """Creates both topics and fills the first."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (source, target)]).values():
        created.result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(records):
        producer.produce(source, key=b"%d" % number, value=VALUE, partition=number % PARTITIONS)
        if number % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(WAIT_S) == 0


def turn(
    bootstrap: str, source: str, target: str, name: str, transactions: int, warm_up: int = WARM_UP
) -> tuple[float, list[float]]:
    """(seconds, duration of each transaction in ms) of a new group `name`, after `warm_up` transactions. Raises
    AssertionError if the group's committed offsets are not those of the records that were copied."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": name, "enable.auto.commit": False,
        "auto.offset.reset": "earliest", "isolation.level": "read_committed",
        # A few transactions ahead, or the warm-up would fetch everything that is measured.
        "queued.min.messages": 4 * BATCH,
    })
    times = []
    try:
        producer.init_transactions(WAIT_S)
        consumer.subscribe([source])
        began = time.perf_counter()
        for number in range(warm_up + transactions):
            if number == warm_up:
                began = time.perf_counter()
            batch = polled(consumer)
            opened = time.perf_counter()
            producer.begin_transaction()
            for message in batch:
                producer.produce(target, key=message.key(), value=message.value(), partition=message.partition())
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), WAIT_S)
            producer.commit_transaction(WAIT_S)
            times.append((time.perf_counter() - opened) * 1000)
        seconds = time.perf_counter() - began
        wanted = [TopicPartition(source, number) for number in range(PARTITIONS)]
        committed = sum(max(0, each.offset) for each in consumer.committed(wanted, WAIT_S))
        assert committed == (warm_up + transactions) * BATCH, committed
    finally:
        consumer.close()
    return seconds, times[warm_up:]


def polled(consumer: Consumer) -> list[Message]:
    """The next BATCH records."""
    batch: list[Message] = []
    deadline = time.perf_counter() + WAIT_S
    while len(batch) < BATCH:
        for message in consumer.consume(BATCH - len(batch), 1.0):
            assert message.error() is None, message.error()
            batch.append(message)
        assert time.perf_counter() < deadline, f"{len(batch)} records in {WAIT_S} s"
    return batch


def in_turns(clusters: dict[str, str], turns: int, transactions: int, warm_up: int = WARM_UP) -> dict[str, Measured]:
    """`clusters`: name -> bootstrap. The order changes from turn to turn."""
    for bootstrap in clusters.values():
        prepare(bootstrap, SOURCE, TARGET, (warm_up + transactions) * BATCH)
    measured = {name: Measured() for name in clusters}
    for number in range(turns + 1):
        for name in sorted(clusters, reverse=bool(number % 2)):
            found = turn(clusters[name], SOURCE, TARGET, f"processing-{number}", transactions, warm_up)
            if number:
                measured[name].add(*found)
    return measured


def report(durability: str, measured: dict[str, Measured]) -> None:
    """`measured`: `hapax`, and `kafka` where it could be started."""
    of_records = f"records/s, transactions of {BATCH}"
    for name, each in measured.items():
        record(f"processing_{durability}_{name}", each.rate, of_records)
        record(f"processing_{durability}_{name}_p50", each.quantile_ms(0.5), "ms a transaction")
        record(f"processing_{durability}_{name}_p99", each.quantile_ms(0.99), "ms a transaction")
    if "kafka" not in measured:
        return
    hapax, kafka = measured["hapax"], measured["kafka"]
    record(f"processing_{durability}_over_kafka", hapax.rate / kafka.rate, "times Kafka's rate", at_least=AHEAD)
    record(f"processing_{durability}_p50_over_kafka", hapax.quantile_ms(0.5) / kafka.quantile_ms(0.5), "times Kafka's")
    record(
        f"processing_{durability}_p99_over_kafka", hapax.quantile_ms(0.99) / kafka.quantile_ms(0.99), "times Kafka's",
        at_most=P99_AT_MOST)


@contextmanager
def kafka_cluster(*settings: str) -> Iterator[str | None]:
    """The bootstrap address; None, with a message, if Kafka cannot be had here."""
    with tempfile.TemporaryDirectory(prefix="hapax-bench-kafka-") as folder:
        try:
            kafka = KafkaFromMaven(Path(folder), java=AS_KAFKA_STARTS_IT, settings=settings)
        except pytest.skip.Exception as reason:
            print(f"  without Apache Kafka: {reason}", file=sys.stderr, flush=True)
            yield None
            return
        try:
            kafka.start()
            yield kafka.bootstrap
        finally:
            kafka.kill()


def main() -> None:
    wanted = os.environ.get("HAPAX_BENCH_ONLY", "")
    for durability, (ours, theirs) in DURABILITIES.items():
        if wanted not in durability:
            continue
        with local_cluster(ours) as (cluster, _), kafka_cluster(theirs) as kafka:
            clusters = {"hapax": cluster.bootstrap} | ({"kafka": kafka} if kafka else {})
            report(durability, in_turns(clusters, TURNS, TRANSACTIONS))


if __name__ == "__main__":
    main()
