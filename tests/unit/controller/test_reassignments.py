"""Moves of replicas and leaderships, asked for by the Kafka protocol, carried on by whichever controller acts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hapax.codec.metadata import DeletedTopicRecord
from hapax.controller.reassignments import Reassignments
from hapax.core.errors import ErrorCode
from hapax.core.types import NodeId, PartitionIndex
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb
from hapax.runtime.clock import SystemClock
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Compare, Delete, Put, TxnResult
from hapax.wire import messages
from hapax_sim.metadata import MemoryMetadata
from unit.control_world import KEYS, ControlWorld, FakeBroker, run
from unit.controller.test_failover import FEW, all_led, join_isr, records
from unit.kafka.test_node_apis import AnsweringNode

Move = messages.AlterPartitionReassignmentsRequest.ReassignableTopic


async def four_brokers(
    world: ControlWorld, partitions: int = 4, **settings: Any
) -> tuple[AnsweringNode, list[FakeBroker], Any]:
    """A topic `t` of two replicas for each partition, on the brokers 0 and 1."""
    _, controller = await world.controller(**FEW, **settings)
    brokers = [await world.broker(n, listens=True) for n in range(4)]
    await world.coordinator(100)
    node = await AnsweringNode(world).start()
    topic = messages.CreateTopicsRequest.CreatableTopic
    await node.ask("CreateTopics", 7, timeout_ms=5000, validate_only=False, topics=[topic(
        name="t", num_partitions=-1, replication_factor=-1, configs=[], assignments=[
            topic.CreatableReplicaAssignment(partition_index=i, broker_ids=[i % 2, 1 - i % 2])
            for i in range(partitions)])])
    await node.view.wait_for(all_led, 5)
    return node, brokers, controller


async def alter(
    node: AnsweringNode, targets: Mapping[int, list[int] | None], *, topic: str = "t", **fields: Any
) -> dict[int, tuple[int, str | None]]:
    moves = Move(name=topic, partitions=[
        Move.ReassignablePartition(partition_index=i, replicas=target) for i, target in targets.items()])
    answer = await node.ask("AlterPartitionReassignments", 1, **{
        "topics": [moves], "timeout_ms": 5000, "allow_replication_factor_change": True, **fields})
    assert answer.error_code == 0
    return {p.partition_index: (p.error_code, p.error_message) for t in answer.responses for p in t.partitions}


async def moving(node: AnsweringNode) -> dict[int, tuple[list[int], list[int], list[int]]]:
    answer = await node.ask("ListPartitionReassignments", 0, timeout_ms=5000, topics=None)
    return {
        p.partition_index: (p.replicas, p.adding_replicas, p.removing_replicas)
        for t in answer.topics for p in t.partitions}


async def caught_up(world: ControlWorld, broker: FakeBroker, topic: str = "t") -> None:
    await broker.view.reached(world.model.revision)
    await join_isr(world, broker, topic)


def ended(view: ClusterView) -> bool:
    return not any(r.adding or r.removing for r in records(view)) and all_led(view)


def test_a_partition_moves_once_its_new_replicas_are_in_sync() -> None:
    async def scenario(world: ControlWorld) -> None:
        node, brokers, _ = await four_brokers(world)
        assert await alter(node, {0: [2, 3], 1: [1, 2]}) == {0: (0, None), 1: (0, None)}
        assert await moving(node) == {0: ([2, 3, 0, 1], [2, 3], [0, 1]), 1: ([1, 2, 0], [2], [0])}
        await asyncio.sleep(10)
        assert set(await moving(node)) == {0, 1}  # it waits for the copies
        await caught_up(world, brokers[2])
        await node.view.wait_for(lambda v: not records(v)[1].adding, 5)
        assert (records(node.view)[1].replicas, records(node.view)[1].leader) == ((1, 2), 1)
        await caught_up(world, brokers[3])
        await node.view.wait_for(ended, 5)
        record = records(node.view)[0]
        assert (record.replicas, set(record.isr), record.leader) == ((2, 3), {2, 3}, 2)
        assert await moving(node) == {}

    run(scenario)


def test_another_controller_carries_a_move_on() -> None:
    async def scenario(world: ControlWorld) -> None:
        node, brokers, _ = await four_brokers(world)
        await alter(node, {0: [2]})
        world.kill(next(p for p in world.processes if p.name == "controller-0"))
        await caught_up(world, brokers[2])
        await world.controller(301, **FEW)
        await node.view.wait_for(ended, 30)
        assert (records(node.view)[0].replicas, records(node.view)[0].leader) == ((2,), 2)

    run(scenario)


def test_a_topic_that_is_deleted_while_a_partition_of_it_ends_its_move_does_not_end_the_controller() -> None:
    """The partition is among those that did not fit into the transaction of the deletion: it is to be changed and to be
    deleted at the same time."""
    async def scenario(world: ControlWorld) -> None:
        node, brokers, _ = await four_brokers(world, 130)
        await alter(node, {129: [2]})
        world.kill(next(p for p in world.processes if p.name == "controller-0"))
        await caught_up(world, brokers[2])
        topic = node.view.topic("t")
        assert topic is not None
        world.model.txn([], [
            Delete(KEYS.topic("t")),
            Put(KEYS.deleted(topic.topic_id), DeletedTopicRecord(topic.topic_id, "t", 0).encode()),
            *(Delete(KEYS.partition(topic.topic_id, PartitionIndex(i))) for i in range(120))])
        await world.controller(301, **FEW)
        await node.view.wait_for(lambda v: not v.partitions_of(topic.topic_id), 10)
        assert not world.ended

    run(scenario)


def test_a_move_is_canceled_and_what_cannot_be_is_refused() -> None:
    async def scenario(world: ControlWorld) -> None:
        node, brokers, _ = await four_brokers(world)
        await alter(node, {0: [2, 3], 1: [2, 3]})
        await caught_up(world, brokers[2])
        await node.view.wait_for(lambda v: 2 in records(v)[0].isr, 5)
        answers = await alter(node, {0: None, 2: None, 3: [0, 9], 9: [0]})
        assert {i: code for i, (code, _) in answers.items()} == {
            0: 0, 2: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, 3: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        record = records(node.view)[0]
        assert (set(record.replicas), set(record.isr), record.adding) == ({0, 1}, {0, 1}, ())
        refused = await alter(node, {2: [0, 1, 2]}, allow_replication_factor_change=False)
        assert refused[2][0] == ErrorCode.INVALID_REPLICATION_FACTOR

    run(scenario)


def test_the_last_in_sync_copy_is_not_removed() -> None:
    async def scenario(world: ControlWorld) -> None:
        node, brokers, _ = await four_brokers(world)
        world.kill(brokers[0].process)
        await node.view.wait_for(lambda v: all(r.isr == (1,) for r in records(v)), 5)
        await world.broker(0, listens=True)
        code, why = (await alter(node, {0: [0]}))[0]
        assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT and why is not None and "last in-sync copy" in why
        assert await moving(node) == {}

    run(scenario)


def test_another_replication_factor_holds_for_new_partitions_too() -> None:
    async def scenario(world: ControlWorld) -> None:
        node, brokers, _ = await four_brokers(world)
        await alter(node, {i: [i % 2, 1 - i % 2, 2] for i in range(4)})
        await caught_up(world, brokers[2])
        await node.view.wait_for(ended, 5)
        topic = node.view.topic("t")
        assert topic is not None and topic.record.replication_factor == 3
        more = messages.CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=5, assignments=None)
        await node.ask("CreatePartitions", 3, timeout_ms=5000, validate_only=False, topics=[more])
        assert len(records(node.view)[4].replicas) == 3

    run(scenario)


def test_leaders_are_elected_on_request() -> None:
    async def scenario(world: ControlWorld) -> None:
        node, brokers, _ = await four_brokers(world)
        brokers[1].registration.declare("draining")
        await node.view.wait_for(lambda v: all(r.leader == 0 for r in records(v)) and all_led(v), 5)
        named = messages.ElectLeadersRequest.TopicPartitions
        answer = await node.ask("ElectLeaders", 2, election_type=0, timeout_ms=5000, topic_partitions=[
            named(topic="t", partitions=[0, 1, 9])])
        assert {p.partition_id: p.error_code for t in answer.replica_election_results for p in t.partition_result} == {
            0: ErrorCode.ELECTION_NOT_NEEDED, 1: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        brokers[1].registration.declare("")
        await node.view.wait_for(lambda v: v.node(NodeId(1)).record.standing == "")  # type: ignore[union-attr]
        answer = await node.ask("ElectLeaders", 2, election_type=0, timeout_ms=5000, topic_partitions=None)
        assert not any(p.error_code for t in answer.replica_election_results for p in t.partition_result)
        await node.view.wait_for(lambda v: [r.leader for r in records(v)] == [0, 1, 0, 1], 5)

    run(scenario)


async def one_without_a_leader(world: ControlWorld) -> AnsweringNode:
    """A partition whose only replica in sync is dead. The other one has returned."""
    node, brokers, _ = await four_brokers(world, 1)
    world.kill(brokers[1].process)
    await node.view.wait_for(lambda v: records(v)[0].isr == (0,), 5)
    world.kill(brokers[0].process)
    await world.broker(1, listens=True)
    await node.view.wait_for(lambda v: records(v)[0].leader == -1, 5)
    return node


def test_an_unclean_election_is_made_on_request_where_nobody_leads() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await one_without_a_leader(world)
        answer = await node.ask("ElectLeaders", 2, election_type=1, timeout_ms=5000, topic_partitions=None)
        (result,) = [t for t in answer.replica_election_results if t.topic == "t"]
        assert result.partition_result[0].error_code == 0
        assert (records(node.view)[0].leader, records(node.view)[0].isr) == (1, (1,))

    run(scenario)


def test_an_election_that_became_clean_before_it_was_written_is_not_told_as_unclean() -> None:
    """Its first attempt was refused: the replica had come into the in-sync set meanwhile."""
    async def scenario(world: ControlWorld) -> None:
        node = await one_without_a_leader(world)
        world.kill(next(each for each in world.processes if each.name == "controller-0"))
        (partition,) = node.view.partitions_of(node.view.topic("t").topic_id).values()  # type: ignore[union-attr]

        class Late(MemoryMetadata):
            changed = False

            async def txn(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> TxnResult:
                if not self.changed:
                    self.changed = True
                    joined = replace(partition.record, isr=(NodeId(1),))
                    world.model.txn([], [Put(KEYS.partition(*partition.id), joined.encode())])
                return await super().txn(compares, writes)

        cluster = world.model.get(KEYS.cluster)
        assert cluster is not None
        fence = Compare(KEYS.cluster, "create_revision", cluster.create_revision)
        made = Reassignments(Late(world.model), node.view, SystemClock(), lambda: fence)
        answer, lossy = await made.elect(pb.ElectLeadersRequest(
            partitions=[pb.PartitionOfTopic(topic="t", partition=0)], unclean=True))
        assert [each.error for each in answer.partitions] == [0]
        assert records(node.view)[0].leader == 1
        assert lossy == []

    run(scenario)


def test_a_draining_broker_gives_its_leaderships_up_and_gets_no_new_replicas() -> None:
    async def scenario(world: ControlWorld) -> None:
        node, _, controller = await four_brokers(world)
        answer = await world.call(
            controller, "SetReplication", pb.SetReplicationRequest(drain=[0], bytes_per_second=1000),
            pb.SetReplicationResponse)
        assert not answer.error
        await node.view.wait_for(lambda v: all(r.leader == 1 for r in records(v)) and all_led(v), 5)
        assert node.view.throttle is not None and node.view.throttle.bytes_per_second == 1000
        await world.create(controller, factor=3, u=6)
        assert all(set(r.replicas) == {1, 2, 3} for r in records(node.view, "u"))
        await world.call(
            controller, "SetReplication", pb.SetReplicationRequest(undrain=[0]), pb.SetReplicationResponse)
        await node.view.wait_for(lambda v: [r.leader for r in records(v)] == [0, 1, 0, 1], 30)

    run(scenario)


def test_a_mark_of_draining_says_who_drains() -> None:
    async def scenario(world: ControlWorld) -> None:
        node, _, controller = await four_brokers(world)
        for broker, by in ((2, "BrokerPool"), (3, "")):
            await world.call(
                controller, "SetReplication", pb.SetReplicationRequest(drain=[broker], drained_by=by),
                pb.SetReplicationResponse)
        await node.view.wait_for(lambda view: view.draining() == [2, 3], 5)
        assert (node.view.drained_by("BrokerPool"), node.view.drained_by("")) == ([2], [3])

    run(scenario)


@pytest.mark.parametrize("assigned", [False, True])
def test_a_topic_s_record_says_for_which_resource_it_was_made_whatever_is_changed_later(assigned: bool) -> None:
    async def scenario(world: ControlWorld) -> None:
        node, _, controller = await four_brokers(world)
        spec = pb.TopicSpec(name="made", partitions=1, replication_factor=1, made_by="uid-1")
        if assigned:
            spec = pb.TopicSpec(
                name="made", partitions=-1, replication_factor=-1, made_by="uid-1",
                assignment=[pb.Replicas(nodes=[1])])
        await world.call(
            controller, "CreateTopics", pb.CreateTopicsRequest(topics=[spec], timeout_ms=5000), pb.CreateTopicsResponse)
        await world.call(
            controller, "CreatePartitions",
            pb.CreatePartitionsRequest(total_by_topic={"made": 2}, timeout_ms=5000), pb.CreatePartitionsResponse)
        await world.call(
            controller, "AlterTopicConfigs", pb.AlterTopicConfigsRequest(
                changes=[pb.TopicConfigChange(topic="made", set={"segment.ms": "7"})]), pb.AlterTopicConfigsResponse)
        await node.view.wait_for(lambda view: bool((found := view.topic("made")) and found.config), 5)
        found = node.view.topic("made")
        assert found is not None and (found.partitions, found.record.made_by) == (2, "uid-1")

    run(scenario)


def test_internal_topics_are_moved_too() -> None:
    async def scenario(world: ControlWorld) -> None:
        node, _, _ = await four_brokers(world)
        name = "__consumer_offsets"
        before = records(node.view, name)[0].replicas
        (other,) = {0, 1, 2, 3} - set(before)
        assert await alter(node, {0: [*before[:-1], other]}, topic=name) == {0: (0, None)}
        assert (records(node.view, name)[0].adding, records(node.view, name)[0].removing) == ((other,), before[-1:])

    run(scenario)


def test_fewer_replicas_wait_for_all_that_stay() -> None:
    """Acknowledged records would have only one copy otherwise: that of the replica that is in sync and stays."""
    async def scenario(world: ControlWorld) -> None:
        node, brokers, _ = await four_brokers(world)
        await alter(node, {0: [0, 1, 2]})
        await caught_up(world, brokers[2])
        await node.view.wait_for(ended, 5)
        world.kill(brokers[1].process)
        await node.view.wait_for(lambda v: set(records(v)[0].isr) == {0, 2}, 5)
        back = await world.broker(1, listens=True)
        assert (await alter(node, {0: [0, 1]}))[0] == (0, None)
        await asyncio.sleep(10)
        assert await moving(node) == {0: ([0, 1, 2], [], [2])}
        assert set(records(node.view)[0].isr) == {0, 2}
        await caught_up(world, back)
        await node.view.wait_for(ended, 5)
        assert set(records(node.view)[0].isr) == {0, 1} == set(records(node.view)[0].replicas)

    run(scenario)


def test_an_election_that_is_asked_for_says_why_it_cannot_be() -> None:
    async def scenario(world: ControlWorld) -> None:
        node, brokers, _ = await four_brokers(world, 2, auto_leader_rebalance_enable=False)

        async def elected() -> tuple[int, str | None]:
            named = messages.ElectLeadersRequest.TopicPartitions
            answer = await node.ask("ElectLeaders", 2, election_type=0, timeout_ms=5000, topic_partitions=[
                named(topic="t", partitions=[1])])
            (topic,) = answer.replica_election_results
            (result,) = topic.partition_result
            return result.error_code, result.error_message

        brokers[1].registration.declare("draining")
        await node.view.wait_for(lambda v: records(v)[1].leader == 0 and all_led(v), 5)
        code, why = await elected()
        assert code == 80 and why is not None and "is in sync, but draining" in why
        world.kill(brokers[1].process)
        await node.view.wait_for(lambda v: records(v)[1].isr == (0,), 5)
        assert await elected() == (80, "broker 1, the preferred replica, is not alive")
        back = await world.broker(1, listens=True)
        await node.view.wait_for(lambda v: v.node(NodeId(1)) is not None, 5)
        assert await elected() == (80, "broker 1, the preferred replica, is not in sync; the in-sync set is 0")
        await caught_up(world, back)
        await node.view.wait_for(lambda v: set(records(v)[1].isr) == {0, 1}, 5)
        assert await elected() == (0, None)

    run(scenario)
