"""CPU for a poll of 1,000 idle partitions: the broker's with full requests and with a fetch session, and both sides'
with the native consumer. Memory of a session."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench.figures import record
from bench.raw_client import Connection, Flood, cpu_seconds, make_topic
from hapax.client import Consumer as NativeConsumer
from hapax.core.fetch_sessions import PARTITION_BYTES
from hapax.local.cluster import LocalCluster
from hapax.wire.messages import FetchRequest, FetchResponse

PARTITIONS: Final = 1_000
POLLS: Final = 200
WAIT_MS: Final = 20
SESSIONS: Final = 100
_VERSION: Final = 12


class Consumer:
    def __init__(self, bootstrap: str, topic: str) -> None:
        self.connection = Connection(bootstrap)
        self.topic = topic
        self.session_id, self.epoch = 0, -1

    def poll(self, offsets: dict[int, int], wait_ms: int = WAIT_MS) -> list[Any]:
        """The partitions in the answer."""
        Topic = FetchRequest.FetchTopic
        request = FetchRequest(
            replica_id=-1, max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, isolation_level=1,
            session_id=self.session_id, session_epoch=self.epoch, forgotten_topics_data=[], rack_id="",
            topics=[Topic(topic=self.topic, partitions=[
                Topic.FetchPartition(
                    partition=index, current_leader_epoch=-1, fetch_offset=offset, last_fetched_epoch=-1,
                    log_start_offset=-1, partition_max_bytes=1 << 20)
                for index, offset in offsets.items()])] if offsets else [],
        )
        response = self.connection.call(request, FetchResponse, _VERSION)
        assert response.error_code == 0, response
        if self.epoch >= 0:
            assert response.session_id
            self.session_id, self.epoch = response.session_id, self.epoch + 1
        return [partition for topic in response.responses for partition in topic.partitions]


def cpu_per_poll(pid: int, consumer: Consumer, offsets: dict[int, int]) -> float:
    """CPU of the broker for each of `POLLS` polls, in ms, minus its CPU at rest."""
    before = cpu_seconds(pid)
    began = time.monotonic()
    for _ in range(POLLS):
        consumer.poll(offsets)
    took, used = time.monotonic() - began, cpu_seconds(pid) - before
    before = cpu_seconds(pid)
    time.sleep(took)
    return (used - (cpu_seconds(pid) - before)) / POLLS * 1e3


def cpu_per_answer(bootstrap: str, pid: int, consumer: Consumer, topic: str) -> float:
    """CPU of the broker for a poll that returns records of one partition, and for writing them, in ms."""
    writer = Flood(bootstrap, topic, 0, 200, 1)
    position = 0
    before = cpu_seconds(pid)
    for _ in range(POLLS):
        writer.connection.socket.setblocking(True)
        writer.connection.socket.sendall(writer.next_request())
        writer.connection.read_frame()
        (found,) = consumer.poll({0: position} if position else {}, 1_000)
        assert found.records
        position += 10
    return (cpu_seconds(pid) - before) / POLLS * 1e3


async def native_cpu_per_poll(bootstrap: str, pid: int, topic: str) -> tuple[float, float]:
    """CPU of this process and of the broker for each of `POLLS` fetches of the native consumer, in ms, minus the
    broker's CPU at rest."""
    settings = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", "fetch.max.wait.ms": WAIT_MS}
    async with NativeConsumer(settings) as consumer:
        consumer.assign(await consumer.partitions(topic))

        async def poll_until(fetches: float) -> None:
            while consumer.metrics.values()["hapax_client_fetch_seconds_count"] < fetches:
                assert not await consumer.poll(10 * WAIT_MS)

        await poll_until(5)
        first = consumer.metrics.values()["hapax_client_fetch_seconds_count"]
        client, broker, began = time.process_time(), cpu_seconds(pid), time.monotonic()
        await poll_until(first + POLLS)
        client, broker = time.process_time() - client, cpu_seconds(pid) - broker
        took = time.monotonic() - began
    before = cpu_seconds(pid)
    await asyncio.sleep(took)
    return client / POLLS * 1e3, (broker - (cpu_seconds(pid) - before)) / POLLS * 1e3


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder:
        cluster = LocalCluster(folder)
        state = cluster.up(owned=True, settings=["durability=page-cache"])
        try:
            pid, bootstrap = state.process("broker-0").pid, state.bootstrap
            make_topic(bootstrap, "idle", PARTITIONS)
            everything = dict.fromkeys(range(PARTITIONS), 0)
            consumer = Consumer(bootstrap, "idle")
            consumer.poll(everything)
            full = cpu_per_poll(pid, consumer, everything)
            consumer.epoch = 0
            consumer.poll(everything)
            idle = cpu_per_poll(pid, consumer, {})
            native = asyncio.run(native_cpu_per_poll(bootstrap, pid, "idle"))
            answer = cpu_per_answer(bootstrap, pid, consumer, "idle")
            before = resident_bytes(pid)
            consumers = [Consumer(bootstrap, "idle") for _ in range(SESSIONS)]
            for each in consumers:
                each.epoch = 0
                each.poll(everything)
                each.poll({})
            memory = (resident_bytes(pid) - before) / SESSIONS / PARTITIONS
        finally:
            cluster.down()
    record("fetch_full_poll_idle", full, f"ms of broker CPU, {PARTITIONS} idle partitions")
    record("fetch_session_poll_idle", idle, f"ms of broker CPU, {PARTITIONS} idle partitions", at_most=1.0)
    record("native_poll_idle_client", native[0], f"ms of client CPU, {PARTITIONS} idle partitions")
    record("native_poll_idle_broker", native[1], f"ms of broker CPU, {PARTITIONS} idle partitions")
    record("fetch_session_poll_one_busy", answer, "ms of broker CPU, 1 of them busy, with the write")
    record("fetch_session_partition", memory, "bytes", at_most=PARTITION_BYTES)


if __name__ == "__main__":
    main()
