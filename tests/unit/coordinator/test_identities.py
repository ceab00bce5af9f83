"""Describing, making sure of and fencing a transactional id, over the public calls and across a take-over."""

from __future__ import annotations

from typing import Any

from hapax.core.errors import ErrorCode
from hapax.rpc.gen.hapax.v1 import transactions_pb2 as pb
from unit.coordinator.coordinator_world import CoordinatorWorld, run

ID = "loader"


async def call(world: CoordinatorWorld, method: str, **fields: Any) -> Any:
    request = getattr(pb, f"{method}Request")(transactional_id=ID, **fields)

    async def once() -> Any:
        registration = world.coordinator(world.owner_of(ID)).registration
        assert registration is not None
        answer = await world.ports.network.rpc_channel(registration.record.public_rpc_address).call(
            f"/hapax.v1.Transactions/{method}", request.SerializeToString(), 5.0)
        return getattr(pb, f"{method}Response").FromString(answer)

    return await world.until_answered(
        once, lambda answer: 0 if answer.error == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND else int(answer.error))


def test_an_id_is_made_described_and_fenced() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        unknown = await call(world, "DescribeTransactionalId")
        assert unknown.error == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert (await call(world, "FenceProducer", instance="-")).error == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        made = await call(world, "EnsureTransactionalId")
        assert made.producer_id >= 0 and made == await call(world, "EnsureTransactionalId")
        fresh = await call(world, "DescribeTransactionalId")
        assert (fresh.state, fresh.producer_id) == ("Empty", made.producer_id)
        assert (fresh.opened_ms, fresh.decided) == (-1, False)
        assert (fresh.holder_peer, fresh.HasField("fencing")) == ("", False)

        identity = await world.init(ID)
        assert identity == (made.producer_id, made.producer_epoch + 1)
        assert await world.add(ID, identity, "t", 0) == [0]
        held = await call(world, "DescribeTransactionalId")
        assert (held.state, held.partition_count, held.partitions[0].topic) == ("Ongoing", 1, "t")
        assert held.opened_ms >= 0 and held.holder_peer and held.instance != fresh.instance
        await world.end(ID, identity, commit=True)
        assert await world.add(ID, identity, "t", 0) == [0]

        fenced = await call(world, "FenceProducer", instance=held.instance, client_id="operator", host="pod")
        assert fenced.producer_epoch > identity[1]
        former = world.owner_of(ID)
        await world.stop(former)
        await world.moved_from(former, ID)
        after = await call(world, "DescribeTransactionalId")
        assert (after.fencing.client_id, after.fencing.peer, after.fencing.fenced_epoch) == (
            "operator", "pod", identity[1])
        assert after.fencing.fenced_peer == held.holder_peer and after.holder_peer == ""
        assert (after.decided, after.committed) == (True, False)
        again = await call(world, "FenceProducer", instance=held.instance, client_id="operator", host="pod")
        assert again == fenced

    run(scenario)
