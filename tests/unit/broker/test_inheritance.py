"""Producers whose records are in no log any more: every replica knows them all the same, and a new leader too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hapax.broker import periodic_tasks
from hapax.broker.copying import Copying
from hapax.broker.inheritance import Inherited
from hapax.codec.batch import iterate_batches, patch_prefix, read_header
from hapax.codec.metadata import TopicRecord
from hapax.codec.raw_records import raw_records, rewritten
from hapax.codec.records import decode_batch, encode_records
from hapax.core.control import Marker, ProducerFence
from hapax.core.errors import ErrorCode
from hapax.core.types import NodeId
from hapax.log.layout import (
    BEGINS_ANEW,
    HIGH_WATERMARK_CHECKPOINT,
    INHERITED,
    SNAPSHOT,
    encode_inherited,
    offset_name,
)
from hapax.runtime.disk import RealDisk
from hapax.runtime.ports import Put
from hapax.runtime.settings import Settings
from unit.broker.broker_fixtures import Harness
from unit.broker.replicas_world import KEYS, TOPIC, World

Make = Callable[..., Awaitable[World]]
EVERY_S = 3600.0
COMPACT = {"segment_bytes": "10000", "cleanup_policy": "compact"}
NOW = 1_700_000_000_000


@pytest.fixture
async def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    # The tests compact, and a log has one run at a time: that of the broker's clock would be a second one.
    monkeypatch.setattr(periodic_tasks, "_COMPACTION_EVERY_S", EVERY_S)
    made: list[World] = []

    async def make(*nodes: int, **settings: object) -> World:
        world = World(tmp_path, transaction_partition_verification_enable=False, **settings)
        made.append(world)
        await world.start(*nodes)
        return world

    yield make
    for world in made:
        await world.close()


def keyed(key: str, sequence: int, *, producer_id: int, count: int = 1, epoch: int = 0, size: int = 500) -> bytearray:
    """`count` records of one key."""
    return encode_records(
        [(NOW, key.encode(), b"x" * size, ())] * count,
        producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence,
    )


async def written(world: World, node: int = 0, rounds: int = 1) -> None:
    """A log of which compaction leaves little: producer 5 has one batch, 7 another one, 70 one that is aborted, 9 a
    lease; 6 writes the same keys again and again."""
    leader = world.replica(node)
    start = leader.machine.log_end_offset // 1000
    await world.produced(node, keyed("k0", 0, producer_id=5, count=3, epoch=2))
    await world.produced(node, keyed("k1", 0, producer_id=7, epoch=start))
    if leader.machine.describe_producer(70) is None:
        result = await world.produced(node, encode_records(
            [(NOW, b"k1", b"v", ())], transactional=True, producer_id=70, producer_epoch=0, base_sequence=0))
        assert result.error == 0
        leader.append_control(Marker(70, 1, False, 5, 1, 0, -1, 2))
        assert [entry.producer_id for entry in leader.machine.aborted] == [70]
    leader.append_control(ProducerFence(9, start, 2 * NOW))
    for number in range(60 * rounds):
        sequence = 0 if (view := leader.machine.describe_producer(6)) is None else view.last_sequence + 1
        await world.produced(node, keyed(f"k{number % 3}", sequence, producer_id=6))


async def compacted(world: World, node: int = 0) -> None:
    """Most of it is gone; so are the records of producer 5 if others have its keys."""
    replica = world.replica(node)
    if replica.replication is not None:
        for away in [n for n in world.record.replicas if n not in world.brokers]:  # for long, that is
            replica.replication.asked(away, 0, replica.context.clock.monotonic_ms() - 30_000)
    await world.until(lambda: replica.log.snapshot_below(replica.machine.high_watermark) > 30)
    done = await replica.maintenance.compact()
    assert done is not None and done.bytes_after < done.bytes_before / 2


async def led(world: World, node: int = 0, **topic: object) -> World:
    world.make_topic(**topic)  # type: ignore[arg-type]
    await world.until(lambda: world.leads(node))
    return world


def alike(world: World, *nodes: int) -> bool:
    """As `World.equal`, where each replica compacts by itself."""
    if not all(world.has(node) for node in nodes):
        return False
    replicas = [world.replica(node) for node in nodes]
    return (
        all(replica.machine.high_watermark == replica.machine.log_end_offset for replica in replicas)
        and len({replica.machine.log_end_offset for replica in replicas}) == 1
        and len({world.state(node) for node in nodes}) == 1
        and len({tuple(replica.machine.aborted) for replica in replicas}) == 1
    )


async def takes_over(world: World, node: int, former: int) -> None:
    """With everything that the former leader knew of producer 5, whose records are gone."""
    await world.kill(former)
    world.elect(node, isr=[n for n in world.record.isr if n != former])
    await world.until(lambda: world.leads(node))
    retry = await world.produced(node, keyed("k0", 0, producer_id=5, count=3, epoch=2))
    assert (retry.error, retry.base_offset) == (0, 0)
    zombie = await world.produced(node, keyed("k0", 0, producer_id=5, epoch=1))
    assert zombie.error == ErrorCode.INVALID_PRODUCER_EPOCH
    view = world.replica(node).machine.describe_producer(5)
    assert view is not None and view.record_count == 3
    following = await world.produced(node, keyed("k0", 3, producer_id=5, epoch=2))
    assert following.error == 0


async def test_a_replica_that_was_away_while_its_leader_compacted_begins_anew(make: Make) -> None:
    world = await led(await make(0, 1, 2), **COMPACT)
    await world.produced(0, keyed("a", 0, producer_id=4))
    await world.until(lambda: world.equal(0, 1, 2))
    await world.kill(2)
    await written(world)
    await compacted(world)
    await world.start(2)
    await world.until(lambda: set(world.record.isr) == {0, 1, 2})
    await world.until(lambda: alike(world, 0, 1, 2))
    view = world.replica(2).machine.describe_producer(6)
    assert view is not None and view.record_count == 60
    await world.stop(1)
    world.change(isr=(NodeId(0), NodeId(2)))
    await world.kill(0)
    world.elect(2, isr=[2])
    await world.until(lambda: world.leads(2))
    retry = await world.produced(2, keyed("k0", 0, producer_id=5, count=3, epoch=2))
    assert (retry.error, retry.base_offset) == (0, 1)


@pytest.mark.parametrize("again", [False, True])
async def test_a_new_replica_of_a_compacted_log_can_lead(make: Make, again: bool) -> None:
    world = await led(await make(0, 1), replicas=(0,), **COMPACT)
    await written(world)
    await compacted(world)
    world.change(replicas=(NodeId(0), NodeId(1)), adding=(NodeId(1),))
    await world.until(lambda: set(world.record.isr) == {0, 1})
    await world.until(lambda: alike(world, 0, 1))
    assert world.log_bytes(0) == world.log_bytes(1)
    if again:
        await world.kill(1)
        await world.start(1)
        await world.until(lambda: alike(world, 0, 1) and set(world.record.isr) == {0, 1})
    await takes_over(world, 1, 0)


async def test_a_new_replica_lists_what_was_aborted_also_where_only_the_marker_is_left(make: Make) -> None:
    world = await led(await make(0, 1), replicas=(0,), **COMPACT)
    await written(world)
    await compacted(world)
    aborted = list(world.replica(0).machine.aborted)
    assert len(aborted) == 1
    world.change(replicas=(NodeId(0), NodeId(1)), adding=(NodeId(1),))
    await world.until(lambda: set(world.record.isr) == {0, 1} and alike(world, 0, 1))
    for end in (world.kill, world.stop):
        await end(1)
        await world.start(1)
        await world.until(lambda: set(world.record.isr) == {0, 1} and alike(world, 0, 1))
        assert list(world.replica(1).machine.aborted) == aborted


async def test_a_new_replica_of_a_log_without_its_first_records_can_lead(make: Make) -> None:
    world = await led(await make(0, 1), replicas=(0,), segment_bytes="10000", retention_bytes="20000")
    await written(world)
    leader = world.replica(0)
    await world.until(lambda: leader.log.covered > 30)
    assert leader.maintenance.retire()
    assert leader.machine.log_start_offset > 3
    world.change(replicas=(NodeId(0), NodeId(1)), adding=(NodeId(1),))
    await world.until(lambda: set(world.record.isr) == {0, 1})
    await world.until(lambda: world.equal(0, 1))
    await world.kill(1)
    await world.start(1)
    await world.until(lambda: world.equal(0, 1))
    await takes_over(world, 1, 0)


# --- on the way -----------------------------------------------------------------------------------------------------


SLOWLY = {"leader_replication_throttled_rate": 60_000, "replica_fetch_max_bytes": 1_000}


def is_on_its_way(world: World, node: int) -> bool:
    """It has the leader's producers, and some of the log."""
    if not world.has(node):
        return False
    replica = world.replica(node)
    inherited = replica.inheritance.inherited
    return inherited is not None and replica.log.start_offset < replica.machine.log_end_offset < inherited.offset


async def alone(world: World, node: int, batches: list[bytearray]) -> None:
    """Writes that no other replica has."""
    for batch in batches:
        done = world.produce(node, batch, local=True)
        await world.until(done.done)
        assert done.result().error == 0


async def test_producers_as_of_an_offset_that_another_leader_fills_otherwise_are_asked_for_again(make: Make) -> None:
    world = await led(
        await make(0, 1, 2, **SLOWLY), replicas=(0, 1), segment_bytes="10000", min_insync_replicas="2")
    await written(world)
    await world.kill(1)
    await alone(world, 0, [keyed("a", n, producer_id=20) for n in range(30)])
    former = world.replica(0)
    former.log.drop_first(1)
    former.machine.advance_log_start(former.log.start_offset)
    world.change(replicas=(NodeId(0), NodeId(1), NodeId(2)), adding=(NodeId(2),))
    await world.until(lambda: is_on_its_way(world, 2))
    await world.kill(0)
    await world.start(1)
    world.elect(1, isr=[1])
    await world.until(lambda: world.leads(1))
    await alone(world, 1, [keyed("b", n, producer_id=21) for n in range(40)])
    assert not world.has(2) or is_on_its_way(world, 2)
    await world.until(lambda: set(world.record.isr) == {1, 2})
    await world.until(lambda: alike(world, 1, 2))
    machine = world.replica(2).machine
    assert machine.describe_producer(20) is None
    views = machine.describe_producer(5), machine.describe_producer(21)
    assert [view.record_count for view in views if view is not None] == [3, 40]


async def test_a_new_replica_joins_once_it_has_the_producers_and_not_before(make: Make) -> None:
    world = await led(
        await make(0, 1, 2, **SLOWLY), replicas=(0, 1), segment_bytes="10000", min_insync_replicas="2")
    await written(world)
    leader = world.replica(0)
    leader.log.drop_first(1)
    leader.machine.advance_log_start(leader.log.start_offset)
    await world.kill(1)
    await alone(world, 0, [keyed("a", n, producer_id=20) for n in range(40)])
    committed = leader.machine.high_watermark
    world.change(replicas=(NodeId(0), NodeId(1), NodeId(2)), adding=(NodeId(2),))
    await world.until(lambda: is_on_its_way(world, 2) and world.end(2) > committed + 2)
    assert world.record.isr == (0,)
    await world.until(lambda: set(world.record.isr) == {0, 2})
    await world.until(lambda: world.equal(0, 2))


async def test_nothing_is_compacted_under_a_replica_on_its_way_or_it_begins_anew(make: Make) -> None:
    world = await led(await make(0, 1, **SLOWLY), replicas=(0,), **COMPACT)
    await written(world)
    await compacted(world)
    await written(world)
    world.change(replicas=(NodeId(0), NodeId(1)), adding=(NodeId(1),))
    leader = world.replica(0)
    await world.until(lambda: is_on_its_way(world, 1) and leader.log.covered >= leader.log.active.base_offset)
    before = world.replica(1).inheritance.inherited
    assert await leader.maintenance.compact() is None
    fetchers = world.brokers[1].partitions.fetchers
    await world.until(lambda: fetchers.halt(world.replica(1)))
    assert leader.replication is not None
    leader.replication.asked(NodeId(1), 0, leader.context.clock.monotonic_ms() - 30_000)
    assert await leader.maintenance.compact() is not None
    assert is_on_its_way(world, 1)
    fetchers.resume(world.replica(1))
    await world.until(lambda: world.replica(1).inheritance.inherited is not before)
    await world.until(lambda: set(world.record.isr) == {0, 1} and alike(world, 0, 1))


# --- accidents ------------------------------------------------------------------------------------------------------


async def test_a_crash_while_a_copy_is_removed_leaves_nothing_of_it(make: Make, tmp_path: Path) -> None:
    world = await led(await make(0, 1), replicas=(0, 1), **COMPACT)
    await written(world)
    await world.until(lambda: world.equal(0, 1))
    await world.kill(1)
    await compacted(world)
    folder = tmp_path / "broker-1" / "t-0"
    (folder / BEGINS_ANEW).touch()
    sorted(folder.glob("*.log"))[0].unlink()
    await world.start(1)
    await world.until(lambda: set(world.record.isr) == {0, 1} and alike(world, 0, 1))
    assert not (folder / BEGINS_ANEW).exists()
    await takes_over(world, 1, 0)


@pytest.mark.parametrize("policy", ["compact", "delete"])
async def test_a_replica_without_its_snapshots_asks_for_the_leaders(make: Make, tmp_path: Path, policy: str) -> None:
    world = await led(
        await make(0, 1), replicas=(0, 1), segment_bytes="10000", cleanup_policy=policy, retention_bytes="20000")
    await written(world)
    await world.until(lambda: world.equal(0, 1))
    replica = world.replica(1)
    await world.until(lambda: replica.log.covered > 30 and world.replica(0).log.covered > 30)
    if policy == "compact":
        await compacted(world, 1)
    else:
        assert world.replica(0).maintenance.retire()
        await world.produced(0, keyed("z", 0, producer_id=30))
        await world.until(lambda: replica.machine.log_start_offset > 3 and replica.log.start_offset > 3)
    await world.kill(1)
    folder = tmp_path / "broker-1" / "t-0"
    for snapshot in folder.glob("*.snapshot"):
        snapshot.write_bytes(b"rot")
    kept = len(list(folder.glob("*.log")))
    await world.start(1)
    await world.until(lambda: set(world.record.isr) == {0, 1} and alike(world, 0, 1))
    assert policy == "compact" or len(list(folder.glob("*.log"))) == kept, "the log itself was whole"
    await takes_over(world, 1, 0)


async def test_what_is_inherited_stays_until_a_snapshot_that_nothing_cuts_has_it(make: Make, tmp_path: Path) -> None:
    world = await led(
        await make(0, 1, 2), replicas=(0, 1), segment_bytes="10000", min_insync_replicas="2")
    await written(world)
    leader = world.replica(0)
    leader.log.drop_first(1)
    leader.machine.advance_log_start(leader.log.start_offset)
    world.change(replicas=(NodeId(0), NodeId(1), NodeId(2)), adding=(NodeId(2),))
    await world.until(lambda: set(world.record.isr) == {0, 1, 2} and world.equal(0, 1, 2))
    for node in (0, 1):
        await world.kill(node)
    world.elect(2, isr=[2])
    await world.until(lambda: world.leads(2))
    await alone(world, 2, [keyed("a", n, producer_id=20) for n in range(40)])  # which nobody else will ever have
    world.change(isr=(NodeId(0),))
    await world.start(0)
    world.elect(0, isr=[0])
    await world.until(lambda: world.leads(0))
    await world.until(lambda: set(world.record.isr) == {0, 2} and alike(world, 0, 2))
    for number in range(40):
        await world.produced(0, keyed("b", number, producer_id=21))
    await world.until(lambda: not (tmp_path / "broker-2" / "t-0" / INHERITED).exists())
    await world.kill(2)
    await world.start(2)
    await world.until(lambda: set(world.record.isr) == {0, 2} and alike(world, 0, 2))


async def test_compaction_stays_below_a_snapshot_that_nothing_cuts(make: Make) -> None:
    world = await led(await make(0, 1), replicas=(0, 1), min_insync_replicas="2", **COMPACT)
    await written(world)
    leader = world.replica(0)
    committed = leader.machine.high_watermark
    await world.kill(1)
    await alone(world, 0, [keyed("k0", 60 + n, producer_id=6) for n in range(60)])
    assert leader.machine.high_watermark == committed
    await compacted(world)
    await world.kill(0)
    await world.start(1)
    world.elect(1, isr=[1])
    await world.until(lambda: world.leads(1))
    await world.start(0)
    await world.until(lambda: set(world.record.isr) == {0, 1} and alike(world, 0, 1))


# --- a topic that is a compacted one no more ------------------------------------------------------------------------


def values(world: World, node: int) -> dict[bytes, bytes | None]:
    """What a reader of the whole log holds of each key in the end."""
    data, found = world.log_bytes(node), dict[bytes, bytes | None]()
    for position, header in iterate_batches(data):
        if not header.is_control:
            for record in decode_batch(data, position, header.size):
                assert record.key is not None
                found[record.key] = record.value
    return {key: value for key, value in found.items() if value is not None}


def of_key(key: bytes, value: bytes | None) -> bytearray:
    return encode_records([(NOW, key, value, ())])


async def rewritten_often(world: World, node: int, rounds: int = 60) -> None:
    for number in range(rounds):
        await world.produced(node, of_key(f"k{number % 3}".encode(), b"x" * 500))


def switch_to_delete(world: World) -> None:
    record = TopicRecord(TOPIC, "t", 1, 2, {"segment.bytes": "10000", "cleanup.policy": "delete"})
    world.model.txn([], [Put(KEYS.topic("t"), record.encode())])


async def test_a_copy_that_lacks_producers_keeps_no_value_whose_tombstone_its_leader_has_removed(
    make: Make, tmp_path: Path
) -> None:
    """Since the topic's policy is delete by now, only the leader knows that its log was compacted."""
    world = await led(await make(0, 1), replicas=(0, 1), delete_retention_ms="0", **COMPACT)
    await world.produced(0, of_key(b"deleted", b"value"))
    await rewritten_often(world, 0)
    await world.until(lambda: world.equal(0, 1))
    await compacted(world, 1)
    await world.kill(1)
    await world.produced(0, of_key(b"deleted", None))
    await rewritten_often(world, 0)
    await compacted(world)
    await rewritten_often(world, 0)
    await compacted(world)
    assert b"deleted" not in world.log_bytes(0)
    switch_to_delete(world)
    for snapshot in (tmp_path / "broker-1" / "t-0").glob("*.snapshot"):
        snapshot.write_bytes(b"rot")
    await world.start(1)
    await world.until(lambda: set(world.record.isr) == {0, 1} and alike(world, 0, 1))
    assert values(world, 1) == values(world, 0)


@pytest.mark.parametrize("end", ["in order", "crash", "crash before the high watermark was stored"])
async def test_a_copy_whose_newest_values_an_election_took_back_gets_the_ones_that_it_has_compacted_away(
    make: Make, tmp_path: Path, end: str
) -> None:
    """The cut takes what superseded them; the leader, which never compacted, has them."""
    world = await led(await make(0, 1), replicas=(0, 1), **COMPACT)
    await world.produced(0, of_key(b"kept", b"old"))
    await rewritten_often(world, 0)
    await world.until(lambda: world.equal(0, 1))
    await world.stop(1)
    await world.until(lambda: world.record.isr == (0,))
    await world.produced(0, of_key(b"kept", b"new"))
    await rewritten_often(world, 0)
    await compacted(world)
    assert values(world, 0)[b"kept"] == b"new"
    assert b"old" not in world.log_bytes(0)
    await (world.stop if end == "in order" else world.kill)(0)
    if end.endswith("stored"):
        (tmp_path / "broker-0" / HIGH_WATERMARK_CHECKPOINT).unlink(missing_ok=True)
    switch_to_delete(world)
    await world.start(1)
    world.elect(1, isr=(1,))
    await world.until(lambda: world.leads(1))
    await world.start(0)
    await world.until(lambda: set(world.record.isr) == {0, 1} and alike(world, 0, 1))
    assert values(world, 1)[b"kept"] == b"old"
    assert values(world, 0) == values(world, 1)


# --- what nothing cuts ----------------------------------------------------------------------------------------------


async def follower(folder: RealDisk, **settings: object) -> tuple[Harness, Copying]:
    """A copy that is fed by hand: its high watermark is where `heard` says."""
    harness = Harness(folder, Settings(**settings))  # type: ignore[arg-type]
    await harness.open()
    harness.replica.resign()
    harness.replica.leader_epoch = -1
    return harness, Copying(harness.replica, NodeId(0), 1)


async def copied(harness: Harness, copying: Copying, count: int) -> int:
    """So many more batches, and a checkpoint at their end, which is returned."""
    machine = harness.replica.machine
    for number in range(count):
        batch = keyed(f"k{number % 3}", machine.log_end_offset, producer_id=6)
        patch_prefix(batch, machine.log_end_offset, 1)
        copying.append(memoryview(batch))
    while harness.replica.maintenance.checkpoint is not None:
        await harness.replica.maintenance.checkpoint
    harness.replica.maintenance.begin_checkpoint()
    assert harness.replica.maintenance.checkpoint is not None
    await harness.replica.maintenance.checkpoint
    assert harness.replica.log.covered == machine.log_end_offset
    return machine.log_end_offset


async def test_what_is_inherited_outlasts_a_snapshot_above_the_high_watermark(folder: RealDisk) -> None:
    harness, copying = await follower(folder)
    offset = await copied(harness, copying, 5)
    inherited = Inherited(1, harness.replica.machine.snapshot(), ())
    file = f"{harness.replica.log.folder.path}/{INHERITED}"
    await harness.disk.write_atomically(file, encode_inherited(offset, 1, b"", b""))
    harness.replica.inheritance.take(inherited)
    end = await copied(harness, copying, 5)
    assert harness.replica.machine.high_watermark < offset
    assert harness.replica.inheritance.inherited is inherited
    assert harness.disk.exists(file), "a cut at the high watermark takes every snapshot that has it"
    copying.heard(end, 0)
    await copied(harness, copying, 1)
    assert harness.replica.inheritance.inherited is None
    assert not harness.disk.exists(file)


async def test_nothing_is_compacted_above_the_newest_snapshot_that_no_cut_takes(folder: RealDisk) -> None:
    harness, copying = await follower(folder, log_segment_bytes=3000, log_cleanup_policy="compact")
    replica = harness.replica
    stays = await copied(harness, copying, 30)
    committed = stays + 20
    end = stays
    for _ in range(3):
        end = await copied(harness, copying, 10)
    for snapshot in [at for at in replica.log.snapshot_offsets if stays < at <= committed]:
        replica.log.snapshot_offsets.remove(snapshot)  # as if there had been none on the way
    copying.heard(committed, 0)
    assert replica.log.snapshot_below(committed) == stays
    assert replica.log.covered == end
    assert committed < end
    done = await replica.maintenance.compact()
    assert done is not None and done.up_to <= stays
    left = [header.base_offset for header in harness.log_headers()]
    assert len(left) < end
    assert left[-(end - stays) :] == list(range(stays, end)), "the replay after a cut goes through all of these"


async def test_a_cut_that_finds_the_newest_snapshot_damaged_says_what_the_older_one_and_the_log_lack(
    folder: RealDisk,
) -> None:
    """Segments go as soon as one snapshot covers them, so between the older one and what is left, records are gone."""
    harness, copying = await follower(folder, log_segment_bytes=3000)
    replica = harness.replica
    newest = await copied(harness, copying, 30)
    copying.heard(newest, newest)
    for offset in (newest, newest + 1):  # in the next segment, and the former ones go
        batch = keyed("k", offset, producer_id=6)
        patch_prefix(batch, offset, 1)
        copying.append(memoryview(batch))
    assert replica.maintenance.checkpoint is not None
    await replica.maintenance.checkpoint
    older, covering = replica.log.snapshot_offsets
    assert older < replica.log.start_offset == covering == newest
    snapshot = harness.disk.open(f"{replica.log.folder.path}/{offset_name(newest, SNAPSHOT)}")
    snapshot.write_at(30, b"rot")
    snapshot.close()
    await copying.truncate(1, newest + 1)
    assert replica.machine.log_end_offset == newest + 1
    assert replica.inheritance.lacking, "its leader's producers have to be asked for"


async def test_a_copy_of_batches_of_which_records_are_missing_says_so_as_a_leader(folder: RealDisk) -> None:
    """No offset is missing between its batches, and yet a tombstone may be."""
    harness, copying = await follower(folder)
    harness.replica.inheritance.take(Inherited(1, replace(harness.replica.machine.snapshot(), offset=10), ()))
    whole = keyed("k", -1, producer_id=-1, count=3)
    header = read_header(whole)
    data, found = raw_records(memoryview(whole), header)
    batch = rewritten(header, data, found[1:], None)
    patch_prefix(batch, 0, 1)
    copying.append(memoryview(batch))
    assert harness.replica.log.was_compacted
