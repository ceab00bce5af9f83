"""What a node answers between its drain and its end: promptly, and the truth about who has taken over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hapax.broker.service import BrokerService
from hapax.coordinator.service import CoordinatorService
from hapax.core.errors import ErrorCode
from hapax.kafka.api.find_coordinator import TRANSACTION
from hapax.runtime import supervision
from hapax.runtime.ports import MetadataUnavailable
from hapax.wire import messages
from hapax.wire.peer import Peer
from unit.coordinator.coordinator_world import RECORD, CoordinatorWorld, run

REPLICATED = {"brokers": 3, "replication": 3}
NOT_HERE = ErrorCode.NOT_LEADER_OR_FOLLOWER


def leader_of(world: CoordinatorWorld, topic: str) -> str:
    view = world.view(world.coordinators()[0])
    found = view.topic(topic)
    leader = None if found is None else view.leader_of(found.topic_id, 0)
    assert leader is not None
    return f"broker-{leader.node_id}"


def service_of(world: CoordinatorWorld, name: str) -> BrokerService | CoordinatorService:
    service = world.cluster.nodes[name].service
    assert isinstance(service, (BrokerService, CoordinatorService))
    return service


async def replicated(world: CoordinatorWorld) -> str:
    """Starts the cluster with the topic t, which has a replica at each broker. Returns its leader's name."""
    await world.start()
    kind = messages.CreateTopicsRequest
    answer = await (await world.broker()).call(kind(timeout_ms=10_000, validate_only=False, topics=[
        kind.CreatableTopic(name="t", num_partitions=1, replication_factor=3, assignments=[], configs=[])]), version=7)
    assert answer.topics[0].error_code == 0
    (name,) = world.coordinators()[:1]
    await world.cluster.wait_until(lambda: world.view(name).topic("t"), "the coordinator knows the topic")
    return leader_of(world, "t")


async def drained(world: CoordinatorWorld, name: str) -> bool:
    """SIGTERM, up to where the process would linger. Returns whether it would."""
    node = world.cluster.nodes[name]
    node.wanted = False
    assert node.process is not None
    service = service_of(world, name)
    assert service.ready() == ""
    await world.loop.spawn(node.process, service.drain(), "stop")
    assert service.ready() == "the end of the process"
    return service.handed_over()


async def fetch(peer: Peer, topic: str, wait_ms: int) -> Any:
    kind = messages.FetchRequest
    answer = await peer.call(kind(
        replica_id=-1, max_wait_ms=wait_ms, min_bytes=1 << 20, max_bytes=1 << 20, isolation_level=0, session_id=0,
        session_epoch=-1, forgotten_topics_data=[], rack_id="", topics=[kind.FetchTopic(
            topic=topic, partitions=[kind.FetchTopic.FetchPartition(
                partition=0, current_leader_epoch=-1, fetch_offset=0, last_fetched_epoch=-1, log_start_offset=-1,
                partition_max_bytes=1 << 20)])]), version=12)
    return answer.responses[0].partitions[0]


async def produce(peer: Peer, topic: str) -> int:
    kind = messages.ProduceRequest
    answer = await peer.call(kind(transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=[
        kind.TopicProduceData(name=topic, partition_data=[
            kind.TopicProduceData.PartitionProduceData(index=0, records=RECORD)])]), version=11)
    return int(answer.responses[0].partition_responses[0].error_code)


async def end_offset(peer: Peer, topic: str) -> int:
    kind = messages.ListOffsetsRequest
    answer = await peer.call(kind(replica_id=-1, isolation_level=0, topics=[kind.ListOffsetsTopic(
        name=topic, partitions=[kind.ListOffsetsTopic.ListOffsetsPartition(
            partition_index=0, current_leader_epoch=-1, timestamp=-1)])]), version=7)
    return int(answer.topics[0].partitions[0].error_code)


def test_a_drained_broker_tells_who_leads_now() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        former = await replicated(world)
        waiting, later = await world.peer(former), await world.peer(former, fresh=True)
        assert await produce(later, "t") == 0
        parked = asyncio.ensure_future(fetch(waiting, "t", wait_ms=600_000))
        assert await drained(world, former)
        assert (await parked).error_code in (0, NOT_HERE)
        began = asyncio.get_running_loop().time()
        new = await world.peer(former, fresh=True)
        for peer in (later, new):
            assert await produce(peer, "t") == NOT_HERE
            assert (await fetch(peer, "t", wait_ms=600_000)).error_code == NOT_HERE
            assert await end_offset(peer, "t") == NOT_HERE
            known = await peer.call(messages.MetadataRequest(
                topics=[messages.MetadataRequest.MetadataRequestTopic(name="t")], allow_auto_topic_creation=False),
                version=8)
            number = int(former.split("-")[1])
            assert known.topics[0].partitions[0].leader_id not in (number, -1)
            assert number not in {node.node_id for node in known.brokers}
            described = await peer.call(messages.DescribeClusterRequest())
            for controller, nodes in (
                (known.controller_id, {node.node_id for node in known.brokers}),
                (described.controller_id, {node.broker_id for node in described.brokers}),
            ):
                assert controller in nodes, "clients look for it there to send administrative calls"
        assert asyncio.get_running_loop().time() - began < 5
        assert await produce(await world.peer(leader_of(world, "t")), "t") == 0

    run(scenario, **REPLICATED)


def test_a_drained_coordinator_tells_who_owns_the_shards_now() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        identity = await world.init("x")
        former = world.owner_of("x")
        group = next(f"g{n}" for n in range(100) if world.owner_of_group(f"g{n}") == former)
        assert await drained(world, former)
        world.gone = former
        began = asyncio.get_running_loop().time()
        for peer in (await world.peer(former), await world.peer(former, fresh=True)):
            ended = await peer.call(messages.EndTxnRequest(
                transactional_id="x", producer_id=identity[0], producer_epoch=identity[1], committed=True), version=3)
            assert ended.error_code == ErrorCode.NOT_COORDINATOR
            beat = await peer.call(
                messages.HeartbeatRequest(group_id=group, generation_id=1, member_id="m"), version=2)
            assert beat.error_code == ErrorCode.NOT_COORDINATOR
            found = await peer.call(messages.FindCoordinatorRequest(key="x", key_type=TRANSACTION), version=3)
            assert (found.error_code, f"coordinator-{found.node_id - 100}") == (0, world.owner_of("x"))
            assert f"coordinator-{found.node_id - 100}" != former
        assert asyncio.get_running_loop().time() - began < 5
        assert world.coordinator(former).shards.owned() == 0

    run(scenario)


def test_a_node_whose_work_nobody_has_taken_over_has_nothing_to_tell() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        assert not await drained(world, "broker-0")
        assert not await drained(world, "coordinator-0")

    run(scenario, brokers=1, coordinators=1)


def test_a_broker_that_led_nothing_has_nothing_to_tell() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        leaders = {each.record.leader for each in world.view("coordinator-0").partitions()}
        assert not await drained(world, next(f"broker-{n}" for n in range(12) if n not in leaders))

    run(scenario, brokers=12)


def test_a_broker_whose_logs_could_not_be_closed_does_not_stay() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        former = await replicated(world)
        service = service_of(world, former)
        assert isinstance(service, BrokerService)

        async def fails() -> None:
            raise OSError("the disk is gone")

        service.partitions.close_cleanly = fails  # type: ignore[method-assign]
        assert not await drained(world, former)

    run(scenario, **REPLICATED)


def test_a_coordinator_whose_drain_was_cut_short_does_not_stay() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        former = world.owner_of("x")
        service, process = world.coordinator(former), world.cluster.nodes[former].process
        assert process is not None
        service.shards.drain = asyncio.Event().wait  # type: ignore[assignment, method-assign]
        world.cluster.nodes[former].wanted = False
        stop = world.loop.spawn(process, service.drain(), "stop")
        await world.moved_from(former, "x")
        stop.cancel()
        assert not service.handed_over()

    run(scenario)


@pytest.mark.parametrize("role", ["broker", "coordinator"])
def test_a_node_whose_registration_could_not_be_revoked_does_not_stay(role: str) -> None:
    """The controller would take it for alive, since it listens, and could assign it what it does not do any more."""
    async def scenario(world: CoordinatorWorld) -> None:
        former = await replicated(world) if role == "broker" else world.owner_of(await started(world))
        registration = service_of(world, former).registration
        assert registration is not None

        async def away(lease: int) -> None:
            raise MetadataUnavailable("no answer")

        registration._store.revoke_lease = away  # type: ignore[method-assign]
        assert not await drained(world, former)

    run(scenario, **REPLICATED)


@pytest.mark.parametrize("role", ["broker", "coordinator"])
def test_a_node_that_does_not_hear_of_its_own_end_does_not_stay(role: str) -> None:
    """What no other node has taken over yet, clients would be told to ask this very node for."""
    async def scenario(world: CoordinatorWorld) -> None:
        former = await replicated(world) if role == "broker" else world.owner_of(await started(world))
        service = service_of(world, former)
        registration = service.registration
        assert registration is not None
        revoke = registration._store.revoke_lease

        async def revoked_unheard(lease: int) -> None:
            await supervision.end(service.view._follower)
            await revoke(lease)

        registration._store.revoke_lease = revoked_unheard  # type: ignore[method-assign]
        assert not await drained(world, former)

    run(scenario, **REPLICATED)


async def started(world: CoordinatorWorld) -> str:
    """Starts the cluster. Returns a transactional id."""
    await world.start()
    return "x"
