"""Transactions of ten records to two partitions, with fsync: duration for one producer, rate of eight, CPU by
service."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.figures import record
from hapax.local.cluster import LocalCluster

WARM_UP = 100
ONE_PRODUCER = 1_000
EIGHT_PRODUCERS_S = 8.0
RECORDS = 10
VALUE = b"x" * 100
TICK = os.sysconf("SC_CLK_TCK")


def transaction(producer: Producer, topic: str) -> None:
    producer.begin_transaction()
    for number in range(RECORDS):
        producer.produce(topic, value=VALUE, partition=number % 2)
    producer.commit_transaction(60)


def producer_of(bootstrap: str, transactional_id: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0})
    producer.init_transactions(60)
    return producer


def one_producer(bootstrap: str, topic: str) -> list[float]:
    """Duration of each transaction in ms, from its begin to the commit's answer."""
    producer = producer_of(bootstrap, "bench-one")
    times = []
    for _ in range(WARM_UP + ONE_PRODUCER):
        began = time.perf_counter()
        transaction(producer, topic)
        times.append((time.perf_counter() - began) * 1000)
    return sorted(times[WARM_UP:])


def eight_producers(bootstrap: str, topic: str, processes: dict[str, int]) -> tuple[int, float, dict[str, float]]:
    """(transactions, seconds, CPU seconds by service) while eight producers commit back to back."""
    producers = [producer_of(bootstrap, f"bench-{number}") for number in range(8)]
    done = [0] * len(producers)
    stop = threading.Event()

    def work(number: int) -> None:
        while not stop.is_set():
            transaction(producers[number], topic)
            done[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(producers))]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    before, began, cpu = sum(done), time.perf_counter(), cpu_seconds(processes)
    time.sleep(EIGHT_PRODUCERS_S)
    count, seconds = sum(done) - before, time.perf_counter() - began
    used = {name: spent - cpu[name] for name, spent in cpu_seconds(processes).items()}
    stop.set()
    for thread in threads:
        thread.join()
    return count, seconds, used


def cpu_seconds(processes: dict[str, int]) -> dict[str, float]:
    """User and system time that each process has used so far."""
    spent = {}
    for name, pid in processes.items():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        spent[name] = (int(fields[11]) + int(fields[12])) / TICK
    return spent


@contextmanager
def local_cluster(*settings: str) -> Iterator[tuple[LocalCluster, dict[str, int]]]:
    with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder:
        cluster = LocalCluster(folder)
        try:
            state = cluster.up(owned=True, settings=settings)
            yield cluster, {process.name: process.pid for process in state.processes} | {"client": os.getpid()}
        finally:
            cluster.down()


def main() -> None:
    with local_cluster() as (cluster, processes):
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for created in admin.create_topics([NewTopic("bench", 2, 1)]).values():
            created.result(30)
        times = one_producer(cluster.bootstrap, "bench")
        record("transaction_one_producer_p50", times[len(times) // 2], "ms", at_most=5)
        record("transaction_one_producer_p99", times[int(len(times) * 0.99)], "ms", at_most=20)
        count, seconds, used = eight_producers(cluster.bootstrap, "bench", processes)
        record("transactions_eight_producers", count / seconds, "1/s", at_least=400)
        for name, spent in sorted(used.items()):
            record(f"transaction_cpu_{name}", spent / count * 1000, "ms")


if __name__ == "__main__":
    main()
