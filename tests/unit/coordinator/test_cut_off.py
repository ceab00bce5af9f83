"""One broker and one coordinator are cut off from the store for longer than their leases, all else is connected: others
are elected, and neither of the two knows it. Nothing that they answer may contradict what their successors did
(rules 12 and 23)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Literal

import pytest

from hapax.coordinator.administration import GROUPS
from hapax.core.errors import ErrorCode
from hapax.core.hashing import shard_of
from hapax.rpc.gen.hapax.internal.v1 import coordinator_pb2
from hapax.rpc.gen.hapax.v1 import groups_pb2, transactions_pb2
from hapax.wire import messages
from hapax_sim.cluster import STORE
from unit.coordinator.coordinator_world import OFFSETS_TOPIC, SHARDS, TXN_STATE_TOPIC, CoordinatorWorld, run

ID, GROUP = "app", "readers"
ELSEWHERE = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)
Scenario = Callable[[CoordinatorWorld], Coroutine[Any, Any, None]]


def play(scenario: Scenario) -> None:
    run(scenario, exits_allowed=True, brokers=3, replication=3)


async def cut_off(world: CoordinatorWorld, kind: Literal["txn", "group"], name: str) -> str:
    """The owner of the id's or group's shard, and the leader of the shard's partition, from the store; returns the
    former once another coordinator serves through another leader."""
    topic = {"txn": TXN_STATE_TOPIC, "group": OFFSETS_TOPIC}[kind]
    former = world.owner_of(name) if kind == "txn" else world.owner_of_group(name)
    view = world.view(former)
    known = view.topic(topic)
    assert known is not None
    leader = view.leader_of(known.topic_id, shard_of(name, SHARDS))
    assert leader is not None
    registration = world.coordinator(former).registration
    assert registration is not None
    world.cluster.world.blocked |= {(former, STORE), (f"broker-{leader.node_id}", STORE)}
    world.gone = former

    def elected() -> bool:
        world.cluster.store.keep_alive(registration.lease)  # its successor must find the broker's, not the old leader
        (survivor,) = world.coordinators()
        now = world.view(survivor).leader_of(known.topic_id, shard_of(name, SHARDS))
        return now is not None and now.node_id != leader.node_id

    await world.cluster.wait_until(elected, "another broker leads")
    await (world.moved_from if kind == "txn" else world.group_moved_from)(former, name)
    return former


async def ask(world: CoordinatorWorld, node: str, request: Any, version: int) -> Any:
    return await (await world.peer(node)).call(request, version=version)


async def call(world: CoordinatorWorld, node: str, method: str, request: Any) -> bytes:
    registration = world.coordinator(node).registration
    assert registration is not None
    record = registration.record
    channel = world.ports.network.rpc_channel(record.rpc_address if "internal" in method else record.public_rpc_address)
    return await channel.call(method, request.SerializeToString(), 20.0)


async def fetched(world: CoordinatorWorld, node: str, version: int = 7, *, stable: bool = False) -> tuple[int, int]:
    """(error, offset) as one coordinator answers."""
    kind = messages.OffsetFetchRequest
    request = kind(group_id=GROUP, require_stable=stable, topics=[
        kind.OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
    response = await ask(world, node, request, version)
    if response.error_code:
        return response.error_code, -1
    found = response.topics[0].partitions[0]
    return found.error_code, found.committed_offset


@pytest.mark.parametrize("stable", [False, True])
def test_a_committed_offset_is_never_told_from_before(stable: bool) -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        assert await world.commit_offset(GROUP, "t", 0, 10) == 0
        former = await cut_off(world, "group", GROUP)
        assert await world.commit_offset(GROUP, "t", 0, 99) == 0
        for _ in range(3):
            error, offset = await fetched(world, former, stable=stable)
            assert error in ELSEWHERE and offset == -1, "its consumer would process again what was committed since"
        assert await world.committed(GROUP, "t", 0) == (99, 0)

    play(scenario)


def test_a_group_that_a_former_owner_does_not_know_is_not_said_to_be_gone() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        former = await cut_off(world, "group", GROUP)
        assert await world.commit_offset(GROUP, "t", 0, 99) == 0
        payload = await call(
            world, former, GROUPS + "DeleteOffsets",
            groups_pb2.DeleteOffsetsRequest(group_id=GROUP, all=True))
        assert groups_pb2.DeleteOffsetsResponse.FromString(payload).error in ELSEWHERE
        assert await world.committed(GROUP, "t", 0) == (99, 0)

    play(scenario)


async def twice(world: CoordinatorWorld) -> tuple[str, tuple[int, int]]:
    """(the former owner, a version-1 producer): it knows of one committed transaction; the next one was begun and
    aborted elsewhere."""
    me = await world.init(ID)
    view = world.view(world.owner_of(ID))
    topic, shard = view.topic("t"), view.topic(TXN_STATE_TOPIC)
    assert topic is not None and shard is not None
    cut = view.leader_of(shard.topic_id, shard_of(ID, SHARDS))
    partition = next(n for n in range(3) if view.leader_of(topic.topic_id, n) != cut)
    assert await world.add(ID, me, "t", partition) == [0]
    assert (await world.end(ID, me, True)).error_code == 0
    former = await cut_off(world, "txn", ID)
    kind = messages.AddPartitionsToTxnRequest

    async def begun() -> Any:
        return await world.to_coordinator(ID, kind(
            v3_and_below_transactional_id=ID, v3_and_below_producer_id=me[0], v3_and_below_producer_epoch=me[1],
            v3_and_below_topics=[kind.AddPartitionsToTxnTopic(name="t", partitions=[partition])]), 3)

    def code(response: Any) -> int:
        return int(response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    async def settled() -> bool:
        return code(await world.until_answered(begun, code)) == 0

    await world.cluster.wait_until(settled, "the next transaction has begun")
    assert (await world.end(ID, me, False)).error_code == 0
    return former, me


def test_an_aborted_transaction_is_never_answered_as_committed() -> None:
    """A version-1 EndTxn has the same identity in both transactions: the retry of a commit, as far as the former owner
    knows."""

    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 3))
        former, me = await twice(world)
        request = messages.EndTxnRequest(
            transactional_id=ID, producer_id=me[0], producer_epoch=me[1], committed=True)
        answer = await ask(world, former, request, 3)
        assert answer.error_code in ELSEWHERE, "an abort was answered as a commit"

    play(scenario)


def test_what_a_former_owner_describes_verifies_and_refuses_is_not_answered_either() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 3))
        former, me = await twice(world)
        described = await ask(world, former, messages.DescribeTransactionsRequest(transactional_ids=[ID]), 0)
        assert described.transaction_states[0].error_code in ELSEWHERE
        listing = messages.ListTransactionsRequest(state_filters=[], producer_id_filters=[], duration_filter=-1)
        listed = await ask(world, former, listing, 1)
        assert (listed.error_code, listed.transaction_states) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [])
        payload = await call(
            world, former, "/hapax.v1.Transactions/DescribeTransactionalId",
            transactions_pb2.DescribeTransactionalIdRequest(transactional_id=ID))
        assert transactions_pb2.DescribeTransactionalIdResponse.FromString(payload).error in ELSEWHERE
        payload = await call(
            world, former, "/hapax.internal.v1.TxnCoordinator/VerifyPartitions",
            coordinator_pb2.VerifyPartitionsRequest(transactional_id=ID, producer_id=me[0], producer_epoch=me[1]))
        assert coordinator_pb2.VerifyPartitionsResponse.FromString(payload).error in ELSEWHERE
        payload = await call(
            world, former, "/hapax.v1.Transactions/GetCommitToken",
            transactions_pb2.GetCommitTokenRequest(transactional_id=ID, scope="q"))
        assert transactions_pb2.GetCommitTokenResponse.FromString(payload).error in ELSEWHERE
        request = messages.EndTxnRequest(
            transactional_id=ID, producer_id=me[0], producer_epoch=me[1], committed=False)
        assert (await ask(world, former, request, 3)).error_code in ELSEWHERE, "to abort a commit, as far as it knows"

    play(scenario)
