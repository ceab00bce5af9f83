"""Transactions against a whole cluster on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from hapax.codec.control import encode_control
from hapax.coordinator.administration import GROUPS
from hapax.core.control import ShardFence
from hapax.core.errors import ErrorCode, Refusal
from hapax.rpc.gen.hapax.internal.v1 import common_pb2, coordinator_pb2
from hapax.rpc.gen.hapax.v1 import groups_pb2
from hapax.wire import messages
from hapax.wire.peer import PeerClosed
from unit.coordinator.coordinator_world import TXN_STATE_TOPIC, CoordinatorWorld, run

ID = "app"


async def begun(world: CoordinatorWorld, timeout_ms: int = 60_000) -> tuple[int, int]:
    """A version-1 producer with one record in t-0."""
    me = await world.init(ID, timeout_ms)
    assert await world.add(ID, me, "t", 0) == [0]
    assert (await world.produce(ID, me, "t", 0, b"v")).error_code == 0
    return me


async def visible(world: CoordinatorWorld, partition: int = 0) -> list[bytes]:
    return await world.read_committed("t", partition)


def test_a_transaction_is_committed_and_the_next_one_waits_for_nothing_but_its_markers() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        me = await world.init(ID)
        for number in range(20):
            assert await world.add(ID, me, "t", 0, 1) == [0, 0]
            for partition in (0, 1):
                assert (await world.produce(ID, me, "t", partition, b"%d" % number, number)).error_code == 0
            assert (await world.end(ID, me, number % 3 != 2)).error_code == 0
        expected = [b"%d" % number for number in range(20) if number % 3 != 2]
        assert await visible(world) == await visible(world, 1) == expected

    run(scenario)


def test_completions_are_not_written_by_themselves_while_transactions_follow_each_other() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        me = await world.init(ID)
        for number in range(5):
            await world.add(ID, me, "t", 0)
            await world.produce(ID, me, "t", 0, b"v", number)
            await world.end(ID, me, True)
        await world.cluster.wait_until(lambda: states(world)[0] == "COMPLETE_COMMIT", "the last one is complete")
        logged = [record.state.name for record in await world.transactions_logged(ID)]
        assert logged == ["EMPTY", *["ONGOING", "PREPARE_COMMIT"] * 5, "COMPLETE_COMMIT"]
        shard = world.txn_shard(ID)
        assert not shard._activities and not shard.machine._in_progress, "an id at rest costs only its state"

    run(scenario)


def states(world: CoordinatorWorld) -> list[str]:
    return [t.state.name for t in world.txn_shard(ID).machine.transactions.values()]


def test_a_first_call_is_held_for_a_second_and_then_sent_away() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        me = await begun(world)
        world.cluster.world.blocked_methods.add("WriteMarkers")
        assert (await world.end(ID, me, True)).error_code == 0
        asked = world.loop.time()
        assert await world.add(ID, me, "t", 0) == [ErrorCode.CONCURRENT_TRANSACTIONS]
        assert 0.9 < world.loop.time() - asked < 1.1
        world.cluster.world.blocked_methods.clear()
        assert await world.add(ID, me, "t", 0) == [0]

    run(scenario)


@pytest.mark.parametrize("direction", ["the append is lost", "its answer is lost"])
@pytest.mark.parametrize("commit", [True, False])
def test_an_append_of_unknown_outcome_is_looked_up_never_repeated(direction: str, commit: bool) -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        me = await begun(world)
        owner = world.owner_of(ID)
        source, target = (owner, "broker-0") if direction == "the append is lost" else ("broker-0", owner)
        with world.cut(source, target):
            assert (await world.end(ID, me, commit)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        answered = await world.until_answered(lambda: world.end(ID, me, commit), lambda r: int(r.error_code))
        assert answered.error_code == 0
        await world.cluster.wait_until(lambda: states(world)[0].startswith("COMPLETE"), "it is complete")
        assert await visible(world) == ([b"v"] if commit else [])
        logged = [record.state.name for record in await world.transactions_logged(ID)]
        assert logged.count("PREPARE_COMMIT" if commit else "PREPARE_ABORT") == 1
        assert world.txn_shard(ID).epoch & 0xFFF > 0, "the shard was fenced and loaded again"

    run(scenario)


@pytest.mark.parametrize("dies", ["before EndTxn", "after EndTxn"])
def test_another_coordinator_finishes_what_the_log_says(dies: str) -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        me = await begun(world)
        former = world.owner_of(ID)
        if dies == "after EndTxn":
            world.cluster.world.blocked_methods.add("WriteMarkers")
            assert (await world.end(ID, me, True)).error_code == 0
        world.cluster.kill(former, restart=False)
        world.cluster.world.blocked_methods.clear()
        await world.moved_from(former, ID)
        answered = await world.until_answered(lambda: world.end(ID, me, True), lambda r: int(r.error_code))
        assert answered.error_code == 0
        await world.cluster.wait_until(lambda: states(world)[0] == "COMPLETE_COMMIT", "it is complete")
        assert await visible(world) == [b"v"]

    run(scenario)


@pytest.mark.parametrize("early_ms", [0, 1])
def test_a_transaction_is_aborted_within_a_second_of_its_limit(
    early_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the loop's timers fire a millisecond early, as those of a coarse clock do."""
    async def scenario(world: CoordinatorWorld) -> None:
        call_at = world.loop.call_at

        def early(when: float, *rest: Any, **context: Any) -> asyncio.TimerHandle:
            return call_at(when - min(early_ms / 1000, max(0.0, when - world.loop.time()) / 2), *rest, **context)

        monkeypatch.setattr(world.loop, "call_at", early)
        await world.start(("t", 2))
        began = world.loop.time()
        me = await begun(world, timeout_ms=5_000)
        await world.cluster.wait_until(lambda: states(world)[0] == "COMPLETE_ABORT", "it timed out")
        assert 5.0 <= world.loop.time() - began < 6.0
        assert await visible(world) == []
        refused = await world.end(ID, me, True)
        assert refused.error_code == ErrorCode.PRODUCER_FENCED
        late = await world.produce(ID, me, "t", 0, b"late", 1)
        assert late.error_code == ErrorCode.INVALID_PRODUCER_EPOCH

    run(scenario)


def test_the_limit_counts_on_through_a_take_over() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        await begun(world, timeout_ms=20_000)
        began = world.loop.time()
        former = world.owner_of(ID)
        world.cluster.kill(former, restart=False)
        await world.moved_from(former, ID)
        await world.cluster.wait_until(lambda: states(world) == ["COMPLETE_ABORT"], "it timed out")
        # The elapsed time was persisted with its last record; what passed since is not known to the successor.
        taken_over = world.txn_shard(ID)
        assert taken_over.serving
        assert 20.0 - 0.5 <= world.loop.time() - began < 20.0 + 12.0

    run(scenario)


def test_initialising_again_fences_and_says_so_in_the_events() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        zombie = await begun(world)
        heir = await world.init(ID)
        assert heir == (zombie[0], zombie[1] + 2) or heir[1] > zombie[1]
        assert (await world.end(ID, zombie, True)).error_code == ErrorCode.PRODUCER_FENCED
        assert await visible(world) == []

        async def told() -> bool:
            return any(event["event"] == "producer_fenced" for event in await world.events())

        await world.cluster.wait_until(told, "the event is written")
        event = next(event for event in await world.events() if event["event"] == "producer_fenced")
        assert event["transactional_id"] == ID and event["by_client"] == "test" and event["by_peer"]
        assert (event["fenced_producer_id"], event["fenced_epoch"]) >= zombie

    run(scenario)


def test_a_delayed_end_on_an_abandoned_connection_decides_nothing() -> None:
    """KAFKA-17754, for a client without an epoch per transaction."""

    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        me = await begun(world)
        abandoned = await world.peer(world.owner_of(ID))
        await world.peer(world.owner_of(ID), fresh=True)
        assert (await world.end(ID, me, True)).error_code == 0
        assert await world.add(ID, me, "t", 0) == [0]
        assert (await world.produce(ID, me, "t", 0, b"next", 1)).error_code == 0
        late = messages.EndTxnRequest(transactional_id=ID, producer_id=me[0], producer_epoch=me[1], committed=True)
        with pytest.raises(PeerClosed):
            await abandoned.call(late, version=3)
        assert states(world) == ["ONGOING"]
        assert (await world.end(ID, me, False)).error_code == 0
        await world.cluster.wait_until(lambda: states(world)[0] == "COMPLETE_ABORT", "it is complete")
        assert await visible(world) == [b"v"]

    run(scenario)


def test_markers_are_sent_until_the_broker_is_back() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        me = await begun(world)
        world.cluster.world.blocked_methods.add("WriteMarkers")
        assert (await world.end(ID, me, True)).error_code == 0
        world.cluster.kill("broker-0")
        await world.cluster.wait_until(
            lambda: world.cluster.nodes["broker-0"].lives == 2 and world.cluster.ready(), "the broker is back"
        )
        world.cluster.world.blocked_methods.clear()
        await world.cluster.wait_until(lambda: states(world) == ["COMPLETE_COMMIT"], "it is complete")
        assert await visible(world) == [b"v"]

    run(scenario)


def test_a_partition_whose_topic_is_deleted_counts_as_done() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2), ("gone", 1))
        me = await begun(world)
        assert await world.add(ID, me, "gone", 0) == [0]
        await world.delete_topic("gone")
        assert (await world.end(ID, me, True)).error_code == 0
        await world.cluster.wait_until(lambda: states(world) == ["COMPLETE_COMMIT"], "it is complete")
        assert await visible(world) == [b"v"]

    run(scenario)


def test_version_2_an_epoch_for_each_transaction() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        me = await world.init(ID)
        assert (await world.produce_v2(ID, me, "t", 0, b"v")).error_code == 0
        ended = await world.end(ID, me, True, version=5)
        assert (ended.error_code, ended.producer_epoch) == (0, me[1] + 1)
        again = await world.end(ID, me, True, version=5)
        assert (again.error_code, again.producer_epoch) == (0, me[1] + 1), "a retry is answered, not obeyed"
        late = await world.produce_v2(ID, me, "t", 0, b"late", 1)
        assert late.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        me = (ended.producer_id, ended.producer_epoch)
        assert (await world.produce_v2(ID, me, "t", 1, b"w")).error_code == 0
        assert (await world.end(ID, me, False, version=5)).error_code == 0
        assert await visible(world) == [b"v"] and await visible(world, 1) == []

    run(scenario)


def test_a_clean_stop_hands_the_shards_over_at_once() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        me = await begun(world)
        former = world.owner_of(ID)
        stopped = world.loop.time()
        await world.stop(former)
        await world.moved_from(former, ID)
        answered = await world.until_answered(lambda: world.end(ID, me, True), lambda r: int(r.error_code))
        assert answered.error_code == 0
        assert world.loop.time() - stopped < 2.0, "it waited for the lease to end"
        assert await visible(world) == [b"v"]

    run(scenario)


def test_describing_changes_nothing() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        me = await begun(world)
        request = messages.DescribeTransactionsRequest(transactional_ids=[ID, "nobody"])
        response = await world.to_coordinator(ID, request, 0)
        described = {state.transactional_id: state for state in response.transaction_states}
        assert described[ID].transaction_state == "Ongoing"
        assert [(t.topic, list(t.partitions)) for t in described[ID].topics] == [("t", [0])]
        assert described["nobody"].error_code in (105, ErrorCode.NOT_COORDINATOR)
        listing = messages.ListTransactionsRequest(
            state_filters=["Ongoing"], producer_id_filters=[], duration_filter=-1,
            transactional_id_pattern="(a|z).*[p-q]",
        )
        response = await world.to_coordinator(ID, listing, 2)
        assert [t.transactional_id for t in response.transaction_states] == [ID]
        assert (await world.end(ID, me, True)).error_code == 0

    run(scenario)


def test_nobody_lists_transactions_or_groups_while_some_shards_have_no_owner() -> None:
    """Whoever asks all coordinators that are alive would take the rest for all there is, and what is open for what
    nobody has open."""

    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        await begun(world)
        dead = world.owner_of(ID)
        (other,) = (name for name in world.coordinators() if name != dead)
        world.cluster.kill("controller-0", restart=False)
        world.cluster.kill(dead, restart=False)
        peer, view = await world.peer(other), world.view(other)
        await view.wait_for(lambda view: len(view.nodes("coordinator")) == 1, 60)
        listing = messages.ListTransactionsRequest(state_filters=[], producer_id_filters=[], duration_filter=-1)
        assert (await peer.call(listing, version=1)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        registration = world.coordinator(other).registration
        assert registration is not None
        groups = await world.ports.network.rpc_channel(registration.record.public_rpc_address).call(
            GROUPS + "ListGroups", groups_pb2.ListGroupsRequest().SerializeToString(), 20.0)
        assert groups_pb2.ListGroupsResponse.FromString(groups).error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    run(scenario)


def test_only_a_registered_owner_may_write_the_log() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        await world.init(ID)
        shard = world.txn_shard(ID)
        for proof, code in (
            (None, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
            (b"x" * 28, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
            (world.proof_of(world.owner_of(ID), shard.epoch - 1), ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        ):
            answered = await world.write_internal(TXN_STATE_TOPIC, shard.shard, proof)
            assert answered in (code, ErrorCode.INVALID_TOPIC_EXCEPTION), (proof, answered)
        assert [record.state.name for record in await world.transactions_logged(ID)] == ["EMPTY"]

    run(scenario)


def test_a_fault_of_the_program_ends_the_process_and_nothing_is_answered_from_its_memory() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        me = await begun(world)
        former = world.owner_of(ID)

        def broken(record: object, now: object) -> None:
            raise AssertionError("a transition that the table does not allow")

        world.txn_shard(ID).machine.replay = broken  # type: ignore[method-assign, assignment]
        with pytest.raises(PeerClosed):
            answered = await world.end(ID, me, True)
            assert answered.error_code == ErrorCode.NOT_COORDINATOR
            raise PeerClosed("answered, and not by a guess")
        assert any("a fault of this program" in line for line in world.cluster.exits())
        await world.cluster.wait_until(
            lambda: world.cluster.nodes[former].lives == 2 and world.cluster.ready(), "it is back"
        )
        answered = await world.until_answered(lambda: world.end(ID, me, True), lambda r: int(r.error_code))
        assert answered.error_code == 0 and await visible(world) == [b"v"]

    run(scenario, exits_allowed=True)


def test_an_owner_that_another_one_has_fenced_lets_the_shard_go() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        me = await begun(world)
        shard = world.txn_shard(ID)
        fence = bytes(encode_control(ShardFence(shard.epoch + 1, 7), 0))
        shown = world.proof_of(world.owner_of(ID), shard.epoch + 1)
        assert await world.write_internal(TXN_STATE_TOPIC, shard.shard, shown, fence) == 0
        assert (await world.end(ID, me, True)).error_code == ErrorCode.NOT_COORDINATOR
        assert shard.released
        assert (await world.end(ID, me, True)).error_code == ErrorCode.NOT_COORDINATOR

    run(scenario)


def test_a_late_writes_question_is_not_answered_about_the_next_transaction() -> None:
    """It is held while the markers are under way, behind the call that begins the next transaction, which has the same
    epoch and the same partition (rule 24)."""
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        me = await world.init(ID)
        assert await world.add(ID, me, "t", 0) == [0]
        world.cluster.world.blocked_methods.add("WriteMarkers")
        assert (await world.end(ID, me, False)).error_code == 0
        adds = asyncio.ensure_future(world.add(ID, me, "t", 0))
        await asyncio.sleep(0.1)
        topic = world.view(world.owner_of(ID)).topic("t")
        registration = world.coordinator(world.owner_of(ID)).registration
        assert topic is not None and registration is not None
        request = coordinator_pb2.VerifyPartitionsRequest(
            transactional_id=ID, producer_id=me[0], producer_epoch=me[1],
            partitions=[common_pb2.TopicPartition(topic_id=topic.topic_id, partition=0)])
        asked = asyncio.ensure_future(world.ports.network.rpc_channel(registration.record.rpc_address).call(
            "/hapax.internal.v1.TxnCoordinator/VerifyPartitions", request.SerializeToString(), 5.0))
        await asyncio.sleep(0.1)
        assert not adds.done() and not asked.done()
        world.cluster.world.blocked_methods.clear()
        answer = coordinator_pb2.VerifyPartitionsResponse.FromString(await asked)
        assert await adds == [0]
        assert [each.error for each in answer.partitions] == [ErrorCode.TRANSACTION_ABORTABLE]
        assert answer.serial == 2, "the next transaction is open by then"

    run(scenario)


def test_a_question_about_partitions_is_refused_while_the_shard_is_loading() -> None:
    """Also by a process that has read nothing of the shard yet."""
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        me = await begun(world)
        former = world.owner_of(ID)
        (heir,) = [name for name in world.coordinators() if name != former]
        world.cluster.kill("broker-0", restart=False)
        world.cluster.kill(former, restart=False)

        def inherited() -> bool:
            with contextlib.suppress(Refusal):
                return world.coordinator(heir).shards.txn_shard(ID) is not None
            return False

        await world.cluster.wait_until(inherited, "the shard has moved")
        registration = world.coordinator(heir).registration
        assert registration is not None
        request = coordinator_pb2.VerifyPartitionsRequest(
            transactional_id=ID, producer_id=me[0], producer_epoch=me[1])
        answer = await world.ports.network.rpc_channel(registration.record.rpc_address).call(
            "/hapax.internal.v1.TxnCoordinator/VerifyPartitions", request.SerializeToString(), 5.0)
        refused = coordinator_pb2.VerifyPartitionsResponse.FromString(answer).error
        assert refused == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    run(scenario)
