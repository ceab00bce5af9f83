"""Partitions move and leaders fail while a backup reads them, and while a restore writes them."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from conftest import end_clusters, start_cluster
from hapax.backup import cluster as cluster_module
from hapax.backup import restoring
from hapax.backup.cluster import BackedUpCluster
from hapax.backup.restoring import Restorer
from hapax.backup.store import open_store
from hapax.backup.taking import BackupTaker
from hapax.client import Admin
from hapax.client.leases import Leases
from hapax.codec.batch import iterate_batches
from hapax.core.batch import BatchHeader
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.local.cluster import LocalCluster
from integration.backup_world import INPUT, PLAIN, SUMS, Writers, contents, judge, judge_records, read
from integration.waiting import until

ALL = (INPUT, "left", "right", SUMS, PLAIN)
MOVED, FAILED = TopicPartition("left", PartitionIndex(1)), TopicPartition(INPUT, PartitionIndex(2))
BROKERS = 3
SETTINGS = [f"{name}=2" for name in (
    "default.replication.factor", "offsets.topic.replication.factor", "transaction.state.log.replication.factor")]
PIECE = 1500
"""Bytes that are read or written at once: small, so that a partition takes several calls."""


class Disturbed(BackedUpCluster):
    """After the first call for it, one partition moves to other brokers, and the leader of another one is killed."""

    running: LocalCluster
    seen: Counter[TopicPartition]
    killed: str

    def disturb(self, running: LocalCluster) -> None:
        self.running, self.seen, self.killed, self._has_moved = running, Counter(), "", asyncio.Event()

    async def batches(
        self, partition: TopicPartition, topic_id: str, start: int, end: int
    ) -> AsyncIterator[tuple[memoryview, BatchHeader]]:
        async for batch, header in super().batches(partition, topic_id, start, end):
            yield batch, header
            await self._after_one(partition)

    async def import_batches(self, partition: TopicPartition, topic_id: str, first: int, batches: bytes) -> Any:
        answer = await super().import_batches(partition, topic_id, first, batches)
        for _ in iterate_batches(batches):
            await self._after_one(partition)
        return answer

    async def _after_one(self, partition: TopicPartition) -> None:
        self.seen[partition] += 1
        if self.seen[partition] > 1 or partition not in (MOVED, FAILED):
            return
        async with Admin({"bootstrap.servers": self.running.bootstrap}) as admin:  # this client must not hear of it
            if partition == MOVED:
                await self._move(admin, partition)
                self._has_moved.set()
            else:
                await self._has_moved.wait()  # to a broker that is alive
                await self._fail(admin, partition)

    async def _move(self, admin: Admin, name: TopicPartition) -> None:
        former = (await _replicas(admin, name))[1]
        target = ({*range(BROKERS)} - {*former}).pop(), former[1]
        assert await admin.alter_reassignments({name: target}) == []

        async def moved() -> bool:
            if not await admin.list_reassignments():
                await admin.elect_leaders([name])
            return await _replicas(admin, name) == (target[0], target)

        await until(moved, f"move of {name} to {target}")

    async def _fail(self, admin: Admin, name: TopicPartition) -> None:
        former = (await _replicas(admin, name))[0]
        self.killed = f"broker-{former}"
        await asyncio.to_thread(self.running.kill, self.killed)

        async def another() -> bool:
            return (await _replicas(admin, name))[0] not in (former, -1)

        await until(another, f"other leader of {name}")

    async def restart(self) -> None:
        assert self.killed and min(self.seen[MOVED], self.seen[FAILED]) > 1, "nothing was read after it"
        await asyncio.to_thread(self.running.start, self.killed, 180.0)


async def _replicas(admin: Admin, name: TopicPartition) -> tuple[int, tuple[int, ...]]:
    """(leader, replicas)."""
    topic = await admin.describe_topic(name.topic)
    found = next(each for each in topic.partitions if each.partition == name.partition)
    return found.leader, found.replicas


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[tuple[LocalCluster, LocalCluster]]:
    with ExitStack() as ending:
        made: list[LocalCluster] = []
        ending.callback(end_clusters, made)
        for name in ("source", "target"):
            made.append(start_cluster(tmp_path / name, brokers=BROKERS, settings=SETTINGS))
        yield made[0], made[1]


async def test_partitions_move_and_leaders_fail_meanwhile(
    clusters: tuple[LocalCluster, LocalCluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "_FETCH_BYTES", PIECE)
    monkeypatch.setattr(restoring, "CALL_BYTES", PIECE)
    source, target = clusters
    store = open_store(str(tmp_path / "backups"))
    writers = Writers(source.bootstrap)
    await writers.create()
    writers.start()
    manifests, surely, plain = [], [dict[str, int]()], []
    options = {"bootstrap.servers": source.bootstrap}
    async with Disturbed(options) as disturbed, BackedUpCluster(options) as calm, Leases(options) as leases:
        disturbed.disturb(source)
        for cluster in (disturbed, calm):  # the second one continues the first
            await writers.until(len(writers.committed) + 30)
            surely.append(dict(writers.committed))
            plain = list(writers.sent)
            taker = BackupTaker(
                cluster, leases, store, now_ms=lambda: time.time_ns() // 1_000_000, randbytes=os.urandom)
            manifests.append((await taker.take()).manifest)
            if cluster is disturbed:
                await disturbed.restart()
    await writers.until(len(writers.committed) + 10)
    await writers.stop()
    written = await read(source.bootstrap, ALL)
    assert manifests[1].base == manifests[0].backup
    for manifest, least in zip(manifests, surely[1:], strict=True):
        records, offsets = contents(store, manifest)
        assert judge_records(written, records, offsets) >= len(least)
    async with Disturbed({"bootstrap.servers": target.bootstrap}) as disturbed:
        disturbed.disturb(target)
        await Restorer(disturbed, store, manifests[1]).restore()
        await disturbed.restart()
    restored = await read(target.bootstrap, ALL)
    found = await judge(written, restored, target.bootstrap, surely=surely[2], plain=plain)
    assert found >= 60
