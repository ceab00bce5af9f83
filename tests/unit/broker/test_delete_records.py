"""DeleteRecords: what is deleted stays deleted, whoever restarts, falls behind or leads next, and nothing else goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from hapax.broker.kafka_api import DeletionService, OffsetService
from hapax.codec.batch import iterate_batches
from hapax.core.errors import ErrorCode, Refusal
from hapax.kafka.api.list_offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from hapax.log.config import LogConfig
from hapax.log.layout import LOG_START, encode_log_start
from hapax.runtime.disk import RealDisk
from hapax.runtime.settings import Settings
from unit.broker.broker_fixtures import FOLDER, Harness, batch
from unit.broker.replicas_world import World
from unit.broker.test_kafka_api import Context, Partitions

NOW = 1_700_000_000_000
Make = Callable[..., Awaitable[World]]


async def delete(harness: Harness, offset: int) -> int:
    partitions: Any = Partitions(harness.replica)
    return await DeletionService(partitions).delete_records("t", 0, offset, 5000)


async def offset_of(harness: Harness, timestamp: int) -> tuple[int, int]:
    partitions: Any = Partitions(harness.replica)
    context: Any = Context(api_version=11)
    found = await OffsetService(partitions).list_offset(context, "t", 0, timestamp, -1, False)
    return found.offset, found.timestamp


# --- one replica ------------------------------------------------------------------------------------------------------


async def test_the_log_begins_where_it_was_asked_to(harness: Harness) -> None:
    for at in range(4):
        await harness.produced(batch(5, timestamp=NOW + 100 * at))
    assert await offset_of(harness, EARLIEST) == (0, -1)
    assert await delete(harness, 7) == 7
    replica = harness.replica
    assert await offset_of(harness, EARLIEST) == (7, -1)
    assert await offset_of(harness, NOW) == (7, NOW + 102), "the first that is left"
    assert await offset_of(harness, NOW + 104) == (9, NOW + 104)
    assert await offset_of(harness, LATEST) == (20, -1)
    with pytest.raises(Refusal) as refused:
        replica.read(6, 1000, committed=False, at_least_one=True)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert replica.read(7, 1 << 20, committed=True, at_least_one=True).next_offset == 20
    assert await delete(harness, 3) == 7, "nothing comes back"
    assert await delete(harness, -1) == 20
    assert await offset_of(harness, EARLIEST) == await offset_of(harness, LATEST) == (20, -1)
    assert await offset_of(harness, NOW) == await offset_of(harness, MAX_TIMESTAMP) == (-1, -1)
    assert (await harness.produced(batch())).base_offset == 20


async def test_the_newest_record_is_one_that_is_left(harness: Harness) -> None:
    for timestamp in (NOW, NOW + 900, NOW + 300, NOW + 500, NOW + 400):
        await harness.produced(batch(2, timestamp=timestamp))
    assert await offset_of(harness, MAX_TIMESTAMP) == (3, NOW + 901)
    await delete(harness, 4)
    assert await offset_of(harness, MAX_TIMESTAMP) == (7, NOW + 501)
    harness.replica.log.roll()
    await harness.produced(batch(2, timestamp=NOW + 600))
    assert await offset_of(harness, MAX_TIMESTAMP) == (11, NOW + 601)
    await delete(harness, 12)
    assert await offset_of(harness, MAX_TIMESTAMP) == (-1, -1)


@pytest.mark.parametrize(("offset", "code"), [
    (11, ErrorCode.OFFSET_OUT_OF_RANGE), (-2, ErrorCode.OFFSET_OUT_OF_RANGE), (1 << 62, ErrorCode.OFFSET_OUT_OF_RANGE),
])
async def test_only_what_is_committed_can_be_deleted(harness: Harness, offset: int, code: ErrorCode) -> None:
    await harness.produced(batch(10))
    with pytest.raises(Refusal) as refused:
        await delete(harness, offset)
    assert refused.value.code is code
    assert await offset_of(harness, EARLIEST) == (0, -1)


async def test_compacted_and_internal_topics_keep_their_records(folder: RealDisk) -> None:
    harness = Harness(folder, Settings(log_cleanup_policy="compact"))
    await harness.open()
    with pytest.raises(Refusal) as refused:
        await delete(harness, 0)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    harness.replica.log.config = LogConfig(compact=True, delete=True)
    assert await delete(harness, 0) == 0
    harness.replica.internal = True
    with pytest.raises(Refusal) as refused:
        await delete(harness, 0)
    assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_a_restart_brings_nothing_back(harness: Harness) -> None:
    for sequence in range(0, 20, 5):
        await harness.produced(batch(5, producer_id=7, epoch=0, sequence=sequence))
    await delete(harness, 12)
    harness.crash()
    replica = await harness.open()
    assert replica.machine.log_start_offset == 12
    assert (await harness.produced(batch(5, producer_id=7, epoch=0, sequence=20))).base_offset == 20
    assert (await harness.produced(batch(5, producer_id=7, epoch=0, sequence=5))).base_offset == 5, "a duplicate"
    await replica.close()
    assert (await harness.open(clean=True)).machine.log_start_offset == 12


async def test_records_that_come_after_a_power_cut_are_not_deleted(harness: Harness) -> None:
    """The note was durable, what it deletes was not: other records have those offsets now."""
    await harness.produced(batch(5))
    await delete(harness, 5)
    harness.crash()
    await harness.disk.write_atomically(f"{FOLDER}/{LOG_START}", encode_log_start(9))
    replica = await harness.open()
    assert replica.machine.log_start_offset == replica.machine.log_end_offset == 5
    await harness.produced(batch(10))
    harness.crash()
    assert (await harness.open()).machine.log_start_offset == 5


async def test_a_note_that_cannot_be_read_deletes_nothing(harness: Harness) -> None:
    await harness.produced(batch(5))
    harness.crash()
    await harness.disk.write_atomically(f"{FOLDER}/{LOG_START}", b"0\nx\n")
    assert (await harness.open()).machine.log_start_offset == 0


async def test_segments_of_deleted_records_go(folder: RealDisk) -> None:
    harness = Harness(folder, Settings(log_segment_bytes=1 << 20))
    await harness.open()
    replica = harness.replica
    for _ in range(3):
        await harness.produced(batch(5))
        replica.log.roll()
    await harness.produced(batch(5))
    while replica.maintenance.checkpoint is not None:
        await asyncio.gather(replica.maintenance.checkpoint)
    await delete(harness, 12)
    assert replica.log.bases == [10, 15]
    await delete(harness, 20)
    assert replica.log.bases == [15], "the segment that is being written stays"
    harness.crash()
    assert (await harness.open()).machine.log_start_offset == 20


async def test_what_a_cut_needs_stays(folder: RealDisk) -> None:
    """No snapshot holds the state of these records yet. One is taken, and then they go."""
    harness = Harness(folder)
    await harness.open()
    replica, maintenance = harness.replica, harness.replica.maintenance
    await harness.produced(batch(5, producer_id=7, epoch=0, sequence=0))
    replica.log.on_roll = None
    replica.log.roll()
    await harness.produced(batch(5, producer_id=7, epoch=0, sequence=5))
    partitions: Any = Partitions(replica)
    deletion = DeletionService(partitions)
    assert await deletion.delete_records("t", 0, 10, 5000) == 10
    assert maintenance.checkpoint is not None and replica.log.bases == [0, 5]
    await maintenance.checkpoint
    assert replica.log.bases == [5]


async def test_a_note_that_the_disk_refuses_is_made_later(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hapax.broker.log_start._AGAIN_S", 0.01)
    await harness.produced(batch(5))
    harness.disk.full = True
    partitions: Any = Partitions(harness.replica)
    with pytest.raises(Refusal) as refused:
        await DeletionService(partitions).delete_records("t", 0, 3, 30)
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
    harness.disk.full = False
    assert await delete(harness, 3) == 3


# --- several replicas -------------------------------------------------------------------------------------------------


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[World] = []

    async def make(*nodes: int, **topic: object) -> World:
        world = World(tmp_path, replica_lag_time_max_ms=300, transaction_partition_verification_enable=False)
        made.append(world)
        await world.start(*nodes)
        world.make_topic(nodes, **topic)  # type: ignore[arg-type]
        await world.until(lambda: world.leads(0))
        return world

    yield make
    for world in made:
        await world.close()


def deleting(world: World, node: int, offset: int, timeout_ms: int = 5000) -> asyncio.Task[int]:
    deletion = DeletionService(world.brokers[node].partitions)
    return asyncio.ensure_future(deletion.delete_records("t", 0, offset, timeout_ms))


def start(world: World, node: int) -> int:
    return world.replica(node).machine.log_start_offset


async def test_the_answer_waits_until_each_replica_in_sync_has_noted_it(make: Make) -> None:
    world = await make(0, 1, 2)
    for _ in range(4):
        await world.produced(0, batch(5))
    world.syncs(2).hold_replacements(LOG_START)
    answer = deleting(world, 0, 7)
    await world.until(lambda: [start(world, node) for node in (0, 1, 2)] == [7, 7, 7])
    await world.until(lambda: world.replica(1).maintenance.log_start.noted_below == 7)
    assert not answer.done(), "this replica could lead, restart, and have the records again"
    world.syncs(2).release()
    assert await answer == 7


async def test_a_deletion_is_told_at_once(make: Make) -> None:
    world = await make(0, 1)
    await world.produced(0, batch(5))
    await world.until(lambda: world.replica(1).machine.high_watermark == 5)
    began = asyncio.get_running_loop().time()
    for offset in range(1, 6):
        assert await deleting(world, 0, offset) == offset
    assert asyncio.get_running_loop().time() - began < 5 * world.settings.replica_fetch_wait_max_ms / 1000


async def test_a_replica_that_does_not_answer_is_waited_for_only_so_long(make: Make) -> None:
    world = await make(0, 1)
    await world.produced(0, batch(5))
    world.syncs(1).hold_replacements(LOG_START)
    with pytest.raises(Refusal) as refused:
        await deleting(world, 0, 3, 50)
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert start(world, 0) == 3


async def test_the_next_leader_has_less_too(make: Make) -> None:
    world = await make(0, 1)
    for _ in range(4):
        await world.produced(0, batch(5))
    assert await deleting(world, 0, 7) == 7
    await world.kill(0)
    await world.kill(1)
    await world.start(1)
    world.elect(1, isr=[1])
    await world.until(lambda: world.leads(1))
    assert start(world, 1) == 7
    assert (await world.produced(1, batch())).base_offset == 20
    await world.start(0)
    await world.until(lambda: world.record.isr == (0, 1))
    assert start(world, 0) == 7


async def test_who_leads_no_more_does_not_answer_for_the_others(make: Make) -> None:
    world = await make(0, 1)
    await world.produced(0, batch(5))
    world.syncs(1).hold_replacements(LOG_START)
    answer = deleting(world, 0, 3)
    await world.until(lambda: start(world, 0) == 3)
    world.elect(1)
    with pytest.raises(Refusal) as refused:
        await answer
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_who_was_away_joins_only_once_it_has_noted_what_is_deleted(make: Make) -> None:
    world = await make(0, 1)
    for _ in range(4):
        await world.produced(0, batch(5))
    await world.kill(1)
    await world.until(lambda: world.record.isr == (0,))
    assert await deleting(world, 0, 7) == 7
    await world.start(1)
    world.syncs(1).hold_replacements(LOG_START)
    await world.until(lambda: world.has(1) and world.replica(1).copying is not None and start(world, 1) == 7)
    await world.until(lambda: world.end(1) == 20)
    assert (await world.produced(0, batch())).error == 0
    await world.until(lambda: world.end(1) == 21)
    assert world.record.isr == (0,)
    world.syncs(1).release()
    await world.until(lambda: world.record.isr == (0, 1))
    assert world.replica(1).maintenance.log_start.noted_below == 7


async def test_the_next_leader_remembers_what_a_replica_must_have_noted_before_it_joins(make: Make) -> None:
    world = await make(0, 1, 2)
    for _ in range(4):
        await world.produced(0, batch(5))
    await world.kill(2)
    await world.until(lambda: world.record.isr == (0, 1))
    assert await deleting(world, 0, 7) == 7
    await world.kill(0)
    world.elect(1, isr=[1])
    await world.until(lambda: world.leads(1))
    await world.start(2)
    world.syncs(2).hold_replacements(LOG_START)
    await world.until(lambda: world.has(2) and world.replica(2).copying is not None and start(world, 2) == 7)
    assert (await world.produced(1, batch())).error == 0
    await world.until(lambda: world.end(2) == 21)
    assert world.record.isr == (1,)
    world.syncs(2).release()
    await world.until(lambda: world.record.isr == (1, 2))
    assert world.replica(2).maintenance.log_start.noted_below == 7


async def test_a_new_replica_begins_at_a_boundary_of_batches(make: Make) -> None:
    world = await make(0, 1)
    for sequence in range(0, 40, 5):
        await world.produced(0, batch(5, producer_id=7, epoch=0, sequence=sequence))
    leader = world.replica(0)
    leader.log.roll()
    await world.produced(0, batch(5, producer_id=7, epoch=0, sequence=40))
    while leader.maintenance.checkpoint is not None:
        await asyncio.gather(leader.maintenance.checkpoint)
    assert await deleting(world, 0, 42) == 42
    assert leader.log.bases == [40]
    await world.kill(1)
    await world.until(lambda: world.record.isr == (0,))
    for path in (world.folder / "broker-1" / "t-0").iterdir():
        path.unlink()
    (world.folder / "broker-1" / "t-0").rmdir()
    await world.start(1)
    await world.until(lambda: world.record.isr == (0, 1) and world.equal(0, 1))
    assert start(world, 1) == world.replica(1).maintenance.log_start.noted_below == 42
    assert [header.base_offset for _, header in iterate_batches(world.log_bytes(1))] == [40]
    duplicate = await world.produced(0, batch(5, producer_id=7, epoch=0, sequence=40))
    assert duplicate.base_offset == 40


async def test_a_cut_rebuilds_producers_from_deleted_records(make: Make) -> None:
    """The newest snapshot is below the log start, and the cut above it."""
    world = await make(0, 1)
    await world.produced(0, batch(5, producer_id=7, epoch=0, sequence=0))
    await world.until(lambda: world.equal(0, 1))
    world.replica(0).maintenance.begin_checkpoint()
    while world.replica(0).maintenance.checkpoint is not None:
        await asyncio.gather(world.replica(0).maintenance.checkpoint)
    await world.produced(0, batch(5, producer_id=8, epoch=0, sequence=0))
    await world.produced(0, batch(5, producer_id=7, epoch=0, sequence=5))
    assert await deleting(world, 0, 13) == 13
    await world.kill(1)
    world.produce(0, batch(5, producer_id=9, epoch=0, sequence=0))  # it is on one replica only
    await world.until(lambda: world.replica(0).log.synced_offset == 20)
    await world.kill(0)
    await world.start(1)
    world.elect(1, isr=[1])
    await world.until(lambda: world.leads(1))
    assert world.end(1) == 15
    await world.produced(1, batch(1, producer_id=10, epoch=0, sequence=0))
    await world.start(0)
    await world.until(lambda: world.record.isr == (0, 1) and world.equal(0, 1))
    assert start(world, 0) == start(world, 1) == 13


async def test_another_history_below_the_log_start_is_cut(make: Make) -> None:
    """Its records would be seen by nobody, and count for their producers."""
    world = await make(0, 1)
    await world.produced(0, batch(10, producer_id=7, epoch=0, sequence=0))
    await world.kill(0)
    world.elect(1, isr=[0, 1])
    await world.until(lambda: world.leads(1))
    await world.produce(1, batch(3, producer_id=7, epoch=0, sequence=10), local=True)
    await world.kill(1)
    await world.start(0)
    world.elect(0, isr=[0])
    await world.until(lambda: world.leads(0))
    await world.produced(0, batch(3, producer_id=8, epoch=0, sequence=0))
    await world.produced(0, batch(5, producer_id=7, epoch=0, sequence=10))
    assert await deleting(world, 0, 15) == 15
    await world.start(1)
    await world.until(lambda: world.record.isr == (0, 1))
    await world.until(lambda: world.equal(0, 1))


async def test_a_copy_of_another_history_begins_where_that_begins(make: Make) -> None:
    """An unclean election: what was deleted there was not deleted here."""
    world = await make(0, 1)
    await world.produced(0, batch(5))
    await world.until(lambda: world.equal(0, 1))
    await world.kill(1)
    await world.until(lambda: world.record.isr == (0,))
    await world.produced(0, batch(5))
    assert await deleting(world, 0, 7) == 7
    await world.kill(0)
    await world.start(1)
    world.elect(1, isr=[1])
    await world.until(lambda: world.leads(1))
    await world.start(0)
    await world.until(lambda: world.record.isr == (1, 0) or world.record.isr == (0, 1))
    await world.produced(1, batch(20))
    await world.until(lambda: world.equal(0, 1))
    await world.kill(0)
    await world.start(0)
    await world.until(lambda: world.has(0))
    assert start(world, 0) == start(world, 1) == 0
