"""Commit tokens and many writers, over the public calls (`hapax.v1.Transactions`)."""

from __future__ import annotations

import asyncio
from typing import Any

from hapax.core.errors import ErrorCode
from hapax.core.transaction.requests import CheckWinners, WinnerCheck
from hapax.rpc.gen.hapax.v1 import lease_pb2
from hapax.rpc.gen.hapax.v1 import transactions_pb2 as pb
from hapax_sim.cluster import STORE
from unit.coordinator.coordinator_world import CoordinatorWorld, run

ID = "query"
RESPONSES: dict[str, Any] = {
    "JoinTransaction": pb.JoinTransactionResponse, "EndTransaction": pb.EndTransactionResponse,
    "RenewTransaction": pb.RenewTransactionResponse, "GetCommitToken": pb.GetCommitTokenResponse,
}


async def call(world: CoordinatorWorld, method: str, request: Any) -> Any:
    async def once() -> Any:
        address = world.coordinator(world.owner_of(ID)).registration.record.public_rpc_address  # type: ignore[union-attr]
        answer = await world.ports.network.rpc_channel(address).call(
            f"/hapax.v1.Transactions/{method}", request.SerializeToString(), 5.0
        )
        return RESPONSES[method].FromString(answer)

    return await world.until_answered(once, lambda r: int(r.error))


def token(value: int) -> pb.CommitToken:
    return pb.CommitToken(scope="q", value=value)


async def join(world: CoordinatorWorld, value: int, key: str) -> Any:
    return await call(world, "JoinTransaction", pb.JoinTransactionRequest(
        transactional_id=ID, token=token(value), member_key=key, timeout_ms=60_000))


def winner(joined: Any, *partitions: tuple[int, int]) -> pb.Winner:
    return pb.Winner(
        producer_id=joined.producer_id, producer_epoch=joined.producer_epoch, partitions=[
            pb.WinnerPartition(partition=lease_pb2.Partition(topic="t", partition=index), last_sequence=last)
            for index, last in partitions
        ])


async def end(world: CoordinatorWorld, value: int, *winners: pb.Winner, count: int = 2) -> Any:
    return await call(world, "EndTransaction", pb.EndTransactionRequest(
        transactional_id=ID, commit=True, token=token(value), winners=winners, record_count=count))


async def write(world: CoordinatorWorld, joined: Any, partition: int, value: bytes, sequence: int = 0) -> None:
    identity = (joined.producer_id, joined.producer_epoch)
    answered = await world.produce_v2(ID, identity, "t", partition, value, sequence)
    assert answered.error_code == 0, answered


def test_winners_become_visible_at_once_losers_never_and_a_replay_changes_nothing() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        first, second, loser = [await join(world, 0, key) for key in ("task-0", "task-1", "task-1-again")]
        assert len({first.producer_id, second.producer_id, loser.producer_id}) == 3
        await write(world, first, 0, b"a")
        await write(world, second, 1, b"b")
        await write(world, loser, 1, b"not")
        assert await world.read_committed_now("t", 0) == []
        committed = await end(world, 0, winner(first, (0, 0)), winner(second, (1, 0)))
        assert (committed.error, committed.outcome) == (0, pb.COMMITTED)
        assert await world.read_committed("t", 0) == [b"a"] and await world.read_committed("t", 1) == [b"b"]
        replayed = await end(world, 0, winner(first, (0, 0)), winner(second, (1, 0)))
        assert (replayed.outcome, replayed.committed_records) == (pb.ALREADY_COMMITTED, 2)
        other_count = await end(world, 0, count=3)
        assert other_count.error, "another number of records under the same token fails loudly"
        assert (await join(world, 0, "late")).already_committed
        found = await call(world, "GetCommitToken", pb.GetCommitTokenRequest(transactional_id=ID, scope="q"))
        assert (found.found, found.value, found.record_count) == (True, 0, 2)

    run(scenario)


def test_a_winner_writes_nothing_once_its_records_are_checked() -> None:
    """Else the marker would commit what its commit did not name: the partition has the transaction open, and would ask
    nobody about one more batch."""
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        joined = await join(world, 0, "task-0")
        await write(world, joined, 0, b"a")
        shard = world.txn_shard(ID)
        extra: list[asyncio.Task[Any]] = []

        class Interposed:
            async def missing(self, check: CheckWinners) -> tuple[WinnerCheck, ...]:
                missing = await asked.missing(check)
                identity = (joined.producer_id, joined.producer_epoch)
                extra.append(asyncio.ensure_future(world.produce(ID, identity, "t", 0, b"not named", 1, version=12)))
                await asyncio.sleep(0.5)
                return missing

        asked, shard._winners = shard._winners, Interposed()
        assert (await end(world, 0, winner(joined, (0, 0)), count=1)).outcome == pb.COMMITTED
        assert (await extra[0]).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await world.read_committed("t", 0) == [b"a"]

    run(scenario)


def test_a_commit_whose_records_are_missing_fails() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        joined = await join(world, 0, "task-0")
        await write(world, joined, 0, b"a")
        for claimed in (winner(joined, (0, 1)), winner(joined, (0, 0), (1, 0))):
            refused = await end(world, 0, claimed)
            assert refused.error and refused.outcome != pb.COMMITTED, refused
        assert await world.read_committed_now("t", 0) == []
        assert (await end(world, 0, winner(joined, (0, 0)), count=1)).outcome == pb.COMMITTED
        assert await world.read_committed("t", 0) == [b"a"]

    run(scenario)


def test_an_owner_that_has_not_heard_of_its_successor_vouches_for_nothing() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        joined = await join(world, 0, "task-0")
        await write(world, joined, 0, b"a")
        assert (await end(world, 0, winner(joined, (0, 0)), count=1)).outcome == pb.COMMITTED
        former = world.owner_of(ID)
        registration = world.coordinator(former).registration
        assert registration is not None
        channel = world.ports.network.rpc_channel(registration.record.public_rpc_address)
        asked = pb.GetCommitTokenRequest(transactional_id=ID, scope="q").SerializeToString()

        async def what_it_says() -> Any:
            answer = await channel.call("/hapax.v1.Transactions/GetCommitToken", asked, 5.0)
            return pb.GetCommitTokenResponse.FromString(answer)

        assert (await what_it_says()).found
        world.cluster.world.blocked.add((former, STORE))
        key = world.view(former).keys.node(registration.record.node_id)
        world.cluster.store.revoke_lease(world.cluster.store.lease_of(key))
        world.gone = former
        await world.moved_from(former, ID)
        process = world.cluster.nodes[former].process
        assert process is not None and process.alive, "it knows of nothing"
        assert (await what_it_says()).error, "its memory is no answer: only the log knows"

    run(scenario)


def test_a_token_survives_the_coordinator_and_the_next_batch_goes_on() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        joined = await join(world, 0, "task-0")
        await write(world, joined, 0, b"a")
        world.cluster.world.blocked_methods.add("WriteMarkers")
        assert (await end(world, 0, winner(joined, (0, 0)), count=1)).outcome == pb.COMMITTED
        former = world.owner_of(ID)
        world.cluster.kill(former, restart=False)
        await world.moved_from(former, ID)
        world.cluster.world.blocked_methods.clear()
        replayed = await end(world, 0, winner(joined, (0, 0)), count=1)
        assert replayed.outcome == pb.ALREADY_COMMITTED
        assert await world.read_committed("t", 0) == [b"a"]
        again = await join(world, 1, "task-0")
        await write(world, again, 0, b"b")
        assert (await end(world, 1, winner(again, (0, 0)), count=1)).outcome == pb.COMMITTED
        assert await world.read_committed("t", 0) == [b"a", b"b"]

    run(scenario)


def test_a_newer_token_takes_the_place_of_an_open_transaction() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        orphan = await join(world, 0, "task-0")
        await write(world, orphan, 0, b"orphan")
        joined = await call(world, "JoinTransaction", pb.JoinTransactionRequest(
            transactional_id=ID, token=token(5), member_key="k", timeout_ms=60_000, allow_unknown_history=True))
        assert joined.error == 0
        late = await world.produce_v2(ID, (orphan.producer_id, orphan.producer_epoch), "t", 0, b"late", 1)
        assert late.error_code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE,
                                   ErrorCode.TRANSACTION_ABORTABLE)
        renewed = await call(world, "RenewTransaction", pb.RenewTransactionRequest(
            transactional_id=ID, token=token(5), serial=joined.serial, timeout_ms=120_000))
        assert renewed.error == 0 and renewed.remaining_ms > 110_000
        assert await world.read_committed("t", 0) == []

    run(scenario)


def test_a_single_writer_commits_with_a_token() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        me = await world.init(ID)
        assert (await world.produce_v2(ID, me, "t", 0, b"a")).error_code == 0
        request = pb.EndTransactionRequest(
            transactional_id=ID, commit=True, token=token(0), producer_id=me[0], producer_epoch=me[1], record_count=1)
        committed = await call(world, "EndTransaction", request)
        assert (committed.outcome, committed.producer_epoch) == (pb.COMMITTED, me[1] + 1)
        assert await world.read_committed("t", 0) == [b"a"]

    run(scenario)
