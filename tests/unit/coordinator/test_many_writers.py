"""Many members of one transaction: their records, and a commit that takes several calls to each broker."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from hapax.codec.metadata import TXN_STATE_TOPIC
from hapax.codec.transaction_log import decode_record
from hapax.coordinator import markers, peers
from hapax.core.hashing import shard_of
from hapax.core.transaction.record import Delta, Transaction
from hapax.core.transaction.states import State
from hapax.rpc.gen.hapax.v1 import transactions_pb2 as pb
from unit.coordinator.coordinator_world import SHARDS, CoordinatorWorld, run
from unit.coordinator.test_tokens import ID, end, join, winner, write

MEMBERS, PARTITIONS = 5, 4


async def batch(world: CoordinatorWorld) -> list[Any]:
    """The members join and write to every partition, all at once."""
    first = await join(world, 0, "task-0")
    others = await asyncio.gather(*(join(world, 0, f"task-{number}") for number in range(1, MEMBERS)))
    members = [first, *others]
    assert len({each.producer_id for each in members}) == MEMBERS
    await asyncio.gather(*(
        write(world, joined, index, b"%d-%d" % (number, index))
        for number, joined in enumerate(members) for index in range(PARTITIONS)))
    return members


async def visible(world: CoordinatorWorld, index: int) -> set[bytes]:
    return set(await world.read_committed("t", index))


def test_a_take_over_knows_whatever_members_have_registered() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", PARTITIONS))
        members = await batch(world)
        log = await world.logged(TXN_STATE_TOPIC, shard_of(ID, SHARDS))
        records = [decode_record(*entry) for entry in log]
        assert [type(each) for each in records].count(Transaction) == 1, "only the first member's join was whole"
        assert sum(isinstance(each, Delta) for each in records) >= 2 * MEMBERS - 1
        former = world.owner_of(ID)
        world.cluster.kill(former, restart=False)
        await world.moved_from(former, ID)
        wins = [winner(each, *((index, 0) for index in range(PARTITIONS))) for each in members[1:]]
        assert (await end(world, 0, *wins)).outcome == pb.COMMITTED
        for index in range(PARTITIONS):
            assert await visible(world, index) == {b"%d-%d" % (number, index) for number in range(1, MEMBERS)}

    run(scenario)


def test_a_time_out_tells_how_many_partitions_all_members_wrote_to(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", PARTITIONS))
        await batch(world)
        with caplog.at_level(logging.INFO, "hapax"):
            shard = world.txn_shard(ID)
            await world.cluster.wait_until(
                lambda: shard.machine.transactions[ID].state is State.COMPLETE_ABORT, "it timed out")

    run(scenario)
    (told,) = [each for each in caplog.records if each.message.startswith("transaction timed out")]
    assert told.fields["partitions"] == PARTITIONS  # type: ignore[attr-defined]


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_a_large_commit_takes_several_calls_but_one_for_all_markers_of_a_partition(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markers, "MAX_MARKERS_PER_CALL", limit)
    monkeypatch.setattr(peers, "MAX_CHECKS_PER_CALL", limit)
    calls: list[dict[int, int]] = []
    write_markers = markers.MarkerSender._call_broker

    async def counted(self: Any, address: str, items: list[Any]) -> Any:
        found: dict[int, int] = {}
        for item in items:
            for marker in item.sent.markers:
                for partition in marker.partitions:
                    found[partition.partition] = found.get(partition.partition, 0) + 1
        calls.append(found)
        return await write_markers(self, address, items)

    monkeypatch.setattr(markers.MarkerSender, "_call_broker", counted)

    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", PARTITIONS))
        members = await batch(world)
        wins = [winner(each, *((index, 0) for index in range(PARTITIONS))) for each in members[:-1]]
        assert (await end(world, 0, *wins)).outcome == pb.COMMITTED
        for index in range(PARTITIONS):
            assert await visible(world, index) == {b"%d-%d" % (number, index) for number in range(MEMBERS - 1)}
        shard = world.txn_shard(ID)
        await world.cluster.wait_until(
            lambda: shard.machine.transactions[ID].state is State.COMPLETE_COMMIT, "the markers are stored")

    run(scenario)
    marked = [call for call in calls if call]
    assert all(set(call.values()) == {MEMBERS} for call in marked), "all members' markers of a partition together"
    assert len(marked) >= (PARTITIONS if limit < 2 * MEMBERS else 1)


def test_what_a_broker_did_not_take_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "MAX_MARKERS_PER_CALL", MEMBERS)
    refused: list[int] = []
    write_markers = markers.MarkerSender._call_broker

    async def sometimes(self: Any, address: str, items: list[Any]) -> Any:
        if len(refused) < 3:
            refused.append(sum(len(item.sent.markers) for item in items))
            return [markers._failed(item, markers.ErrorCode.NOT_LEADER_OR_FOLLOWER) for item in items]
        return await write_markers(self, address, items)

    monkeypatch.setattr(markers.MarkerSender, "_call_broker", sometimes)

    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", PARTITIONS))
        members = await batch(world)
        wins = [winner(each, *((index, 0) for index in range(PARTITIONS))) for each in members]
        assert (await end(world, 0, *wins)).outcome == pb.COMMITTED
        for index in range(PARTITIONS):
            assert len(await visible(world, index)) == MEMBERS

    run(scenario)
    assert len(refused) == 3
