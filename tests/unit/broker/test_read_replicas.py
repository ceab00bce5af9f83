"""Consumers that read from a replica in their own rack (KIP-392): what they see there, and when they are sent away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hapax.broker.copying import Copying
from hapax.broker.kafka_api import ProducerService
from hapax.broker.read_replicas import serves_as_copy
from hapax.codec.batch import iterate_batches
from hapax.core.control import Marker
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import NodeId
from hapax.kafka.api.fetch import FetchPartition, FetchRequest
from hapax.kafka.table import DEFERRED
from hapax.runtime.settings import RACK_AWARE_SELECTOR
from unit.broker.broker_fixtures import batch
from unit.broker.replicas_world import World
from unit.broker.test_fetch import Context, decoded

ALONE = {"transaction_partition_verification_enable": False, "log_roll_hours": 1_000_000}
"""No coordinator is there. The markers' time is not the batches'."""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Brokers 0, 1 and 2 in racks a, b and c; 0 leads."""
    made = World(tmp_path, replica_selector_class=RACK_AWARE_SELECTOR, **ALONE)
    made.racks = {0: "a", 1: "b", 2: "c"}
    await made.start(0, 1, 2)
    made.make_topic()
    await made.until(lambda: made.leads(0))
    await made.until(lambda: all(made.has(node) and serves_as_copy(made.replica(node)) for node in (1, 2)))
    yield made
    await made.close()


def send(
    world: World, node: int, offset: int, *, rack: str = "b", wait_ms: int = 0, committed: bool = True, epoch: int = -1,
    last_epoch: int = -1, session: tuple[int, int] = (0, -1), named: bool = True,
) -> tuple[Context, Any]:
    context = Context()
    answer = world.brokers[node].fetches.fetch(context, FetchRequest(  # type: ignore[arg-type]
        -1, wait_ms, 1, 1 << 20, committed, *session,
        [FetchPartition("t", 0, offset, 1 << 20, epoch, last_epoch)] if named else [], [], rack=rack,
    ))
    return context, answer


def fetch(world: World, node: int, offset: int, **options: Any) -> Any:
    response = decoded(send(world, node, offset, **options)[1])
    ((partition,),) = [topic.partitions for topic in response.responses]
    return partition


async def waits(world: World, node: int, offset: int, **options: Any) -> asyncio.Task[Any]:
    context, answer = send(world, node, offset, wait_ms=60_000, **options)
    assert answer is DEFERRED

    async def finish() -> Any:
        async with asyncio.timeout(10):
            ((partition,),) = [topic.partitions for topic in decoded(await context.answer).responses]
            return partition

    return asyncio.create_task(finish())


def bases(partition: Any) -> list[int]:
    return [header.base_offset for _, header in iterate_batches(partition.records or b"")]


# --- the leader ----------------------------------------------------------------------------------------------------


async def test_the_leader_names_the_replica_in_the_consumers_rack(world: World) -> None:
    await world.produced(0, batch(2))
    found = fetch(world, 0, 0, rack="b")
    assert (found.preferred_read_replica, found.error_code, bases(found)) == (1, 0, [])
    assert (found.high_watermark, found.log_start_offset) == (2, 0)
    assert fetch(world, 0, 2, rack="c", wait_ms=60_000).preferred_read_replica == 2, "it does not wait for records"
    for rack in ("a", "d", ""):
        found = fetch(world, 0, 0, rack=rack)
        assert (found.preferred_read_replica, bases(found)) == (-1, [0])


async def test_the_leader_names_only_a_replica_in_sync_that_has_the_offset(world: World) -> None:
    await world.produced(0, batch(2))
    replication = world.replica(0).replication
    assert replication is not None
    assert fetch(world, 0, 2).preferred_read_replica == 1
    replication.forgot(NodeId(1))
    assert fetch(world, 0, 0).preferred_read_replica == -1
    assert fetch(world, 0, 2, rack="c").preferred_read_replica == 2
    replication.isr = (NodeId(0), NodeId(1))
    assert fetch(world, 0, 2, rack="c").preferred_read_replica == -1


async def test_the_leader_names_no_broker_that_is_gone(world: World) -> None:
    await world.produced(0, batch(2))
    world.unregister(1)
    await world.until(lambda: world.brokers[0].view.node(NodeId(1)) is None)
    assert fetch(world, 0, 0).preferred_read_replica == -1


async def test_without_the_selector_only_the_leader_serves(tmp_path: Path) -> None:
    world = World(tmp_path, **ALONE)
    world.racks = {0: "a", 1: "b"}
    try:
        await world.start(0, 1)
        world.make_topic(replicas=(0, 1))
        await world.until(lambda: world.leads(0))
        await world.produced(0, batch())
        assert bases(fetch(world, 0, 0)) == [0]
        assert fetch(world, 1, 0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    finally:
        await world.close()


async def test_a_copy_describes_its_producers_unless_the_leader_is_asked_for(world: World) -> None:
    await world.produced(0, batch(producer_id=7, epoch=0, sequence=0, transactional=True))
    await world.until(lambda: world.end(1) == 1)

    async def described(node: int, *, leader_only: bool = False) -> Any:
        service = ProducerService(world.brokers[node].partitions, None)  # type: ignore[arg-type]
        return await service.describe_producers("t", 0, leader_only=leader_only)

    assert await described(1) == await described(0) == await described(0, leader_only=True)
    assert [each.txn_first_offset for each in await described(1)] == [0]
    with pytest.raises(Refusal) as refused:
        await described(1, leader_only=True)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


# --- the copy ------------------------------------------------------------------------------------------------------


async def test_a_copy_shows_what_its_leader_shows(world: World) -> None:
    leader = world.replica(0)
    for producer_id, commit in ((1, True), (2, False), (3, None)):
        world.produce(0, batch(3, producer_id=producer_id, epoch=0, sequence=0, transactional=True))
        if commit is not None:
            leader.append_control(Marker(producer_id, 1, commit, 5, 1, 0, -1, 2))
    await world.produced(0, batch())
    await world.until(lambda: world.equal(0, 1))
    for committed in (True, False):
        for offset in range(leader.machine.log_end_offset + 1):
            here = fetch(world, 0, offset, rack="a", committed=committed)
            there = fetch(world, 1, offset, committed=committed)
            assert there == here, offset
    aborted = fetch(world, 1, 0).aborted_transactions
    assert [(entry.producer_id, entry.first_offset) for entry in aborted] == [(2, 4)]


async def test_a_copy_shows_nothing_that_is_not_committed(world: World) -> None:
    await world.produced(0, batch())
    await world.until(lambda: world.equal(0, 1, 2))
    slow = world.syncs(2)
    slow.hold_syncs()
    written = world.produce(0, batch())
    await world.until(lambda: world.end(1) == 2 and world.replica(1).log.synced_offset == 2)
    poll = await waits(world, 1, 1)
    found = fetch(world, 1, 1)
    assert (bases(found), found.high_watermark) == ([], 1)
    found = fetch(world, 1, 2, last_epoch=7)
    assert (found.error_code, bases(found)) == (0, []), "what is not committed is compared with nothing"
    assert not poll.done()
    slow.release()
    assert (await written).error == 0
    found = await poll
    assert (bases(found), found.high_watermark) == ([1], 2)


async def test_a_reader_of_committed_records_at_a_copy_waits_for_the_marker(world: World) -> None:
    world.produce(0, batch(2, producer_id=7, epoch=0, sequence=0, transactional=True))
    await world.produced(0, batch())
    await world.until(lambda: world.equal(0, 1))
    assert bases(fetch(world, 1, 0, committed=False)) == [0, 2]
    poll = await waits(world, 1, 0)
    world.replica(0).append_control(Marker(7, 1, False, 0, 1, 0, -1, 2))
    found = await poll
    assert bases(found) == [0, 2, 3]
    assert [(entry.producer_id, entry.first_offset) for entry in found.aborted_transactions] == [(7, 0)]


async def test_a_copy_serves_sessions(world: World) -> None:
    response = decoded(send(world, 1, 0, session=(0, 0))[1])
    context, answer = send(world, 1, 0, session=(response.session_id, 1), named=False, wait_ms=60_000)
    assert answer is DEFERRED
    assert world.brokers[1].fetches.sessions.sessions[response.session_id].pending == {}
    await world.produced(0, batch())
    async with asyncio.timeout(10):
        found = decoded(await context.answer)
    assert bases(found.responses[0].partitions[0]) == [0]


async def test_offsets_that_a_copy_does_not_have(world: World) -> None:
    await world.produced(0, batch())
    await world.until(lambda: world.equal(0, 1))
    assert fetch(world, 1, 2).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert fetch(world, 1, -1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_leader_epochs_hold_at_a_copy(world: World) -> None:
    await world.produced(0, batch())
    await world.until(lambda: world.equal(0, 1))
    world.elect(2)
    await world.until(lambda: world.leads(2) and serves_as_copy(world.replica(1)))
    assert fetch(world, 1, 0, epoch=0).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert fetch(world, 1, 0, epoch=2).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert bases(fetch(world, 1, 0, epoch=1)) == [0]
    assert bases(fetch(world, 1, 1, epoch=1, last_epoch=0)) == []


# --- sent away -----------------------------------------------------------------------------------------------------


async def test_readers_of_a_copy_that_lost_its_leader_are_sent_away(world: World) -> None:
    poll = await waits(world, 1, 0)
    await world.kill(0)
    found = await poll
    assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert found.current_leader.leader_id == 0


async def test_readers_of_a_copy_whose_log_is_cut_are_sent_away(world: World) -> None:
    poll = await waits(world, 1, 0)
    copying = world.replica(1).copying
    assert isinstance(copying, Copying)
    copying.begin(copying.truncate(0, 0), lambda lost, error: None)
    assert (await poll).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await world.until(lambda: not copying.busy)
    assert not serves_as_copy(world.replica(1)), "it has not heard its leader since"


@pytest.mark.parametrize("state", ["lacking", "halted"])
async def test_a_copy_without_all_producers_or_with_damage_serves_no_one(world: World, state: str) -> None:
    replica = world.replica(1)
    if state == "lacking":
        replica.inheritance.lacking = True
        assert fetch(world, 1, 0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        replica.inheritance.lacking = False
    else:
        poll = await waits(world, 1, 0)
        world.brokers[1].partitions.fetchers.halt(replica)
        assert (await poll).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        world.brokers[1].partitions.fetchers.resume(replica)
    assert fetch(world, 1, 0).error_code == 0


async def test_a_reader_stays_where_the_copy_becomes_the_leader(world: World) -> None:
    await world.produced(0, batch())
    await world.until(lambda: world.equal(0, 1))
    poll = await waits(world, 1, 1)
    world.elect(1)
    await world.until(lambda: world.leads(1))
    await world.until(lambda: poll.done() or bool(world.replica(1).readers))
    if not poll.done():
        await world.produced(1, batch())
    found = await poll
    assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER or bases(found) == [1]


async def test_who_tells_no_rack_is_sent_to_the_leader(world: World) -> None:
    found = fetch(world, 1, 0, rack="")
    assert (found.error_code, found.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
