"""A real client with `client.rack` reads from the replica in its rack, and goes on at the leader when that is gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from hapax.runtime.settings import RACK_AWARE_SELECTOR
from unit.broker.broker_fixtures import batch
from unit.broker.replicas_world import World

ROUNDS = 30


class Reader(threading.Thread):
    """librdkafka in rack b."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self.offsets: list[int] = []
        self.done = threading.Event()
        self._consumer = Consumer({
            "bootstrap.servers": bootstrap, "group.id": "g", "client.rack": "b", "enable.auto.commit": False,
            "auto.offset.reset": "error", "fetch.wait.max.ms": 100, "log_level": 0,
        })

    def run(self) -> None:
        self._consumer.assign([TopicPartition("t", 0, 0)])
        while not self.done.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.offsets.append(message.offset())
        self._consumer.close()


async def test_librdkafka_reads_in_its_rack(tmp_path: Path) -> None:
    world = World(tmp_path, replica_selector_class=RACK_AWARE_SELECTOR)
    world.racks = {0: "a", 1: "b"}
    reader = None
    try:
        await world.start(0, 1)
        world.make_topic(replicas=(0, 1))
        await world.until(lambda: world.leads(0))
        host, port = world.brokers[0].kafka_address
        reader = Reader(f"{host}:{port}")
        reader.start()
        sent = 0
        for _ in range(ROUNDS):
            await world.produced(0, batch(3))
            sent += 3
        await read(world, lambda: len(reader.offsets) >= sent)
        assert world.brokers[1].fetches.fetched_bytes.value > 0, "it has read nothing in its rack"
        await world.kill(1)
        for _ in range(ROUNDS):
            await world.produced(0, batch(3))
            sent += 3
        await read(world, lambda: len(reader.offsets) >= sent)
        assert reader.offsets == list(range(sent))
    finally:
        if reader is not None:
            reader.done.set()
            await asyncio.to_thread(reader.join)
        await world.close()


async def read(world: World, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the reader is another thread
            await asyncio.sleep(0.02)
