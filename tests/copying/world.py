"""Copiers as processes of their own, and what a committed reader finds on both sides."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient

from clients.kafka_from_maven import KafkaFromMaven
from hapax.client import Admin, Consumer, NewTopic, Producer
from hapax.client.errors import HapaxError
from hapax.client.readings import Chunk
from hapax.codec.records import decode_batch
from hapax.core.types import PartitionIndex, TopicPartition
from integration.waiting import until


class Content(NamedTuple):
    """What must be the same in a copy."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class CopyProcess:
    """`hapax copy`, started again and again in one folder."""

    def __init__(self, log: Path, *words: str) -> None:
        self._log = log
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> CopyProcess:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hapax.cli.main", "copy", *self._words], stdout=subprocess.PIPE, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True)
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def signal(self, number: int) -> None:
        if self.running:
            os.kill(self.pid, number)

    def terminate(self, patience_s: float = 60) -> int:
        self.signal(signal.SIGTERM)
        return self.wait(patience_s)

    def wait(self, patience_s: float = 40) -> int:
        """The exit code."""
        if self._process is None:
            return 0
        try:
            self.printed = self._process.communicate(timeout=patience_s)[0].decode()
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the copier still runs after {patience_s} s:\n{self.log()[-3000:]}") from None
        return self._process.returncode

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def says(self, what: str, patience_s: float = 60, *, times: int = 1) -> None:
        """Waits for a line of its log."""
        limit = time.monotonic() + patience_s
        while self.log().count(what) < times:
            assert time.monotonic() < limit, f"still no {what!r} in its log:\n{self.log()[-3000:]}"
            time.sleep(0.02)


async def make_topic(
    bootstrap: str, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
) -> None:
    async with Admin({"bootstrap.servers": bootstrap}) as admin:
        await admin.create_topics([NewTopic(name, partitions, 1, config or {})])


def log_of(kafka: KafkaFromMaven, topic: str) -> Path:
    """The file of the first partition's records. The broker serves its bytes as they are."""
    return kafka.folder / "data" / f"{topic}-0" / f"{0:020d}.log"


def delete_records(bootstrap: str, topic: str, partition: int, before: int) -> None:
    """Makes the log begin at this offset, as retention does."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    (answer,) = admin.delete_records([KafkaTopicPartition(topic, partition, before)]).values()
    answer.result(30)


async def read_all(bootstrap: str, topic: str, partitions: Iterable[int] | None = None) -> dict[int, list[Content]]:
    """Partition -> the records up to the high watermark, for which open transactions have to end."""
    async with Consumer({
        "bootstrap.servers": bootstrap, "isolation.level": "read_committed", "max.poll.records": 10_000,
        "auto.offset.reset": "earliest",
    }) as consumer, Admin({"bootstrap.servers": bootstrap}) as admin:
        wanted = await consumer.partitions(topic)
        if partitions is not None:
            wanted = [TopicPartition(topic, PartitionIndex(each)) for each in partitions]
        consumer.assign(wanted)
        ends = {each: found.high_watermark for each, found in (await admin.partition_offsets(wanted)).items()}
        found: dict[int, list[Content]] = {each.partition: [] for each in wanted}

        async def at_end() -> bool:
            for record in await consumer.poll(200):
                found[record.partition].append(
                    Content(record.timestamp_ms, record.key, record.value, record.headers))
            return all([await consumer.position(each) >= end for each, end in ends.items()])

        await until(at_end, f"end of {topic}")
        return found


async def is_copied(source: str, target: str, topic: str, copy: str | None = None) -> bool:
    try:
        return await read_all(source, topic) == await read_all(target, copy or topic)
    except HapaxError:
        return False


async def torn(bootstrap: str, topics: Iterable[str]) -> list[str]:
    """Transactions of `Writer` that the copy holds in part, or in several transactions of its own."""
    found: dict[str, tuple[int, set[tuple[int, int]]]] = {}
    async with Consumer({"bootstrap.servers": bootstrap, "isolation.level": "read_committed"}) as consumer:
        for topic in topics:
            for partition in await consumer.partitions(topic):
                offset = 0
                while (fetched := await consumer.fetch(partition, offset)).data:
                    for header, position, visible in Chunk(fetched.data, fetched.aborted, True).batches():
                        offset = header.next_offset
                        for record in decode_batch(fetched.data, position, header.size) if visible else ():
                            assert record.value is not None
                            writer, number, size, _ = record.value.decode().split(":")
                            count, writers = found.get(f"{writer}:{number}:{size}", (0, set()))
                            writers.add((header.producer_id, header.producer_epoch))
                            found[f"{writer}:{number}:{size}"] = count + 1, writers
    return [name for name, (count, writers) in found.items()
            if count != int(name.rsplit(":", 1)[1]) or len(writers) > 1]


class Writer:
    """Writes transactions of a few records to several partitions at once, until it is stopped. Each record's value
    names its transaction and the number of its records."""

    def __init__(self, bootstrap: str, topics: Sequence[tuple[str, int]], seed: str = "w") -> None:
        self._bootstrap = bootstrap
        self._partitions = [TopicPartition(topic, PartitionIndex(p)) for topic, count in topics for p in range(count)]
        self._seed = seed
        self._began_ms = int(time.time() * 1000)  # old records would be deleted at once, on both sides
        self.written = 0
        self._stop = False

    def stop(self) -> None:
        self._stop = True

    async def run(self, most: int = 1 << 30, *, settings: Mapping[str, Any] | None = None, pause_s: float = 0) -> None:
        """Every seventh transaction is aborted."""
        async with Producer({
            "bootstrap.servers": self._bootstrap, "transactional.id": f"writer-{self._seed}",
            "delivery.timeout.ms": 60_000, "max.block.ms": 60_000, **(settings or {}),
        }) as producer:
            while not self._stop and self.written < most:
                number = self.written
                chosen = [self._partitions[(number * 7 + i) % len(self._partitions)] for i in range(1 + number % 3)]
                producer.begin()
                for i, (topic, partition) in enumerate(chosen):
                    await producer.send(
                        topic, f"{self._seed}:{number}:{len(chosen)}:{i}".encode(), f"k{number % 10}".encode(),
                        partition=partition, timestamp_ms=self._began_ms + number,
                        headers=(("n", str(number).encode()), ("empty", None)))
                if number % 7 == 6:
                    await producer.flush()
                    await producer.abort()
                else:
                    await producer.commit()
                self.written += 1
                if pause_s:
                    await asyncio.sleep(pause_s)
