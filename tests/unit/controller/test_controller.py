"""The controller on virtual time: what it assigns, and what it does when nodes come and go."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from hapax.codec.metadata import INTERNAL_TOPICS, TXN_STATE_TOPIC, ControllerRecord
from hapax.core.errors import ErrorCode
from hapax.core.types import NodeId, RegistrationEpoch
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Compare, Delete, MetadataUnavailable, Put, RpcError, TxnResult
from hapax_sim.metadata import MemoryMetadata
from unit.control_world import KEYS, ControlWorld, is_ready, run


def owners(view: ClusterView) -> Counter[NodeId]:
    return Counter(shard.record.owner for kind in ("txn", "group") for shard in view.shards(kind).values())


async def moved(view: ClusterView, predicate: object, timeout: float = 60) -> None:
    await view.wait_for(predicate, timeout)  # type: ignore[arg-type]


def test_a_new_cluster_is_assigned_in_a_few_transactions() -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        await world.controller()
        brokers = [await world.broker(0), await world.broker(1)]
        await world.coordinator(100)
        await world.coordinator(101)
        started, registered = world.loop.time(), world.model.revision
        await world.ready(view)

        assert world.loop.time() - started < 1.0
        assert world.model.revision - registered <= 12
        assert view.cluster is not None and view.cluster.cluster_id == "test"
        topic = view.topic(TXN_STATE_TOPIC)
        assert topic is not None and topic.partitions == 50 and topic.config["cleanup.policy"] == "compact"
        for name in ("__transaction_state", "__consumer_offsets"):
            found = view.topic(name)
            assert found is not None
            leaders = Counter(p.record.leader for p in view.partitions_of(found.topic_id).values())
            assert leaders == {b.registration.record.node_id: 25 for b in brokers}
        assert owners(view) == {100: 50, 101: 50}

    run(scenario)


def test_the_number_of_shards_is_fixed_when_the_cluster_is_made() -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        first, _ = await world.controller(transaction_state_log_num_partitions=4, offsets_topic_num_partitions=6)
        await moved(view, lambda v: v.cluster is not None)
        world.kill(first)
        await world.controller(301, transaction_state_log_num_partitions=99, offsets_topic_num_partitions=99)
        await world.broker()
        await world.coordinator()
        await world.ready(view)
        assert (len(view.shards("txn")), len(view.shards("group"))) == (4, 6)
        topic = view.topic(TXN_STATE_TOPIC)
        assert topic is not None and topic.partitions == 4

    run(scenario)


def test_a_restarted_broker_leads_under_a_new_leader_epoch() -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        await world.controller()
        broker = await world.broker()
        await world.coordinator()
        await world.ready(view)
        before = {p.id: p.record for p in view.partitions()}
        world.kill(broker.process)
        restarted = await world.broker()
        at = world.loop.time()
        assert restarted.registration.epoch > broker.registration.epoch
        await moved(view, lambda v: all(
            p.record.accepted and p.record.leader_registration == restarted.registration.epoch
            for p in v.partitions()))
        assert world.loop.time() - at < 1.0
        for partition in view.partitions():
            assert partition.record.leader_epoch == before[partition.id].leader_epoch + 1

    run(scenario)


def test_a_dead_broker_leaves_its_partitions_without_a_leader_until_it_comes_back() -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        await world.controller(transaction_state_log_replication_factor=1, offsets_topic_replication_factor=1)
        broker = await world.broker()
        await world.broker(1)
        await world.coordinator()
        await world.ready(view)
        led = [p.id for p in view.partitions() if p.record.leader == 0]
        epochs = {p.id: p.record.leader_epoch for p in view.partitions()}
        world.kill(broker.process)
        await moved(view, lambda v: all(v.partition(*p).record.leader == -1 for p in led))
        for partition in view.partitions():
            assert partition.record.isr == partition.record.replicas  # nobody else may ever take its place
            assert (partition.record.leader_epoch > epochs[partition.id]) == (partition.id in led)
        await world.broker()
        await world.ready(view)
        assert [p.id for p in view.partitions() if p.record.leader == 0] == led

    run(scenario)


def test_a_broker_that_does_not_accept_is_not_advertised() -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        _, controller = await world.controller()
        await world.broker(accepts=False)
        await moved(view, lambda v: len(v.topics()) == 3 and len(list(v.partitions())) == 101)
        assert all(view.leader_of(*p.id) is None for p in view.partitions())
        response = await world.call(controller, "CreateTopics", pb.CreateTopicsRequest(
            topics=[pb.TopicSpec(name="slow", partitions=1, replication_factor=1)], timeout_ms=500,
        ), pb.CreateTopicsResponse)
        assert [r.error for r in response.topics] == [ErrorCode.REQUEST_TIMED_OUT]
        assert view.topic("slow") is not None

    run(scenario)


def test_shards_move_off_a_dead_coordinator_within_a_second_of_its_lease() -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        await world.controller()
        await world.broker()
        dying, _ = await world.coordinator(100)
        await world.coordinator(101)
        await world.ready(view)
        epochs = {(k, i): s.record.epoch for k in ("txn", "group") for i, s in view.shards(k).items()}
        lost = {key for key in epochs if view.shards(key[0])[key[1]].record.owner == 100}
        world.kill(dying)
        await moved(view, lambda v: v.node(100) is None)
        ended = world.loop.time()
        await world.ready(view)
        assert world.loop.time() - ended < 1.0
        assert owners(view) == {101: 100}
        for kind in ("txn", "group"):
            for index, shard in view.shards(kind).items():
                assert (shard.record.epoch > epochs[kind, index]) == ((kind, index) in lost)

    run(scenario)


def test_a_coordinator_that_drains_hands_its_shards_over_at_once() -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        await world.controller()
        await world.broker()
        process, registration = await world.coordinator(100)
        await world.coordinator(101)
        await world.ready(view)
        at = world.loop.time()
        await world.inside(process, registration.close())
        await moved(view, lambda v: owners(v) == {101: 100})
        assert world.loop.time() - at < 0.5

    run(scenario)


def test_a_coordinator_restarted_within_its_lease_keeps_its_shards_under_new_epochs() -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        await world.controller()
        await world.broker()
        dying, _ = await world.coordinator(100)
        await world.coordinator(101)
        await world.ready(view)
        mine = {(k, i): s.record.epoch for k in ("txn", "group") for i, s in view.shards(k).items()
                if s.record.owner == 100}
        world.kill(dying)
        at = world.loop.time()
        _, registration = await world.coordinator(100)
        await moved(view, lambda v: all(
            v.shard_owner(kind, shard) is not None for kind in ("txn", "group") for shard in range(50)))
        assert world.loop.time() - at < 1.0
        for kind, index in mine:
            record = view.shards(kind)[index].record
            assert record.epoch > mine[kind, index]
            if record.owner == 100:
                assert record.owner_registration == registration.epoch

    run(scenario)


def test_a_new_coordinator_gets_its_share_a_few_shards_at_a_time() -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        await world.controller()
        await world.broker()
        await world.coordinator(100)
        await world.ready(view)
        steps: list[int] = []
        view.on_change(lambda changes: steps.append(len(changes.txn_shards) + len(changes.group_shards)))
        await world.coordinator(101)
        await moved(view, lambda v: owners(v) == {100: 50, 101: 50})
        moves = [count for count in steps if count]
        assert sum(moves) == 50  # no shard moved twice
        assert max(moves) <= 10

    run(scenario)


def test_another_candidate_acts_when_the_controller_dies() -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        first, acting = await world.controller(300)
        await moved(view, lambda v: v.controller is not None)
        _, standby = await world.controller(301)
        await world.broker()
        await world.coordinator()
        await world.ready(view)
        assert acting.acts and not standby.acts
        refused = await world.call(standby, "CreateTopics", pb.CreateTopicsRequest(
            topics=[pb.TopicSpec(name="t", partitions=1, replication_factor=1)]), pb.CreateTopicsResponse)
        assert [r.error for r in refused.topics] == [ErrorCode.NOT_CONTROLLER]

        world.kill(first)
        at = world.loop.time()
        await moved(view, lambda v: v.controller is not None and v.controller.record.node_id == 301)
        assert world.loop.time() - at < 3.5
        await world.create(standby, orders=4)

    run(scenario)


def test_a_controller_that_gives_up_is_followed_at_once() -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        first, acting = await world.controller(300)
        await moved(view, lambda v: v.controller is not None)
        await world.controller(301)
        at = world.loop.time()
        await world.inside(first, acting.close())
        await moved(view, lambda v: v.controller is not None and v.controller.record.node_id == 301)
        assert world.loop.time() - at < 1.0  # its last events are given half a second to leave

    run(scenario)


def test_a_restarted_controller_need_not_wait_for_its_own_lease() -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        ports = world.ports(world.process("dead"))
        lease = await ports.metadata.grant_lease(1000)
        dead = ControllerRecord(NodeId(300), "127.0.0.1:1", RegistrationEpoch(1))
        await ports.metadata.txn([], [Put(KEYS.controller, dead.encode(), lease)])
        _, restarted = await world.controller(300)
        await moved(view, lambda v: restarted.acts, 5)

    run(scenario)


def test_a_frozen_controller_writes_nothing_when_it_thaws() -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        frozen, deposed = await world.controller(300)
        await moved(view, lambda v: v.controller is not None)
        await world.controller(301)
        broker = await world.broker()
        await world.coordinator()
        await world.ready(view)

        # The broker's lease ends first, the controller's a little later; it hears of both only when it thaws.
        world.kill(broker.process)
        await asyncio.sleep(1.5)
        world.loop.freeze(frozen)
        await moved(view, lambda v: v.controller is not None and v.controller.record.node_id == 301)
        await moved(view, lambda v: all(p.record.leader == -1 for p in v.partitions()))
        await world.broker()
        await world.ready(view)
        before = {p.id: p for p in view.partitions()}
        assert deposed.acts, "as far as it knows"
        world.loop.thaw(frozen)
        await asyncio.sleep(5)
        assert not deposed.acts
        assert {p.id: p for p in view.partitions()} == before

    run(scenario)


def test_a_controller_that_stands_still_is_deposed_even_if_the_store_loses_a_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the member of the store that it was sent to is on the same machine. Leases would take their time."""
    lost = []

    async def txn(self: MemoryMetadata, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> TxnResult:
        if any(write.key == KEYS.controller for write in writes if isinstance(write, Delete)) and not lost:
            lost.append(writes)
            raise MetadataUnavailable("no sign of life")
        return await original(self, compares, writes)

    original = MemoryMetadata.txn
    monkeypatch.setattr(MemoryMetadata, "txn", txn)

    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        frozen, _ = await world.controller(300, broker_session_timeout_ms=60_000)
        await moved(view, lambda v: v.controller is not None)
        await world.controller(301)
        await asyncio.sleep(1)  # they meet
        world.loop.freeze(frozen)
        at = world.loop.time()
        await moved(view, lambda v: v.controller is not None and v.controller.record.node_id == 301)
        assert lost and world.loop.time() - at < 2.0

    run(scenario)


def test_a_call_that_reaches_a_deposed_controller_changes_nothing() -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        frozen, deposed = await world.controller(300)
        await moved(view, lambda v: v.controller is not None)
        await world.controller(301)
        await world.broker()
        await world.coordinator()
        await world.ready(view)
        world.loop.freeze(frozen)
        calling = asyncio.ensure_future(world.call(deposed, "CreateTopics", pb.CreateTopicsRequest(
            topics=[pb.TopicSpec(name="late", partitions=1, replication_factor=1)], timeout_ms=1000,
        ), pb.CreateTopicsResponse))
        await moved(view, lambda v: v.controller is not None and v.controller.record.node_id == 301)
        world.loop.thaw(frozen)  # the call was waiting there, and is served before the controller hears that it is none
        answer = await calling
        assert [result.error for result in answer.topics] == [ErrorCode.NOT_CONTROLLER]
        assert view.topic("late") is None

    run(scenario)


def test_topics_are_created_spread_and_led() -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        _, controller = await world.controller()
        for node_id in range(3):
            await world.broker(node_id)
        await world.create(controller, small=1, large=300)
        large = view.topic("large")
        assert large is not None
        leaders = Counter(p.record.leader for p in view.partitions_of(large.topic_id).values())
        assert leaders == {0: 100, 1: 100, 2: 100}

    run(scenario)


def test_a_controller_that_dies_while_it_creates_is_continued() -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        first, controller = await world.controller(300)
        await world.broker()
        await world.coordinator()
        await world.ready(view)
        await world.controller(301)
        creating = asyncio.ensure_future(world.call(controller, "CreateTopics", pb.CreateTopicsRequest(
            topics=[pb.TopicSpec(name="large", partitions=1000, replication_factor=1)], timeout_ms=9000,
        ), pb.CreateTopicsResponse))
        await moved(view, lambda v: v.topic("large") and 0 < len(v.partitions_of(v.topic("large").topic_id)) < 1000)
        world.kill(first)
        with pytest.raises(Exception, match="UNAVAILABLE"):
            await creating
        large = view.topic("large")
        assert large is not None
        await moved(view, lambda v: all(v.leader_of(large.topic_id, i) is not None for i in range(1000)))

    run(scenario)


@pytest.mark.parametrize(("spec", "error"), [
    (pb.TopicSpec(name="", partitions=1, replication_factor=1), ErrorCode.INVALID_TOPIC_EXCEPTION),
    (pb.TopicSpec(name="a/b", partitions=1, replication_factor=1), ErrorCode.INVALID_TOPIC_EXCEPTION),
    (pb.TopicSpec(name="..", partitions=1, replication_factor=1), ErrorCode.INVALID_TOPIC_EXCEPTION),
    (pb.TopicSpec(name="x" * 250, partitions=1, replication_factor=1), ErrorCode.INVALID_TOPIC_EXCEPTION),
    (pb.TopicSpec(name="there_was", partitions=1, replication_factor=1), ErrorCode.INVALID_TOPIC_EXCEPTION),
    (pb.TopicSpec(name="there.was", partitions=1, replication_factor=1), ErrorCode.TOPIC_ALREADY_EXISTS),
    (pb.TopicSpec(name="__consumer_offsets", partitions=1, replication_factor=1), ErrorCode.TOPIC_ALREADY_EXISTS),
    (pb.TopicSpec(name="t", partitions=0, replication_factor=1), ErrorCode.INVALID_PARTITIONS),
    (pb.TopicSpec(name="t", partitions=2**31 - 1, replication_factor=1), ErrorCode.INVALID_PARTITIONS),
    (pb.TopicSpec(name="t", partitions=1, replication_factor=0), ErrorCode.INVALID_REPLICATION_FACTOR),
    (pb.TopicSpec(name="t", partitions=1, replication_factor=2), ErrorCode.INVALID_REPLICATION_FACTOR),
    (pb.TopicSpec(name="t", partitions=1, replication_factor=1, config={"no.such": "1"}), ErrorCode.INVALID_CONFIG),
    (pb.TopicSpec(name="t", partitions=1, replication_factor=1, config={"retention.ms": "x"}),
     ErrorCode.INVALID_CONFIG),
])
def test_a_topic_that_cannot_be_is_refused(spec: pb.TopicSpec, error: ErrorCode) -> None:
    async def scenario(world: ControlWorld) -> None:
        _, controller = await world.cluster(transaction_state_log_num_partitions=1, offsets_topic_num_partitions=1)
        await world.create(controller, **{"there.was": 1})
        good = pb.TopicSpec(name="good", partitions=-1, replication_factor=-1, config={"retention.ms": "-1"})
        response = await world.call(controller, "CreateTopics", pb.CreateTopicsRequest(
            topics=[spec, good], timeout_ms=5000), pb.CreateTopicsResponse)
        assert [r.error for r in response.topics] == [error, 0]
        assert response.topics[1].partitions == 1

    run(scenario)


@pytest.mark.parametrize("name", INTERNAL_TOPICS)
def test_a_client_cannot_create_an_internal_topic_before_the_controller_does(name: str) -> None:
    """It would have the client's number of partitions, which is the number of shards, for ever."""
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        _, controller = await world.controller(transaction_state_log_num_partitions=1, offsets_topic_num_partitions=1)
        await world.broker()
        await view.wait_for(lambda v: v.controller is not None and bool(v.nodes("broker")))
        await controller.view.reached(world.model.revision)
        assert controller.view.topic(name) is None, "the controller still waits for more brokers"
        spec = pb.TopicSpec(name=name, partitions=7, replication_factor=1)
        response = await world.call(controller, "CreateTopics", pb.CreateTopicsRequest(
            topics=[spec], timeout_ms=5000), pb.CreateTopicsResponse)
        assert [r.error for r in response.topics] == [ErrorCode.INVALID_TOPIC_EXCEPTION]
        await view.wait_for(lambda v: v.topic(name) is not None)
        assert view.topic(name).partitions == 1  # type: ignore[union-attr]

    run(scenario)


def test_a_request_that_names_a_topic_twice_or_only_validates_creates_nothing() -> None:
    async def scenario(world: ControlWorld) -> None:
        view, controller = await world.cluster()
        spec = pb.TopicSpec(name="t", partitions=3, replication_factor=1)
        twice = await world.call(controller, "CreateTopics", pb.CreateTopicsRequest(
            topics=[spec, spec], timeout_ms=5000), pb.CreateTopicsResponse)
        assert [r.error for r in twice.topics] == [ErrorCode.INVALID_REQUEST] * 2
        checked = await world.call(controller, "CreateTopics", pb.CreateTopicsRequest(
            topics=[spec], timeout_ms=5000, validate_only=True), pb.CreateTopicsResponse)
        assert [(r.error, r.partitions) for r in checked.topics] == [(0, 3)]
        assert view.topic("t") is None

    run(scenario)


def test_a_deleted_topic_takes_all_its_partitions_and_its_id_never_comes_back() -> None:
    async def scenario(world: ControlWorld) -> None:
        view, controller = await world.cluster()
        await world.create(controller, large=500, other=1)
        large, other = view.topic("large"), view.topic("other")
        assert large is not None and other is not None
        response = await world.call(controller, "DeleteTopics", pb.DeleteTopicsRequest(
            names=["large", "none", "__consumer_offsets"], topic_ids=[other.topic_id, bytes(16)], timeout_ms=5000,
        ), pb.DeleteTopicsResponse)
        assert [r.error for r in response.topics] == [
            0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0,
            ErrorCode.UNKNOWN_TOPIC_ID]
        await moved(view, lambda v: not v.partitions_of(large.topic_id))
        assert view.is_deleted(large.topic_id) and view.is_deleted(other.topic_id)
        await world.create(controller, large=2)
        again = view.topic("large")
        assert again is not None and again.topic_id != large.topic_id

    run(scenario)


def test_a_deletion_compares_the_revision_that_its_caller_has_read() -> None:
    async def scenario(world: ControlWorld) -> None:
        view, controller = await world.cluster()
        await world.create(controller, a=1, b=1)
        a, b = view.topic("a"), view.topic("b")
        assert a is not None and b is not None
        response = await world.call(controller, "DeleteTopics", pb.DeleteTopicsRequest(
            topic_ids=[a.topic_id, b.topic_id], if_revisions=[a.mod_revision - 1, b.mod_revision], timeout_ms=5000,
        ), pb.DeleteTopicsResponse)
        assert [r.error for r in response.topics] == [ErrorCode.INVALID_UPDATE_VERSION, 0]
        await moved(view, lambda v: v.topic("b") is None)
        assert view.topic("a") is not None
        with pytest.raises(RpcError, match="one for each"):
            await world.call(controller, "DeleteTopics", pb.DeleteTopicsRequest(
                topic_ids=[a.topic_id], if_revisions=[1, 2], timeout_ms=5000), pb.DeleteTopicsResponse)

    run(scenario)


def test_a_topic_grows_but_never_shrinks() -> None:
    async def scenario(world: ControlWorld) -> None:
        view, controller = await world.cluster(2)
        await world.create(controller, a=2, b=2)
        response = await world.call(controller, "CreatePartitions", pb.CreatePartitionsRequest(
            total_by_topic={"a": 6, "b": 2, "none": 3, "__transaction_state": 60}, timeout_ms=5000,
        ), pb.CreatePartitionsResponse)
        assert {r.name: r.error for r in response.topics} == {
            "a": 0, "b": ErrorCode.INVALID_PARTITIONS, "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "__transaction_state": ErrorCode.INVALID_PARTITIONS}
        topic = view.topic("a")
        assert topic is not None and topic.partitions == 6
        leaders = Counter(p.record.leader for p in view.partitions_of(topic.topic_id).values())
        assert leaders == {0: 3, 1: 3}

    run(scenario)


def test_concurrent_creation_of_one_topic_succeeds_once() -> None:
    async def scenario(world: ControlWorld) -> None:
        _, controller = await world.cluster()
        request = pb.CreateTopicsRequest(
            topics=[pb.TopicSpec(name="t", partitions=1, replication_factor=1)], timeout_ms=5000)
        answers = await asyncio.gather(*(
            world.call(controller, "CreateTopics", request, pb.CreateTopicsResponse) for _ in range(5)))
        assert sorted(answer.topics[0].error for answer in answers) == [0] + [ErrorCode.TOPIC_ALREADY_EXISTS] * 4

    run(scenario)


def test_the_controller_goes_on_after_the_store_was_away() -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        _, controller = await world.controller()
        await world.broker()
        dying, _ = await world.coordinator(100)
        await world.coordinator(101)
        await world.ready(view)
        world.model.stop()
        world.kill(dying)
        await asyncio.sleep(10)
        assert controller.acts and not world.ended
        world.model.start()
        await moved(view, lambda v: is_ready(v) and owners(v) == {101: 100})
        await world.create(controller, after=1)
        assert not world.ended

    run(scenario)


@pytest.mark.parametrize("name", [
    "CreateTopics", "DeleteTopics", "CreatePartitions", "AlterTopicConfigs", "AlterReassignments", "ElectLeaders",
    "SetReplication",
])
def test_another_cluster_s_call_changes_nothing_here(name: str) -> None:
    """Its address book was behind: pods' addresses are given out again."""
    async def scenario(world: ControlWorld) -> None:
        _, service = await world.controller()
        await service.view.wait_for(lambda view: view.controller is not None)
        with pytest.raises(RpcError, match=f"belongs to cluster {KEYS.cluster_id}, not to another"):
            await world.call(service, name, getattr(pb, f"{name}Request")(), pb.TopicResult, cluster_id="another")

    run(scenario)


def test_a_call_that_names_no_cluster_deletes_no_topic() -> None:
    async def scenario(world: ControlWorld) -> None:
        await world.broker()
        _, service = await world.controller()
        await service.view.wait_for(lambda view: view.controller is not None)
        await world.create(service, t=1)
        request = pb.DeleteTopicsRequest(names=["t"], timeout_ms=1000)
        with pytest.raises(RpcError, match="FAILED_PRECONDITION: the call names no cluster"):
            await world.call(service, "DeleteTopics", request, pb.DeleteTopicsResponse, cluster_id="")
        assert service.view.topic("t") is not None

    run(scenario)


@pytest.mark.parametrize("name", ["CreateTopics", "DeleteTopics"])
def test_an_internal_call_to_the_public_port_is_not_known_there(name: str) -> None:
    async def scenario(world: ControlWorld) -> None:
        _, service = await world.controller()
        caller = world.process("caller")
        channel = world.network.network(caller).public_channel(service.public_rpc_address, KEYS.cluster_id)
        with pytest.raises(RpcError, match="UNIMPLEMENTED"):
            await world.inside(caller, channel.call(f"/hapax.internal.v1.Controller/{name}", b"", 5))

    run(scenario)
