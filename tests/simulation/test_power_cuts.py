"""Power cuts at chosen moments: what was acknowledged is there afterwards."""

from __future__ import annotations

import asyncio
import random

import pytest

from hapax.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from hapax_sim.cluster import SimCluster
from hapax_sim.loop import SimLoop, SimProcess


@pytest.mark.parametrize("seed", range(8))
def test_a_folder_that_a_killed_process_made_survives_the_power_cut_after_the_next_one_wrote(seed: int) -> None:
    """The name of the topic in the folder was in the page cache only, and the next process must not trust that."""
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

    async def restarted(*, power_cut: bool) -> None:
        cluster.kill("broker-0", power_cut=power_cut)
        await asyncio.sleep(cluster.restart_after_s[1])
        await cluster.wait_until(cluster.ready, "the broker serves again")

    await loop.spawn(process, create(), "create")
    await restarted(power_cut=False)
    await loop.spawn(process, write(), "write")
    await restarted(power_cut=True)
    assert await loop.spawn(process, read(), "read") == b"acknowledged"
