"""`hapax.client.process` beside the same loop written by hand, in both interfaces of the client.

Each copies the same input, 500 records in each transaction, in a group of its own; the two take turns. The time begins
with the first record and ends when the clients are closed. HAPAX_BENCH_PROCESS=50000x7: records, turns.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable
from typing import Final

from bench.bench_transactions import local_cluster
from bench.figures import record
from hapax.client import Admin, Consumer, NewRecord, NewTopic, Processor, Producer, Record, blocking

RECORDS, TURNS = (int(part) for part in os.environ.get("HAPAX_BENCH_PROCESS", "50000x7").split("x"))
BATCH: Final = 500
SOURCE, TARGET = "bench-in", "bench-out"
VALUE: Final = b"x" * 100


class Clock:
    """Runs from the first record to `stop`."""

    def __init__(self) -> None:
        self.began = 0.0

    def copied(self, given: Record) -> NewRecord:
        self.began = self.began or time.perf_counter()
        return NewRecord(TARGET, given.value, given.key)

    def seconds(self) -> float:
        return time.perf_counter() - self.began


def settings_of(bootstrap: str, group: str) -> tuple[dict[str, object], dict[str, object]]:
    """The consumer's and the producer's."""
    common: dict[str, object] = {"bootstrap.servers": bootstrap}
    return (
        {**common, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False,
         "isolation.level": "read_committed"},
        {**common, "transactional.id": group})


def by_hand(bootstrap: str, group: str) -> float:
    async def loop() -> float:
        clock, left = Clock(), RECORDS
        of_consumer, of_producer = settings_of(bootstrap, group)
        async with Producer(of_producer) as producer, Consumer(of_consumer) as consumer:
            consumer.subscribe([SOURCE])
            while left:
                records = await consumer.poll(500, BATCH)
                if not records:
                    continue
                async with producer.transaction():
                    for each in records:
                        result = clock.copied(each)
                        await producer.send(result.topic, result.value, result.key)
                    await producer.send_offsets(consumer.positions(), consumer.group_metadata())
                left -= len(records)
        return clock.seconds()

    return asyncio.run(loop())


def by_process(bootstrap: str, group: str) -> float:
    async def run() -> float:
        clock, left = Clock(), RECORDS

        def function(given: Record) -> NewRecord:
            nonlocal left
            left -= 1
            if not left:
                processor.stop()
            return clock.copied(given)

        processor = Processor(
            SOURCE, function, settings={"bootstrap.servers": bootstrap, "transactional.id": group}, group=group,
            batch_records=BATCH)
        await processor.run()
        return clock.seconds()

    return asyncio.run(run())


def by_hand_blocking(bootstrap: str, group: str) -> float:
    clock, left = Clock(), RECORDS
    of_consumer, of_producer = settings_of(bootstrap, group)
    with blocking.Producer(of_producer) as producer, blocking.Consumer(of_consumer) as consumer:
        consumer.subscribe([SOURCE])
        while left:
            records = consumer.poll(500, BATCH)
            if not records:
                continue
            with producer.transaction():
                results = [clock.copied(each) for each in records]
                producer.send_many(TARGET, [(each.key, each.value) for each in results])
                producer.send_offsets(consumer.positions(), consumer.group_metadata())
            left -= len(records)
    return clock.seconds()


def by_process_blocking(bootstrap: str, group: str) -> float:
    clock, left = Clock(), RECORDS

    def function(given: Record) -> NewRecord:
        nonlocal left
        left -= 1
        if not left:
            processor.stop()
        return clock.copied(given)

    processor = blocking.Processor(
        SOURCE, function, settings={"bootstrap.servers": bootstrap, "transactional.id": group}, group=group,
        batch_records=BATCH)
    processor.run()
    return clock.seconds()


async def fill(bootstrap: str) -> None:
    settings = {"bootstrap.servers": bootstrap}
    async with Admin(settings) as admin:
        await admin.create_topics([NewTopic(SOURCE, 2), NewTopic(TARGET, 2)], exist_ok=True)
    async with Producer(settings) as producer:
        for number in range(RECORDS):
            await producer.send(SOURCE, VALUE, b"%d" % number)
        await producer.flush()


def compare(name: str, bootstrap: str, hand: Callable[[str, str], float], ready: Callable[[str, str], float]) -> None:
    """Records the median of the ratios of pairs; the first pair warms up."""
    pairs = [
        (hand(bootstrap, f"{name}-hand-{turn}"), ready(bootstrap, f"{name}-process-{turn}"))
        for turn in range(TURNS + 1)][1:]
    record(f"{name}_by_hand", RECORDS / statistics.median(pair[0] for pair in pairs), "records/s")
    record(f"{name}", RECORDS / statistics.median(pair[1] for pair in pairs), "records/s")
    record(f"{name}_ratio", statistics.median(a / b for a, b in pairs), "x", at_least=0.95)


def main() -> None:
    with local_cluster() as (cluster, _):
        measure(cluster.bootstrap)


def measure(bootstrap: str) -> None:
    asyncio.run(fill(bootstrap))
    compare("process_asyncio", bootstrap, by_hand, by_process)
    compare("process_blocking", bootstrap, by_hand_blocking, by_process_blocking)


if __name__ == "__main__":
    main()
