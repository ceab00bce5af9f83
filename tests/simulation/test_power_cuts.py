"""Power cuts at chosen moments: what was acknowledged is there afterwards."""

from __future__ import annotations

import asyncio
import random

import pytest

from hapax.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from hapax.log.layout import PARTITION_METADATA
from hapax_sim.cluster import SimCluster
from hapax_sim.loop import SimLoop, SimProcess


@pytest.mark.parametrize("seed", range(8))
def test_a_folder_that_a_killed_process_made_survives_the_power_cut_after_the_next_one_wrote(seed: int) -> None:
    """The process is killed while it syncs the file that names the folder's topic: the file is in the page cache only,
    and the next process must not trust that."""
    loop = SimLoop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(_story(loop, seed))
    finally:
        asyncio.set_event_loop(None)


async def _story(loop: SimLoop, seed: int) -> None:
    cluster = SimCluster(loop, seed, brokers=1, coordinators=1)
    cluster.start_all()
    await cluster.wait_until(cluster.ready, "cluster is ready")
    process = SimProcess("client")
    ports = cluster.ports(process, random.Random(seed))
    settings = {"bootstrap.servers": cluster.bootstrap}

    disk = cluster.nodes["broker-0"].disk

    def about_to(operation: str, path: str) -> None:
        if operation == "rename" and path == f"t-0/{PARTITION_METADATA}.tmp":
            disk.about_to = lambda operation, path: None
            loop.call_soon(cluster.kill, "broker-0")  # between its rename and its sync

    async def create() -> None:
        async with Admin(settings, ports=ports) as admin:
            await admin.create_topics([NewTopic("t", 1)])

    async def write() -> None:
        async with Producer(settings, ports=ports) as producer:
            await producer.send_and_wait("t", b"acknowledged", partition=0)

    async def read() -> bytes | None:
        reading = settings | {"auto.offset.reset": "earliest", "enable.auto.commit": "false"}
        async with Consumer(reading, ports=ports) as consumer:
            consumer.assign([TopicPartition("t", 0)])  # type: ignore[arg-type]
            return next((record.value for record in await consumer.poll(timeout_ms=5000)), None)

    disk.about_to = about_to
    await loop.spawn(process, create(), "create")
    await loop.spawn(process, write(), "write")
    assert cluster.nodes["broker-0"].lives == 2, "it was killed while it made the folder"
    cluster.kill("broker-0", power_cut=True)
    await asyncio.sleep(cluster.restart_after_s[1])
    await cluster.wait_until(cluster.ready, "the broker serves again")
    assert await loop.spawn(process, read(), "read") == b"acknowledged"
