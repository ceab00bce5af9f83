"""What the controller tells the audit log: what was stored, or may have been, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from hapax.controller.fenced import Told, write_fenced
from hapax.core.errors import ErrorCode, Refusal
from hapax.rpc.gen.hapax.internal.v1 import controller_pb2
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb
from hapax.runtime.asker import ASKER, Asker
from hapax.runtime.guarded_writes import GuardedWrite
from hapax.runtime.ports import Compare, Delete, MetadataUnavailable, Put, TxnResult
from hapax.wire import messages
from hapax_sim.metadata import MemoryMetadata
from unit.control_world import KEYS, ControlWorld, Recorded, run
from unit.kafka.test_node_apis import AnsweringNode

TOPIC = {"partitions": 1, "replication_factor": 1, "config": {}}


def test_a_change_is_told_once_it_is_stored_with_who_asked() -> None:
    async def scenario(world: ControlWorld) -> None:
        _, controller = await world.cluster()
        await world.create(controller, t=1)
        (created,) = world.audit.events
        event, principal, _, fields = created
        assert (event, principal) == ("topic_created", "User:ANONYMOUS")
        assert fields == {"call": "CreateTopics", "outcome": "done", "topic": "t", "old": None, "new": TOPIC}
        for names in (["t"], ["t"]):  # the second time there is none
            await world.call(
                controller, "DeleteTopics", pb.DeleteTopicsRequest(names=names, timeout_ms=5000),
                pb.DeleteTopicsResponse)
        assert [event for event, *_ in world.audit.events] == ["topic_created", "topic_deleted"]
        assert world.audit.events[1][3]["old"] == TOPIC

    run(scenario)


def test_what_is_only_validated_is_no_change() -> None:
    async def scenario(world: ControlWorld) -> None:
        _, controller = await world.cluster()
        await world.call(controller, "CreateTopics", pb.CreateTopicsRequest(
            timeout_ms=5000, validate_only=True,
            topics=[pb.TopicSpec(name="t", partitions=1, replication_factor=1)]), pb.CreateTopicsResponse)
        assert world.audit.events == []

    run(scenario)


def test_a_client_of_a_node_is_named_by_the_node() -> None:
    async def scenario(world: ControlWorld) -> None:
        await world.cluster()
        node = await AnsweringNode(world).start()
        topic = messages.CreateTopicsRequest.CreatableTopic
        await node.ask("CreateTopics", 7, timeout_ms=5000, validate_only=False, topics=[
            topic(name="t", num_partitions=1, replication_factor=1, configs=[], assignments=[])])
        (created,) = world.audit.events
        assert created[:2] == ("topic_created", "User:ANONYMOUS") and created[3]["call"] == "CreateTopics"

    run(scenario)


def test_a_client_does_not_say_who_it_is() -> None:
    """The field by which nodes name their clients counts on the nodes' listener alone."""
    async def scenario(world: ControlWorld) -> None:
        _, controller = await world.cluster()
        request = pb.CreateTopicsRequest(
            timeout_ms=5000, topics=[pb.TopicSpec(name="t", partitions=1, replication_factor=1)])
        lie = controller_pb2.AskedBy(asker=controller_pb2.Asker(principal="User:root", address="1.1.1.1"))
        request.MergeFromString(lie.SerializeToString())
        await world.call(controller, "CreateTopics", request, pb.CreateTopicsResponse)
        assert [principal for _, principal, _, _ in world.audit.events] == ["User:ANONYMOUS"]

    run(scenario)


def test_a_change_that_lost_against_another_is_not_told() -> None:
    async def scenario(world: ControlWorld) -> None:
        await world.cluster()
        recorded, told = await written(world, MemoryMetadata(world.model))
        assert told == {"stale": ErrorCode.REQUEST_TIMED_OUT}
        assert recorded == [("acl_created", "User:alice", "10.0.0.1", {
            "call": "CreateAcls", "outcome": "done", "old": None, "new": "fresh"})]

    run(scenario)


def test_a_change_without_an_answer_is_told_as_unknown() -> None:
    class Lossy(MemoryMetadata):
        async def txn(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> TxnResult:
            await super().txn(compares, writes)
            raise MetadataUnavailable("the answer is lost")

    async def scenario(world: ControlWorld) -> None:
        await world.cluster()
        recorded, told = await written(world, Lossy(world.model))
        assert set(told) == {"stale", "fresh"}
        assert [fields["outcome"] for *_, fields in recorded] == ["unknown", "unknown"]

    run(scenario)


async def written(
    world: ControlWorld, store: MemoryMetadata
) -> tuple[list[tuple[str, str | None, str, dict[str, object]]], dict[str, int]]:
    """Two changes, of which one compares a revision that is not the key's."""
    recorded = Recorded()
    view = await world.view()
    cluster = world.model.get(KEYS.cluster)
    assert cluster is not None
    fence = Compare(KEYS.cluster, "create_revision", cluster.create_revision)
    told = Told[str](recorded)
    changes = {}
    for name, revision in (("fresh", 0), ("stale", 7)):
        key = f"{KEYS.prefix}test/{name}"
        changes[name] = GuardedWrite((Compare(key, "mod_revision", revision),), (Put(key, b""),))
        told.of(name, "acl_created", old=None, new=name)
    ASKER.set(Asker("User:alice", "10.0.0.1", "CreateAcls"))
    stale = Refusal(ErrorCode.REQUEST_TIMED_OUT, "another call was faster")
    refused = await write_fenced(store, view, lambda: fence, changes, stale, told)
    return recorded.events, {name: why.code for name, why in refused.items()}
