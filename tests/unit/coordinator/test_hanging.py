"""Transactions that hang on a partition are ended, and only those."""

from __future__ import annotations

from typing import Any

from hapax.core.errors import ErrorCode
from hapax.rpc.gen.hapax.internal.v1 import common_pb2
from hapax.rpc.gen.hapax.internal.v1.coordinator_pb2 import AbortHangingRequest, AbortHangingResponse
from unit.coordinator.coordinator_world import CoordinatorWorld, run

ID = "app"
UNVERIFIED = ("transaction.partition.verification.enable=false",)
"""Lets a batch into a partition that its transaction does not know: what verification is there to prevent."""


async def abort(
    world: CoordinatorWorld, producer: tuple[int, int], partition: int, transactional_id: str, first_offset: int = 0,
    at: str = "",
) -> int:
    name = at or world.owner_of(transactional_id or ID)
    topic = world.view(name).topic("t")
    assert topic is not None
    request = AbortHangingRequest(
        transactional_id=transactional_id, producer_id=producer[0], producer_epoch=producer[1],
        partition=common_pb2.TopicPartition(topic_id=topic.topic_id, partition=partition), first_offset=first_offset,
    )
    registration = world.coordinator(name).registration
    assert registration is not None
    answer = await world.ports.network.rpc_channel(registration.record.rpc_address).call(
        "/hapax.internal.v1.TxnCoordinator/AbortHanging", request.SerializeToString(), 5.0
    )
    return AbortHangingResponse.FromString(answer).error


async def hanging(world: CoordinatorWorld) -> tuple[int, int]:
    """A committed transaction in t-0 whose late batch has opened another one in t-1."""
    me = await world.init(ID)
    assert await world.add(ID, me, "t", 0) == [0]
    assert (await world.produce(ID, me, "t", 0, b"v")).error_code == 0
    assert (await world.end(ID, me, True)).error_code == 0
    assert await world.read_committed("t", 0) == [b"v"]
    assert (await world.produce(ID, me, "t", 1, b"late")).error_code == 0
    return me


async def is_open(world: CoordinatorWorld, partition: int) -> bool:
    batches, _ = await world.fetch("t", partition, committed=True, waits=False)
    return not any(header.is_control for header, _ in batches)


def test_one_that_its_coordinator_does_not_know_is_aborted() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        me = await hanging(world)
        assert await abort(world, me, 1, ID, first_offset=7) == 0, "not the one that hangs: nothing happens"
        assert await is_open(world, 1)
        assert await abort(world, me, 1, ID) == 0
        assert await world.read_committed("t", 1) == []
        assert (await world.produce(ID, me, "t", 0, b"w", 1)).error_code == 0

        async def told() -> bool:
            return any(event["event"] == "hanging_transaction_aborted" for event in await world.events())

        await world.cluster.wait_until(told, "the event is written")

    run(scenario, settings=UNVERIFIED)


def test_one_that_is_open_or_being_decided_is_left_alone() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        me = await world.init(ID)
        assert await world.add(ID, me, "t", 0) == [0]
        assert (await world.produce(ID, me, "t", 0, b"v")).error_code == 0
        for at in world.coordinators():
            assert await abort(world, me, 0, "", at=at) == ErrorCode.CONCURRENT_TRANSACTIONS
        assert await abort(world, me, 0, ID) == ErrorCode.CONCURRENT_TRANSACTIONS
        world.cluster.world.blocked_methods.add("WriteMarkers")
        assert (await world.end(ID, me, True)).error_code == 0
        assert await abort(world, me, 0, ID) == ErrorCode.CONCURRENT_TRANSACTIONS
        world.cluster.world.blocked_methods.clear()
        assert await world.read_committed("t", 0) == [b"v"]

    run(scenario)


def test_one_whose_id_the_broker_does_not_know_is_looked_for_in_every_shard() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        me = await hanging(world)
        other = next(name for name in world.coordinators() if name != world.owner_of(ID))
        assert await abort(world, me, 1, "", at=other) == 0
        assert await world.read_committed("t", 1) == []

    run(scenario, settings=UNVERIFIED)


def test_one_that_no_shard_knows_is_nobodys() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        stranger = (999, 3)  # the last id of a block that nobody has used up
        assert (await world.produce("gone", stranger, "t", 0, b"v")).error_code == 0
        name, other = world.coordinators()
        await world.stop(other)
        assert await abort(world, stranger, 0, "", at=name) in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 0)
        await world.cluster.wait_until(lambda: _all_here(world, name), "one coordinator has all shards")
        assert await abort(world, stranger, 0, "", at=name) == 0
        assert await world.read_committed("t", 0) == []

    def _all_here(world: CoordinatorWorld, name: str) -> Any:
        return len(world.coordinator(name).shards._txn) == 4 and not world.coordinator(name).shards.not_serving()

    run(scenario, settings=UNVERIFIED)
