"""A bit flips in a segment that nobody writes any more: readers are given what was written, or told that it is gone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from hapax.client import Admin, Consumer, HapaxError, NewTopic, Producer, TopicPartition
from hapax.runtime.cluster import ClusterView
from hapax_sim.cluster import SimCluster
from hapax_sim.loop import SimLoop, SimProcess

RECORDS = 400


@pytest.mark.parametrize("seed", range(3))
def test_readers_are_told_where_the_only_copy_is_damaged(seed: int) -> None:
    run(lambda loop: _alone(loop, seed))


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_replica_gives_way_and_is_copied_anew(seed: int) -> None:
    run(lambda loop: _among_three(loop, seed))


def run(story: Callable[[SimLoop], Coroutine[Any, Any, None]]) -> None:
    loop = SimLoop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(story(loop))
    finally:
        asyncio.set_event_loop(None)


class World:
    """A cluster whose topic `cold` holds RECORDS records in several segments."""

    def __init__(self, loop: SimLoop, seed: int, brokers: int) -> None:
        self.loop = loop
        self.cluster = SimCluster(
            loop, seed, brokers=brokers, coordinators=1, replication=brokers, settings=("log.segment.bytes=4096",))
        self.process = SimProcess("client")
        self.ports = self.cluster.ports(self.process, random.Random(seed))
        self.settings = {"bootstrap.servers": self.cluster.bootstrap}
        self.written: list[bytes] = []
        self.brokers = brokers

    async def begin(self) -> None:
        self.cluster.start_all()
        await self.cluster.wait_until(self.cluster.ready, "cluster is ready")
        await self.loop.spawn(self.process, self._write(), "write")

    async def _write(self) -> None:
        async with Admin(self.settings, ports=self.ports) as admin:
            await admin.create_topics([NewTopic("cold", 1, self.brokers)])
        async with Producer(self.settings, ports=self.ports) as producer:
            for number in range(RECORDS):
                self.written.append(b"record %d " % number + b"x" * 20)
                await producer.send_and_wait("cold", self.written[-1], partition=0)

    async def read(self, offset: int = 0) -> list[bytes]:
        return await self.loop.spawn(self.process, self._read(offset), "read")

    async def _read(self, offset: int) -> list[bytes]:
        found: list[bytes] = []
        reading = self.settings | {"auto.offset.reset": "earliest", "enable.auto.commit": "false"}
        async with Consumer(reading, ports=self.ports) as consumer:
            partition = TopicPartition("cold", 0)  # type: ignore[arg-type]
            consumer.assign([partition])
            consumer.seek(partition, offset)
            while len(found) < RECORDS - offset:
                found += [record.value or b"" for record in await consumer.poll(timeout_ms=1000)]
        return found

    @property
    def view(self) -> ClusterView:
        service = self.cluster.nodes["coordinator-0"].service
        assert service is not None
        view: ClusterView = service.view
        return view

    def leader(self) -> str:
        view = self.view
        topic = view.topic("cold")
        assert topic is not None
        partition = view.partition(topic.topic_id, 0)
        assert partition is not None
        return f"broker-{partition.record.leader}"

    def in_sync(self) -> bool:
        return all(len(p.record.isr) == len(p.record.replicas) for p in self.view.partitions())

    def logs(self, broker: str) -> dict[str, bytes]:
        names = self.cluster.nodes[broker].disk.names
        return {
            name: bytes(node.data) for name, node in sorted(names.items())
            if name.startswith("cold-0/") and name.endswith(".log")
        }

    def flip(self, broker: str) -> int:
        """Damages a record in the middle of the second segment; returns its offset."""
        disk = self.cluster.nodes[broker].disk
        victim = list(self.logs(broker))[1]
        content = disk.names[victim].data
        at = content.index(b"record", len(content) // 2)
        number = int(bytes(content[at + 7 : at + 12]).split()[0])
        disk.flip_bit(victim, at)
        return number


async def _alone(loop: SimLoop, seed: int) -> None:
    world = World(loop, seed, 1)
    await world.begin()
    assert await world.read() == world.written
    assert len(world.logs("broker-0")) > 3
    damaged = world.flip("broker-0")
    with pytest.raises(HapaxError, match=f"CORRUPT_MESSAGE.*offset {damaged}; no other replica has the batch"):
        await world.read()
    assert await world.read(damaged + 1) == world.written[damaged + 1 :]


async def _among_three(loop: SimLoop, seed: int) -> None:
    world = World(loop, seed, 3)
    await world.begin()
    assert await world.read() == world.written
    await world.cluster.wait_until(world.in_sync, "everything in sync")
    leader = world.leader()
    before = world.logs(leader)
    world.flip(leader)
    assert world.logs(leader) != before
    if seed % 2:  # as a follower that starts with it
        world.cluster.kill(leader)
    assert await world.read() == world.written
    await world.cluster.wait_until(lambda: world.logs(leader) == before, "a new copy")
    await world.cluster.wait_until(world.in_sync, "everything in sync again")
    assert await world.read() == world.written
