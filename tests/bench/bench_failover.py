"""How long the partitions of a killed or frozen broker take no writes: until new leaders acknowledge with acks=all.

Three brokers on this computer, replication 3, min.insync.replicas 2. The client is the native producer with its own
retries, as in an application. The election alone (until Metadata names live leaders) is shown beside it. A planned stop
is measured by the longest pause between two acknowledgements under a steady load.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import tempfile
import time
from dataclasses import dataclass

from bench.figures import record
from hapax.client import Admin, NewTopic, Producer
from hapax.local.cluster import LocalCluster

KILLS = int(os.environ.get("HAPAX_BENCH_KILLS", "20"))
PARTITIONS = 100
MANY_PARTITIONS = 2000
FREEZES = 5
STOPS = 3
SEND_EVERY_S = 0.005
LOOK_EVERY_S = 0.02
SAFE = {"min.insync.replicas": "2"}


class Measured:
    """A cluster of three brokers, with one topic."""

    def __init__(self, cluster: LocalCluster, admin: Admin, producer: Producer, topic: str) -> None:
        self.cluster, self.admin, self.producer, self.topic = cluster, admin, producer, topic

    async def leaders(self) -> dict[int, int]:
        (topic,) = [topic for topic in await self.admin.list_topics() if topic.name == self.topic]
        return {each.partition: each.leader for each in topic.partitions}

    async def whole(self) -> None:
        """Waits until every replica is in sync."""
        while True:
            if all(len(each.isr) == 3 for topic in await self.admin.list_topics() for each in topic.partitions):
                return
            await asyncio.sleep(0.1)

    async def write(self, partitions: list[int]) -> None:
        """Writes one acknowledged record to each of these partitions."""
        sent = [await self.producer.send(self.topic, value=b"x" * 100, partition=index) for index in partitions]
        await asyncio.gather(*sent)

    async def kill(self) -> tuple[float, float]:
        """Kills the broker that leads most partitions. Returns the seconds until live leaders are known, and until all
        have taken a write."""
        victim, lost = await self._busiest()
        began = time.monotonic()
        await asyncio.to_thread(self.cluster.kill, f"broker-{victim}")
        seconds = await self._led_by_others(victim, lost, began)
        await asyncio.to_thread(self.cluster.start, f"broker-{victim}")
        await self.whole()
        return seconds

    async def freeze(self) -> tuple[float, float]:
        """Likewise with a broker that is frozen and later resumed. Its client has connections to it."""
        victim, lost = await self._busiest()
        pid = self.cluster.status().process(f"broker-{victim}").pid
        began = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        try:
            seconds = await self._led_by_others(victim, lost, began)
        finally:
            os.kill(pid, signal.SIGCONT)
        await self.whole()
        return seconds

    async def _busiest(self) -> tuple[int, list[int]]:
        """The broker that leads most partitions, and these partitions, which have just taken a write."""
        leaders = await self.leaders()
        led = list(leaders.values())
        victim = max(set(led), key=led.count)
        await self.write(list(leaders))
        return victim, [index for index, leader in leaders.items() if leader == victim]

    async def _led_by_others(self, victim: int, lost: list[int], began: float) -> tuple[float, float]:
        async def known() -> float:
            while True:
                now = await self.leaders()
                if all(now[index] not in (victim, -1) for index in lost):
                    return time.monotonic() - began
                await asyncio.sleep(LOOK_EVERY_S)

        async def written() -> float:
            await self.write(lost)
            return time.monotonic() - began

        known_s, written_s = await asyncio.gather(known(), written())
        return known_s, written_s

    async def stop(self, broker: str) -> float:
        """The longest pause of a steady load, in seconds, while a broker is stopped as planned."""
        leaders = sorted(await self.leaders())
        ended = False
        pauses = dict.fromkeys(leaders, 0.0)

        async def load(index: int) -> None:
            last = time.monotonic()
            while not ended:
                await (await self.producer.send(self.topic, value=b"x" * 100, partition=index))
                now = time.monotonic()
                pauses[index] = max(pauses[index], now - last)
                last = now
                await asyncio.sleep(SEND_EVERY_S)

        loads = [asyncio.ensure_future(load(index)) for index in leaders[:10]]
        await asyncio.sleep(1.0)
        before = max(pauses.values())
        pauses.update(dict.fromkeys(leaders, 0.0))
        await asyncio.to_thread(self.cluster.stop, broker)
        await asyncio.sleep(1.0)
        ended = True
        await asyncio.gather(*loads)
        print(f"    {broker}: longest pause {max(pauses.values()):.3f} s, before the stop {before:.3f} s", flush=True)
        await asyncio.to_thread(self.cluster.start, broker)
        await self.whole()
        return max(pauses.values())


@dataclass
class Found:
    killed: list[tuple[float, float]]
    frozen: list[tuple[float, float]]
    paused: list[float]


async def measure(partitions: int, kills: int, freezes: int, stops: int) -> Found:
    with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder:
        cluster = LocalCluster(folder)
        cluster.up(brokers=3, owned=True)
        try:
            options = {"bootstrap.servers": cluster.bootstrap, "default.api.timeout.ms": 300_000}
            async with (
                Admin(options) as admin,
                Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0}) as producer,
            ):
                await admin.create_topics([NewTopic("t", partitions, 3, SAFE)])
                measured = Measured(cluster, admin, producer, "t")
                await measured.whole()
                return Found(
                    [await measured.kill() for _ in range(kills)],
                    [await measured.freeze() for _ in range(freezes)],
                    [await measured.stop(f"broker-{n % 3}") for n in range(stops)],
                )
        finally:
            cluster.down()


def main() -> None:
    found = asyncio.run(measure(PARTITIONS, KILLS, FREEZES, STOPS))
    for name, position in (("leaders", 0), ("writes", 1)):
        seconds = sorted(each[position] for each in found.killed)
        record(f"failover_{name}_p50", statistics.median(seconds), "s", at_most=2.5)
        record(f"failover_{name}_p99", seconds[min(len(seconds) - 1, int(len(seconds) * 0.99))], "s", at_most=5.0)
    record("failover_frozen_writes_worst", max(written for _, written in found.frozen), "s", at_most=8.0)
    record("planned_stop_longest_pause", max(found.paused), "s", at_most=0.5)
    found = asyncio.run(measure(MANY_PARTITIONS, 1, 0, 0))
    record("failover_2000_partitions_writes", found.killed[0][1], "s", at_most=10.0)


if __name__ == "__main__":
    main()
