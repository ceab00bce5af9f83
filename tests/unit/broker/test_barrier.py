"""Reads on which others decide, at a leader that may have been replaced (rule 23)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from hapax.broker import barrier
from hapax.broker.rpc_api import BrokerRpc
from hapax.core.control import Marker
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.barrier import Conversation
from hapax.rpc.gen.hapax.internal.v1 import broker_pb2, common_pb2
from hapax.rpc.gen.hapax.v1 import partitions_pb2
from hapax.runtime.network import TcpNetwork
from hapax.runtime.ports import MetadataUnavailable
from hapax.runtime.rpc import RpcIdentity
from hapax.wire.messages import FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest
from hapax.wire.peer import Peer
from unit.broker.broker_fixtures import batch
from unit.broker.replicas_world import OTHER_TOPIC, TOPIC, World

Make = Callable[..., Awaitable[World]]
LATEST, EARLIEST = -1, -2
UNCONFIRMED = (ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER)


@pytest.fixture
async def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    made: list[World] = []
    monkeypatch.setattr(barrier, "_PATIENCE_S", 0.3)

    async def make(*nodes: int, replicas: tuple[int, ...] = (0, 1, 2), **settings: object) -> World:
        world = World(tmp_path, **settings)
        made.append(world)
        await world.start(*nodes)
        world.make_topic(replicas)
        await world.until(lambda: world.leads(replicas[0]))
        return world

    yield make
    for world in made:
        await world.close()


class Away:
    """The store cannot be reached."""

    async def request(self) -> None:
        raise MetadataUnavailable("cut off")

    response = request


def cut_off(world: World, node: int) -> None:
    world.stores[node].link = Away()


async def end(world: World, node: int, *, committed: bool = False, at: int = LATEST) -> tuple[int, int]:
    """(error, offset) that a client is told."""
    kind = ListOffsetsRequest.ListOffsetsTopic
    address = world.brokers[node].kafka_address
    peer = await Peer.connect(TcpNetwork(), address.host, address.port)
    try:
        request = ListOffsetsRequest(replica_id=-1, isolation_level=int(committed), topics=[kind(
            name="t", partitions=[kind.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=at)],
        )])
        found = (await peer.call(request, version=6)).topics[0].partitions[0]
        return found.error_code, found.offset
    finally:
        peer.close()


async def replaced(world: World) -> None:
    """Node 0 cannot reach the store, and does not know that node 1 leads and has committed more."""
    await world.produced(0, batch(2))
    await world.until(lambda: world.equal(0, 1, 2))
    cut_off(world, 0)
    world.elect(1, isr=(1, 2))
    await world.until(lambda: world.leads(1))
    await world.produced(1, batch(3))
    assert world.replica(0).serving and world.end(0) == 2


@pytest.mark.parametrize("committed", [False, True])
async def test_a_leader_that_was_replaced_does_not_tell_its_end(make: Make, committed: bool) -> None:
    world = await make(0, 1, 2)
    await replaced(world)
    error, offset = await end(world, 0, committed=committed)
    assert (error in UNCONFIRMED, offset) == (True, -1), "it would be an end from before what was acknowledged"
    assert await end(world, 1, committed=committed) == (0, 5)
    assert await end(world, 0, at=EARLIEST) == (0, 0), "on that nobody decides"


async def fetched(
    world: World, node: int, offset: int, *, last_epoch: int = -1, session: bool = False, max_wait_ms: int = 0,
) -> tuple[int, int]:
    """(error, end offset of the diverging epoch) that a consumer is told."""
    topic = FetchRequest.FetchTopic
    address = world.brokers[node].kafka_address
    peer = await Peer.connect(TcpNetwork(), address.host, address.port)
    try:
        request = FetchRequest(
            replica_id=-1, max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, isolation_level=0, session_id=0,
            session_epoch=0 if session else -1, forgotten_topics_data=[], rack_id="", topics=[topic(
                topic="t", partitions=[topic.FetchPartition(
                    partition=0, current_leader_epoch=-1, fetch_offset=offset, last_fetched_epoch=last_epoch,
                    log_start_offset=-1, partition_max_bytes=1 << 20)])])
        found = (await peer.call(request, version=12)).responses[0].partitions[0]
        return found.error_code, -1 if found.diverging_epoch is None else found.diverging_epoch.end_offset
    finally:
        peer.close()


@pytest.mark.parametrize("session", [False, True])
async def test_a_leader_that_was_replaced_does_not_say_that_an_offset_is_out_of_range(
    make: Make, session: bool,
) -> None:
    """A consumer would begin again at the start, and process everything twice."""
    world = await make(0, 1, 2)
    await replaced(world)
    for wait in (0, 10_000):
        assert await fetched(world, 0, 5, session=session, max_wait_ms=wait) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert await fetched(world, 1, 5, session=session) == (0, -1)
    assert await fetched(world, 1, 6, session=session) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert await fetched(world, 1, 6, session=session, max_wait_ms=10_000) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


async def test_a_leader_that_was_replaced_does_not_say_where_logs_diverge(make: Make) -> None:
    """A consumer would take records that it has read for lost ones, and read them again."""
    world = await make(0, 1, 2)
    await replaced(world)
    epoch = world.replica(1).leader_epoch
    for last_epoch in (epoch - 1, epoch):
        assert await fetched(world, 0, 5, last_epoch=last_epoch) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert await fetched(world, 1, 5, last_epoch=epoch) == (0, -1)
    assert await fetched(world, 1, 4, last_epoch=epoch - 1) == (0, 2)

    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic

    async def ends(node: int) -> tuple[int, int]:
        address = world.brokers[node].kafka_address
        peer = await Peer.connect(TcpNetwork(), address.host, address.port)
        try:
            answer = await peer.call(OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic(
                topic="t", partitions=[topic.OffsetForLeaderPartition(
                    partition=0, current_leader_epoch=-1, leader_epoch=epoch - 1)])]), version=4)
            found = answer.topics[0].partitions[0]
            return found.error_code, found.end_offset
        finally:
            peer.close()

    assert await ends(0) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert await ends(1) == (0, 2)


async def test_a_leader_that_was_replaced_does_not_say_what_producers_have(make: Make) -> None:
    """Winners of a commit, and the progress of leased producers, are counted by this answer."""
    world = await make(0, 1, 2)
    await replaced(world)
    named = common_pb2.TopicPartition(topic_id=TOPIC, partition=0)
    asked = broker_pb2.DescribeProducersRequest(partitions=[named])

    async def described(node: int) -> broker_pb2.PartitionProducers:
        channel = TcpNetwork(RpcIdentity("c")).rpc_channel(str(world.brokers[node].registration.record.rpc_address))
        payload = await channel.call(
            "/hapax.internal.v1.PartitionBroker/DescribeProducers", asked.SerializeToString(), 5.0)
        return partitions_pb2.DescribeProducersResponse.FromString(payload).partitions[0]

    assert (await described(0)).error in UNCONFIRMED
    assert (await described(1)).error == 0


async def test_a_marker_that_ends_nothing_is_no_success_at_a_leader_that_was_replaced(make: Make) -> None:
    """Where the transaction is open elsewhere, 'nothing is open here' would leave it open for good."""
    world = await make(0, 1, 2)
    await replaced(world)
    replica = world.replica(0)
    stored = replica.write_markers([Marker(7, 1, False, 5, -1, -1, 3, 2)])
    assert stored == [(0, None)]
    payload = broker_pb2.WriteMarkersRequest(markers=[broker_pb2.Marker(
        producer_id=7, producer_epoch=1, coordinator_epoch=5, serial=-1, shard=-1, first_offset=3,
        transaction_version=2, partitions=[common_pb2.TopicPartition(topic_id=TOPIC, partition=0)],
    )]).SerializeToString()
    channel = TcpNetwork(RpcIdentity("c")).rpc_channel(str(world.brokers[0].registration.record.rpc_address))
    answer = broker_pb2.WriteMarkersResponse.FromString(
        await channel.call("/hapax.internal.v1.PartitionBroker/WriteMarkers", payload, 5.0))
    assert answer.results[0].partitions[0].error in UNCONFIRMED


async def test_a_leadership_that_was_won_back_meanwhile_does_not_confirm_what_memory_said_before(make: Make) -> None:
    """Node 0 says that nothing is open, and waits for another partition's marker. It learns that it was replaced, gets
    the transaction from its successor, and leads again."""
    world = await make(0, 1, 2, replicas=(0, 1), transaction_partition_verification_enable=False)
    world.make_other_topic((0, 2))
    await world.until(lambda: world.leads_other(0))
    await world.produced(0, batch(3))
    await world.until(lambda: world.equal(0, 1))
    cut_off(world, 0)
    world.elect(1, isr=(1,))
    await world.until(lambda: world.leads(1))
    await world.produced(1, batch(2, producer_id=7, epoch=0, sequence=0, transactional=True))

    world.syncs(2).hold_syncs()
    call = asyncio.ensure_future(BrokerRpc(world.brokers[0].partitions, lambda *_: "x").write_markers(
        broker_pb2.WriteMarkersRequest(markers=[
            broker_pb2.Marker(
                producer_id=7, producer_epoch=1, coordinator_epoch=5, serial=-1, shard=-1, first_offset=3,
                transaction_version=2, partitions=[common_pb2.TopicPartition(topic_id=TOPIC, partition=0)]),
            broker_pb2.Marker(
                producer_id=8, producer_epoch=1, coordinator_epoch=5, serial=1, shard=0, first_offset=-1,
                transaction_version=2, partitions=[common_pb2.TopicPartition(topic_id=OTHER_TOPIC, partition=0)]),
        ])))
    await asyncio.sleep(0)
    world.stores[0].link = world.stores[1].link
    await world.until(lambda: world.equal(0, 1) and world.end(0) == 5)
    world.elect(0, isr=(0, 1))
    await world.until(lambda: world.leads(0))
    assert not call.done()
    world.syncs(2).release()
    async with asyncio.timeout(10):
        answer = broker_pb2.WriteMarkersResponse.FromString(await call)
    assert [opened.producer_id for opened in world.replica(0).machine.open_transactions()] == [7]
    assert answer.results[0].partitions[0].error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answer.results[1].partitions[0].error == 0


async def test_fetches_that_wait_are_answered_at_once_and_questions_share_a_round(make: Make) -> None:
    world = await make(0, 1, 2, replica_fetch_wait_max_ms=20_000)
    await world.produced(0, batch(2))
    replica = world.replica(0)
    began = replica.context.barriers.rounds.newest
    async with asyncio.timeout(5):
        await asyncio.gather(*(replica.barrier.passed() for _ in range(100)))
        assert replica.context.barriers.rounds.newest == began + 1
        assert await end(world, 0) == (0, 2)
    assert not replica.context.barriers.waiting


async def test_followers_of_an_earlier_version_confirm_too(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    said = Conversation.asked
    monkeypatch.setattr(Conversation, "asked", lambda self, number, read: said(self, number, None))
    world = await make(0, 1, 2, replica_fetch_wait_max_ms=20_000)
    async with asyncio.timeout(5):
        await world.replica(0).barrier.passed()


async def test_only_the_leader_of_an_in_sync_set_of_one_needs_nobody(make: Make) -> None:
    world = await make(0, 1)
    await world.until(lambda: world.record.isr == (0, 1))
    await world.kill(1)
    world.unregister(1)
    await world.until(lambda: world.record.isr == (0,))
    cut_off(world, 0)
    assert await end(world, 0) == (0, 0)


async def test_a_removal_counts_once_it_is_stored(make: Make) -> None:
    world = await make(0, 1, 2)
    await world.produced(0, batch(2))
    cut_off(world, 0)
    replica = world.replica(0)
    await world.kill(2)
    replica.context.reconsider(replica)
    world.brokers[0].partitions.in_sync.reconsider(replica, (2,))  # type: ignore[arg-type]
    await world.until(lambda: replica.replication is not None and replica.replication.pending is not None)
    assert (await end(world, 0))[0] in UNCONFIRMED, "node 2 may still be elected, and may have been"
    world.stores[0].link = world.stores[1].link
    await world.until(lambda: 2 not in world.record.isr)
    assert await end(world, 0) == (0, 2)


async def test_who_waits_while_the_leadership_goes_is_sent_away(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(barrier, "_PATIENCE_S", 60.0)
    world = await make(0, 1, 2)
    await world.kill(2)
    waiting = asyncio.ensure_future(world.replica(0).barrier.passed())
    await asyncio.sleep(0)
    world.elect(1, isr=(1, 2))
    with pytest.raises(Refusal) as refused:
        async with asyncio.timeout(5):
            await waiting
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_reader_that_gives_up_takes_nobody_with_it(make: Make) -> None:
    world = await make(0, 1, 2)
    replica = world.replica(0)
    impatient, patient = (asyncio.ensure_future(replica.barrier.passed()) for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()
    async with asyncio.timeout(5):
        await patient
