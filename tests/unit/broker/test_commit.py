"""Group commit across partitions."""

from __future__ import annotations

import asyncio

import pytest

from hapax.broker.commit import Committer
from hapax.log.config import LogConfig
from hapax.log.segment_log import SegmentLog
from hapax.runtime.disk import RealDisk
from unit.broker.broker_fixtures import FaultyDisk, batch


class Partition:
    """A log, and what the committer told of it."""

    def __init__(self, disk: FaultyDisk, number: int) -> None:
        self.log = SegmentLog(disk, f"t-{number}", LogConfig())
        self.log.create([])
        self.commit_queued = False
        self.durable: list[int] = []

    def advance(self, offset: int) -> None:
        self.durable.append(offset)

    def write(self, committer: Committer) -> None:
        end = self.log.end_offset
        self.log.append(batch(), end, end, 0)
        committer.request(self)


@pytest.fixture
def disk(folder: RealDisk) -> FaultyDisk:
    return FaultyDisk(folder)


async def test_partitions_share_a_way_off_the_loop(disk: FaultyDisk) -> None:
    committer = Committer(disk, lambda reason: pytest.fail(reason))
    partitions = [Partition(disk, n) for n in range(4)]
    for partition in partitions:
        partition.write(committer)
        partition.write(committer)
    await committer.drain()
    assert committer.rounds == 1
    assert [p.durable for p in partitions] == [[2]] * 4


async def test_many_partitions_share_a_few_lanes(disk: FaultyDisk) -> None:
    committer = Committer(disk, lambda reason: pytest.fail(reason))
    partitions = [Partition(disk, n) for n in range(30)]
    disk.hold_syncs()
    for partition in partitions:
        partition.write(committer)
    for _ in range(10):
        await asyncio.sleep(0)
    assert 1 < disk.syncs <= 4
    disk.release()
    await committer.drain()
    assert [p.durable for p in partitions] == [[1]] * 30


async def test_a_log_that_is_closed_while_it_waits_for_its_sync_stops_no_other(disk: FaultyDisk) -> None:
    """Its replica has moved away. The process ended: a closed file has no descriptor to sync."""
    committer = Committer(disk, lambda reason: pytest.fail(reason))
    gone, stays = Partition(disk, 0), Partition(disk, 1)
    for partition in (gone, stays):
        partition.write(committer)
    gone.log.close()
    await committer.drain()
    assert (gone.durable, stays.durable) == ([0], [1]), "nothing of it is said to be durable"
    assert not gone.log.needs_sync and not committer.queued


async def test_what_is_synced_of_a_log_that_was_closed_meanwhile_is_not_told(disk: FaultyDisk) -> None:
    committer = Committer(disk, lambda reason: pytest.fail(reason))
    gone, stays = Partition(disk, 0), Partition(disk, 1)
    disk.hold_syncs()
    for partition in (gone, stays):
        partition.write(committer)
    while not disk.syncs:  # noqa: ASYNC110
        await asyncio.sleep(0)
    gone.log.close()
    disk.release()
    await committer.drain()
    assert (gone.durable, stays.durable) == ([0], [1])


async def test_a_write_just_after_the_last_round_is_not_forgotten(disk: FaultyDisk) -> None:
    """A lane that is about to close must not be taken for one that will look again."""
    committer = Committer(disk, lambda reason: pytest.fail(reason))
    first, second = Partition(disk, 0), Partition(disk, 1)

    class Chained(Partition):
        def advance(self, offset: int) -> None:
            super().advance(offset)
            asyncio.get_running_loop().call_soon(second.write, committer)

    chained = Chained(disk, 2)
    for _ in range(50):
        chained.write(committer)
        first.write(committer)
        await committer.drain()
        await asyncio.sleep(0)
        await committer.drain()
    assert second.durable[-1] == second.log.end_offset == 50


async def test_after_a_failed_sync_no_partition_is_told_anything(disk: FaultyDisk) -> None:
    fatal: list[str] = []
    committer = Committer(disk, fatal.append)
    first, second = Partition(disk, 0), Partition(disk, 1)
    disk.sync_fails = True
    first.write(committer)
    await committer.drain()
    disk.sync_fails = False
    second.write(committer)
    await committer.drain()
    for _ in range(20):
        await asyncio.sleep(0)
    assert (first.durable, second.durable, len(fatal)) == ([], [], 1)
    assert "t-0" in fatal[0]
