"""Reassignments and elections, case by case. `clients/test_admin_cases.py` asks Apache Kafka the same."""

from __future__ import annotations

from hapax.wire import messages
from unit.control_world import ControlWorld, run
from unit.controller.admin_cases import ASSIGNMENTS, CASES, LED, MOVES, check
from unit.controller.test_failover import FEW, all_led, records
from unit.controller.test_reassignments import Move, alter, caught_up
from unit.kafka.test_node_apis import AnsweringNode


async def prepared(world: ControlWorld) -> AnsweringNode:
    await world.controller(**FEW, auto_leader_rebalance_enable=False)  # nothing but the cases changes leaders
    brokers = [await world.broker(n, listens=True) for n in range(4)]
    await world.coordinator(100)
    node = await AnsweringNode(world).start()
    topic = messages.CreateTopicsRequest.CreatableTopic
    answer = await node.ask("CreateTopics", 7, timeout_ms=5000, validate_only=False, topics=[topic(
        name=name, num_partitions=-1, replication_factor=-1, configs=[], assignments=[
            topic.CreatableReplicaAssignment(partition_index=index, broker_ids=replicas)
            for index, replicas in enumerate(assignment)]) for name, assignment in ASSIGNMENTS.items()])
    assert not any(result.error_code for result in answer.topics)
    await node.view.wait_for(lambda v: all(all_led(v, name) for name in ASSIGNMENTS), 5)
    assert await alter(node, MOVES, topic="cases") == dict.fromkeys(MOVES, (0, None))
    await caught_up(world, brokers[2], "cases")
    world.kill(brokers[3].process)
    await node.view.wait_for(lambda v: all(
        [r.leader for r in records(v, name)] == leaders for name, leaders in LED.items()), 10)
    await node.view.wait_for(lambda v: all(r.accepted for r in records(v, "cases")), 10)
    return node


def test_all_cases() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await prepared(world)
        for case in CASES:
            await check(case, node.ask)

    run(scenario)


def test_a_canceled_reassignment_leaves_what_was_there_before_all_of_them() -> None:
    """One was replaced while it ran."""
    async def scenario(world: ControlWorld) -> None:
        node = await prepared(world)
        await alter(node, {0: [1, 3]}, topic="cases")
        moved = records(node.view, "cases")[0]
        assert (set(moved.original), moved.adding, moved.removing) == ({0, 1}, (3,), (0,))
        await alter(node, {0: None}, topic="cases")
        assert set(records(node.view, "cases")[0].replicas) == {0, 1}

    run(scenario)


def test_without_a_controller_every_partition_has_the_error_too() -> None:
    """ElectLeaders has no error of the whole answer in version 0: without this, a client would see success."""
    async def scenario(world: ControlWorld) -> None:
        node = await prepared(world)
        world.kill(next(p for p in world.processes if p.name == "controller-0"))
        await node.view.wait_for(lambda v: v.controller is None, 60)
        named = messages.ElectLeadersRequest.TopicPartitions
        for version in (0, 1, 2):
            answer = await node.ask("ElectLeaders", version, election_type=0, timeout_ms=100, topic_partitions=[
                named(topic="cases", partitions=[0, 1])])
            (topic,) = answer.replica_election_results
            assert [(p.partition_id, p.error_code, p.error_message) for p in topic.partition_result] == [
                (index, 41, "no controller is acting") for index in (0, 1)]
            assert version == 0 or answer.error_code == 41
        answer = await node.ask("AlterPartitionReassignments", 0, timeout_ms=100, topics=[
            Move(name="cases", partitions=[Move.ReassignablePartition(partition_index=5, replicas=[0])])])
        assert (answer.error_code, answer.error_message) == (41, "no controller is acting")
        assert [(p.partition_index, p.error_code) for t in answer.responses for p in t.partitions] == [(5, 41)]

    run(scenario)
