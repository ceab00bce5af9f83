"""Writers that require less than all replicas, to a partition that gains and loses replicas meanwhile.

acks=0 may lose records, but keeps their order and each record single. acks=1 is answered even by a leader alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from hapax.client import Admin, Consumer, Producer, TopicPartition
from hapax_sim.clients import Life, Program
from hapax_sim.parts.part import PartTopic, a_few_of_each

MOVED_TOPIC: Final = "weak"
_WHERE: Final = TopicPartition(MOVED_TOPIC, 0)  # type: ignore[arg-type]


class Weak:
    topics: Mapping[str, PartTopic] = {MOVED_TOPIC: PartTopic(1, {"min.insync.replicas": "1"})}

    def __init__(self) -> None:
        self.found: list[str] = []
        self.moved = False
        """The partition stays with the one replica that it has now."""

    def programs(self) -> dict[str, Program]:
        return {"careless-0": self.careless, "hasty-0": self.hasty, "mover-0": self.move}

    async def careless(self, life: Life) -> None:
        """acks=0, many records at a time. The connection is lost now and then, and the waiting batches are sent in
        order."""
        number = 0
        settings = life.settings() | {"acks": "0", "delivery.timeout.ms": "20000", "batch.size": "1"}
        async with Producer(settings, ports=life.ports) as producer:
            while not life.stopping():
                sent = []
                for _ in range(life.rng.randrange(1, 12)):
                    number += 1
                    sent.append(await producer.send(MOVED_TOPIC, f"{life.process} {number}".encode(), partition=0))
                    if life.rng.random() < 0.3:
                        await asyncio.sleep(life.rng.uniform(0, 0.003))
                await asyncio.wait(sent)
                for one in sent:
                    one.exception()
                await life.pause()

    async def hasty(self, life: Life) -> None:
        """acks=1, until the last replica but one has gone."""
        number = 0
        settings = life.settings() | {"acks": "1", "delivery.timeout.ms": "20000"}
        async with Producer(settings, ports=life.ports) as producer:
            while not self.moved:
                number += 1
                sent = await producer.send(MOVED_TOPIC, f"{life.process} {number}".encode(), partition=0)
                sent.add_done_callback(lambda done: done.exception())
                await asyncio.sleep(life.rng.uniform(0, 0.001 if life.stopping() else 0.02))

    async def move(self, life: Life) -> None:
        """One replica, then more, and finally one: the present leader, so that only the others go."""
        async with Admin(life.settings(default__api__timeout__ms="10000"), ports=life.ports) as admin:
            while not life.stopping():
                brokers = [0, 1, 2]
                life.rng.shuffle(brokers)
                await self._to(life, admin, brokers[: life.rng.choice((1, 2, 3))])
                await asyncio.sleep(life.rng.uniform(0.5, 4.0))
            await self._to(life, admin, [0, 1, 2])
            await asyncio.sleep(2.0)
            (leader,) = [
                partition.leader for topic in await admin.list_topics() if topic.name == MOVED_TOPIC
                for partition in topic.partitions
            ]
            await self._to(life, admin, [max(leader, 0)])
            await asyncio.sleep(2.0)
        self.moved = True

    @staticmethod
    async def _to(life: Life, admin: Admin, wanted: list[int]) -> None:
        refused = await admin.alter_reassignments({_WHERE: wanted})
        life.recorder.loop.trace(f"{life.process} moves {MOVED_TOPIC} to {wanted}: {refused}")

    async def finish(self, life: Life) -> None:
        settings = life.settings(auto__offset__reset="earliest", enable__auto__commit="false")
        newest: dict[str, int] = {}
        async with Consumer(settings, ports=life.ports) as consumer:
            end = (await consumer.end_offsets([_WHERE]))[_WHERE]
            consumer.assign([_WHERE])
            while await consumer.position(_WHERE) < end:
                for record in await consumer.poll(timeout_ms=200, max_records=1000):
                    process, _, text = (record.value or b"").decode().partition(" ")
                    number = int(text)
                    if process.startswith("careless") and number <= newest.get(process, 0):
                        self.found.append(
                            f"reordered: {process} wrote {number} before {newest[process]}, and offset "
                            f"{record.offset} has it after")
                    newest[process] = max(number, newest.get(process, 0))

    def judge(self) -> list[str]:
        return a_few_of_each(self.found)
