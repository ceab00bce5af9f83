"""The native consumer on three real brokers, each in a rack of its own: it reads from the one in its rack, which is
killed, and sees what a reader of the leaders sees."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conftest import ClusterFactory
from hapax.client import Admin, Consumer, HapaxError, NewTopic, Producer
from hapax.local.cluster import LocalCluster
from hapax.runtime.settings import RACK_AWARE_SELECTOR
from integration.scraping import scraped, total

TOPIC = "t"
PARTITIONS = 6
NEAR = "broker-1"
"""The broker in rack b."""
SETTINGS = [
    "default.replication.factor=3", "min.insync.replicas=2", "transaction.state.log.replication.factor=3",
    "offsets.topic.replication.factor=3", "transaction.state.log.num.partitions=2", "offsets.topic.num.partitions=2",
    f"replica.selector.class={RACK_AWARE_SELECTOR}",
]
Seen = dict[int, list[tuple[int, bytes | None]]]
"""Partition -> (offset, value) of each record, in the order in which they were returned."""


@pytest.fixture
def racks(cluster_factory: ClusterFactory) -> Iterator[LocalCluster]:
    yield cluster_factory(brokers=3, racks=["a", "b", "c"], settings=SETTINGS)


def servers(cluster: LocalCluster) -> dict[str, Any]:
    brokers = (each for each in cluster.status().processes if each.role == "broker")
    return {"bootstrap.servers": ",".join(f"127.0.0.1:{each.port}" for each in brokers)}


class Writer:
    """Writes transactions until it is told to end. Every third aborts."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.ended = False
        self.committed = 0

    async def run(self) -> None:
        number = 0
        while not self.ended:
            with contextlib.suppress(HapaxError):  # a leader was killed: another producer goes on
                async with Producer({**self.settings, "transactional.id": "writer"}) as producer:
                    while not self.ended:
                        number += 1
                        producer.begin()
                        await asyncio.gather(*[
                            await producer.send(TOPIC, b"%d" % number, partition=index) for index in range(PARTITIONS)])
                        if number % 3:
                            await producer.commit()
                            self.committed += 1
                        else:
                            await producer.abort()


class Reader:
    def __init__(self, settings: dict[str, Any], isolation: str) -> None:
        self.consumer = Consumer({
            **settings, "isolation.level": isolation, "auto.offset.reset": "none", "fetch.max.wait.ms": 100})
        self.seen: Seen = {index: [] for index in range(PARTITIONS)}

    async def run(self) -> None:
        async with self.consumer as consumer:
            partitions = await consumer.partitions(TOPIC)
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, 0)
            with contextlib.suppress(asyncio.CancelledError):
                while True:
                    for record in await consumer.poll(200):
                        self.seen[record.partition].append((record.offset, record.value))

    def read_in_rack(self) -> set[int]:
        return {each.partition for each in self.consumer._fetcher.replicas._chosen}

    def is_beyond(self, offsets: dict[int, int]) -> bool:
        return all(self.seen[index] and self.seen[index][-1][0] > offset for index, offset in offsets.items())

    def has(self, ends: dict[int, int]) -> bool:
        """Whether it is at these ends. What lies before them may be markers and aborted records alone."""
        positions = {each.partition: self.consumer._fetcher.position(each) for each in self.consumer.assignment()}
        return all((positions[index] or 0) >= end for index, end in ends.items())


async def until(true: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(60):
            while not await asyncio.to_thread(true):  # noqa: ASYNC110 - other processes and tasks do it
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"still not: {what}") from None


def sent(cluster: LocalCluster) -> float:
    """Bytes that the broker in rack b has sent to consumers."""
    return total(scraped(cluster, NEAR), "hapax_broker_fetched_bytes_total")


async def test_the_replica_in_the_rack_is_read_until_it_is_killed(racks: LocalCluster) -> None:
    settings = servers(racks)
    async with Admin(settings) as admin:
        await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])
        (topic,) = [each for each in await admin.list_topics() if each.name == TOPIC]
    led = {each.partition for each in topic.partitions if each.leader != 1}
    assert led, "broker 1 leads everything"
    writer = Writer(settings)
    readers = [
        Reader({**settings, "client.rack": "b"}, "read_committed"),
        Reader({**settings, "client.rack": "b"}, "read_uncommitted"),
    ]
    near = readers[0]
    tasks = [asyncio.ensure_future(each.run()) for each in (writer, *readers)]
    try:
        await until(lambda: writer.committed > 20 and all(len(near.seen[index]) > 20 for index in led), "records read")
        for reader in readers:
            # Not at every moment: a replica that does not hear its leader refuses, and is left for a second.
            await until(lambda r=reader: r.read_in_rack() == led, "read in the rack")  # type: ignore[misc]
        assert sent(racks) > 0

        await asyncio.to_thread(racks.kill, NEAR)
        at = {index: near.seen[index][-1][0] for index in led}
        late = Reader({**settings, "client.rack": "b"}, "read_committed")
        readers.append(late)
        tasks.append(asyncio.ensure_future(late.run()))
        before = {index: offset - 1 for index, offset in at.items()}
        await until(lambda: late.is_beyond(before), "what was written before the kill, from the leaders")
        await until(lambda: near.is_beyond(at), "what is written after it")
        await asyncio.to_thread(racks.start, NEAR)
        committed = writer.committed
        await until(lambda: writer.committed > committed + 10, "transactions after the restart")

        writer.ended = True
        await tasks[0]
        async with Consumer({**settings, "isolation.level": "read_uncommitted"}) as consumer:
            ends = {p.partition: end for p, end in
                    (await consumer.end_offsets(await consumer.partitions(TOPIC))).items()}
        await until(lambda: all(reader.has(ends) for reader in readers), "everything read")
    finally:
        for task in tasks:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [each for each in done if isinstance(each, Exception)] == []
    for reader, isolation in zip(readers, ("read_committed", "read_uncommitted", "read_committed"), strict=True):
        assert reader.seen == await read_from_leaders(settings, isolation, ends), isolation
    for process in ("broker-0", "broker-1", "broker-2"):
        await until(
            lambda name=process: total(scraped(racks, name), "hapax_broker_fetch_sessions") == 0,  # type: ignore[misc]
            "the consumers' sessions have ended")


async def read_from_leaders(settings: dict[str, Any], isolation: str, ends: dict[int, int]) -> Seen:
    reader = Reader(settings, isolation)
    task = asyncio.ensure_future(reader.run())
    await until(lambda: bool(reader.consumer.assignment()) and reader.has(ends), "everything read from the leaders")
    task.cancel()
    await task
    return reader.seen
