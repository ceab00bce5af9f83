"""A bit flips in a segment that nobody writes any more: a reader is told, and never given what was not written."""

from __future__ import annotations

import asyncio
import random

import pytest

from hapax.client import Admin, Consumer, HapaxError, NewTopic, Producer, TopicPartition
from hapax_sim.cluster import SimCluster
from hapax_sim.loop import SimLoop, SimProcess

RECORDS = 400


@pytest.mark.parametrize("seed", range(3))
def test_a_flipped_bit_in_a_cold_segment_is_noticed(seed: int) -> None:
    loop = SimLoop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(_story(loop, seed))
    finally:
        asyncio.set_event_loop(None)


async def _story(loop: SimLoop, seed: int) -> None:
    cluster = SimCluster(loop, seed, brokers=1, coordinators=1, settings=("log.segment.bytes=4096",))
    cluster.start_all()
    await cluster.wait_until(cluster.ready, "cluster is ready")
    process = SimProcess("client")
    ports = cluster.ports(process, random.Random(seed))
    settings = {"bootstrap.servers": cluster.bootstrap}
    written: list[bytes] = []

    async def write() -> None:
        async with Admin(settings, ports=ports) as admin:
            await admin.create_topics([NewTopic("cold", 1)])
        async with Producer(settings, ports=ports) as producer:
            for number in range(RECORDS):
                written.append(b"record %d " % number + b"x" * 20)
                await producer.send_and_wait("cold", written[-1], partition=0)

    async def read() -> list[bytes]:
        found: list[bytes] = []
        reading = settings | {"auto.offset.reset": "earliest", "enable.auto.commit": "false"}
        async with Consumer(reading, ports=ports) as consumer:
            consumer.assign([TopicPartition("cold", 0)])  # type: ignore[arg-type]
            while len(found) < RECORDS:
                found += [record.value or b"" for record in await consumer.poll(timeout_ms=1000)]
        return found

    await loop.spawn(process, write(), "write")
    assert await loop.spawn(process, read(), "read") == written
    disk = cluster.nodes["broker-0"].disk
    segments = sorted(name for name in disk.names if name.startswith("cold-0/") and name.endswith(".log"))
    assert len(segments) > 3
    victim = segments[1]
    content = disk.names[victim].data
    record = content.index(b"record", len(content) // 2)
    disk.flip_bit(victim, record)
    with pytest.raises(HapaxError, match="CORRUPT_MESSAGE"):
        await loop.spawn(process, read(), "read")
