"""The consumer reads from the replica that the leader names (KIP-392), and from the leader whenever that one fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hapax.client.errors import FatalError, RetriableError
from hapax.client.metadata import Leader
from hapax.client.raw_fetch import fetch_raw
from hapax.client.read_replicas import AVOIDED_MS, REFUSED_MS, ReadReplicas
from hapax.core.errors import ErrorCode
from unit.client.fetching_world import A, B, Cluster

AGE_MS = 300_000
LEADER = Leader(0, 1)
NODES = {0, 1}


# --- the rules -----------------------------------------------------------------------------------------------------


def replicas() -> ReadReplicas:
    """Node 1 was named at 0 ms."""
    found = ReadReplicas("r", AGE_MS)
    assert found.node(A, LEADER, NODES, 0) == 0
    assert found.prefer(A, 1, LEADER, 0)
    return found


def test_a_replica_is_read_until_the_metadata_would_be_too_old() -> None:
    found = replicas()
    assert found.node(A, LEADER, NODES, AGE_MS - 1) == 1
    assert found.node(B, LEADER, NODES, 0) == 0
    assert found.node(A, LEADER, NODES, AGE_MS) == 0
    assert found.node(A, LEADER, NODES, 0) == 0, "until the leader names it again"
    assert found.rack({A}, AGE_MS) == "r"


def test_another_leader_is_asked_first() -> None:
    assert replicas().node(A, Leader(2, 2), NODES, 1) == 2


def test_a_replica_that_the_metadata_do_not_know_is_not_read() -> None:
    found = replicas()
    assert found.node(A, LEADER, {0}, 1) == 0
    assert found.rack({A}, 1) == "", "the leader would name it again"


def test_the_leader_serves_a_partition_whose_replica_failed() -> None:
    found = replicas()
    assert found.leave(A, 1, REFUSED_MS)
    assert not found.leave(A, 1, REFUSED_MS), "it is read from the leader now"
    assert found.node(A, LEADER, NODES, 1) == 0
    assert found.rack({A, B}, 1) == ""
    assert found.rack({B}, 1) == "r"
    assert found.rack({A, B}, 1 + REFUSED_MS) == "r"


def test_a_leader_that_names_a_failed_replica_all_the_same_is_asked_with_pauses() -> None:
    found = replicas()
    found.leave(A, 1, AVOIDED_MS)
    assert not found.prefer(A, 1, LEADER, 2)
    assert found.node(A, LEADER, NODES, 2) == 1
    found.leave(A, 3, AVOIDED_MS)
    assert found.prefer(A, 1, LEADER, 3 + AVOIDED_MS)


def test_a_leader_that_names_itself_is_read_without_a_rack() -> None:
    found = ReadReplicas("r", AGE_MS)
    assert not found.prefer(A, 0, LEADER, 0)
    assert found.node(A, LEADER, NODES, 0) == 0 and found.rack({A}, 0) == ""


def test_nothing_is_kept_of_a_partition_that_is_not_read_any_more() -> None:
    found = replicas()
    found.forget(A)
    assert found.node(A, LEADER, NODES, 0) == 0
    found = replicas()
    found.leave(A, 0, REFUSED_MS)
    found.forget(A)
    assert found.rack({A}, 0) == "r"


# --- the fetcher ---------------------------------------------------------------------------------------------------


async def following(*records: str, **settings: object) -> Cluster:
    """Node 0 leads; `a` is read from node 1, which has copied everything."""
    world = Cluster(reset="earliest", client_rack="r", **settings)
    world.brokers[0].prefers = 1
    world.fetcher.assign([A])
    await world.rounds(1, 2)
    if records:
        world.write("a", *records)
        assert await world.take() == list(records)
    await world.rounds(1)
    return world


def asked(world: Cluster, node_id: int) -> int:
    return len(world.brokers[node_id].requests)


async def test_the_named_replica_is_read_and_told_the_rack() -> None:
    world = await following("a0", "a1")
    before = asked(world, 0)
    world.write("a", "a2")
    assert await world.take() == ["a2"]
    assert all(each.rack_id == "r" for each in world.brokers[1].requests)
    assert asked(world, 0) - before <= 1, "the leader's session has ended, and nothing else is asked of it"
    assert not world.brokers[0].cache.sessions
    await world.fetcher.close()


async def test_without_a_rack_the_leader_is_read() -> None:
    world = Cluster(reset="earliest")
    world.brokers[0].prefers = 1
    world.write("a", "a0")
    world.fetcher.assign([A])
    assert await world.take() == ["a0"]
    assert all(each.rack_id == "" for each in world.brokers[0].requests) and not asked(world, 1)
    await world.fetcher.close()


async def test_the_leader_is_asked_again_when_the_metadata_would_be_too_old() -> None:
    world = await following("a0")
    before = asked(world, 0)
    world.later_ms = AGE_MS
    await world.rounds(0)
    world.write("a", "a1")
    assert await world.take() == ["a1"]
    await world.rounds(1)
    assert 1 <= asked(world, 0) - before <= 3, "it named the replica, and its session ended"
    await world.fetcher.close()


@pytest.mark.parametrize("code", [
    ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED])
@pytest.mark.parametrize("reset", ["latest", "none"])
async def test_an_error_of_the_replica_leads_back_to_the_leader_with_the_same_position(
    code: ErrorCode, reset: str
) -> None:
    world = await following("a0")
    world.options._values["auto.offset.reset"] = reset
    del world.asked[:]
    world.brokers[1].refuses["a"] = code
    world.write("a", "a1", "a2")
    assert await world.take() == ["a1", "a2"]
    assert world.asked == [], "its position was not looked up"
    assert world.brokers[0].requests[-1].rack_id == ""
    world.brokers[1].refuses.clear()
    world.later_ms += AVOIDED_MS
    await world.rounds(1)
    before = asked(world, 0)
    world.write("a", "a3")
    assert await world.take() == ["a3"]
    assert asked(world, 0) - before <= 1
    await world.fetcher.close()


async def test_an_offset_that_the_leader_does_not_have_either_is_out_of_range() -> None:
    world = await following("a0")
    del world.asked[:]
    world.brokers[1].has = 1
    world.fetcher.seek(A, 7)
    world.write("a", "a1")
    assert await world.take() == ["a0", "a1"]
    assert [way.name for _, way in world.asked] == ["BY_RULE"]
    await world.fetcher.close()


async def test_a_replica_that_is_behind_hides_nothing_and_repeats_nothing() -> None:
    world = await following("a0")
    world.brokers[1].has = 1
    world.write("a", "a1")
    assert await world.fetcher.take(20, 10) == [], "not committed there"
    world.brokers[1].has = 2
    assert await world.take() == ["a1"]
    world.brokers[1].has = 1  # another copy of it, from before
    world.write("a", "a2")
    assert await world.take() == ["a2"], "the leader has it"
    await world.fetcher.close()


async def test_a_replica_whose_end_lies_before_the_position_makes_no_negative_lag() -> None:
    """It has the records, and has not heard yet that they are committed."""
    world = await following()
    world.write("a", "a0", "a1")
    assert await world.take() == ["a0", "a1"]
    world.brokers[1].commits = 1
    while world.fetcher._readings[A].end != 1:
        await world.rounds(1)
    assert world.fetcher.position(A) == 2 and world.fetcher.lag() == 0
    world.brokers[1].commits = None
    world.write("a", "a2")
    assert await world.take() == ["a2"]
    await world.fetcher.close()


@pytest.mark.parametrize("how", ["request", "answer"])
async def test_a_replica_that_dies_is_left_for_the_leader(how: str) -> None:
    world = await following("a0", retry_backoff_ms=60_000, retry_backoff_max_ms=60_000)
    world.write("a", "a1")
    world.brokers[1].lose = [how]
    world.unreachable.add(1)
    assert await world.take() == ["a1"]
    before = asked(world, 1)
    await world.rounds(0, 3)
    assert asked(world, 1) == before
    await world.fetcher.close()


async def test_a_replica_that_cannot_be_reached_is_not_waited_for() -> None:
    world = Cluster(reset="earliest", client_rack="r", retry_backoff_ms=60_000, retry_backoff_max_ms=60_000)
    world.brokers[0].prefers = 1
    world.unreachable.add(1)
    world.write("a", "a0")
    world.fetcher.assign([A])
    assert await world.take() == ["a0"]
    await world.fetcher.close()


async def test_a_replica_that_is_not_in_the_metadata_is_not_waited_for() -> None:
    world = Cluster(reset="earliest", client_rack="r", retry_backoff_ms=60_000, retry_backoff_max_ms=60_000)
    world.brokers[0].prefers = 7
    world.write("a", "a0")
    world.fetcher.assign([A])
    assert await world.take() == ["a0"]
    assert world.refreshes
    await world.fetcher.close()


async def test_a_new_leader_is_asked_before_the_replica() -> None:
    world = await following("a0")
    world.brokers[0].prefers = -1
    world.elect("a", 1)
    world.elect("a", 0)
    world.write("a", "a1")
    assert await world.take() == ["a1"]
    before = asked(world, 1)
    await world.rounds(0, 3)
    assert asked(world, 1) == before
    await world.fetcher.close()


async def test_data_that_is_damaged_at_the_replica_alone_is_read_from_the_leader() -> None:
    world = await following("a0")
    world.brokers[1].damages = True
    world.write("a", "a1")
    assert await world.take() == ["a1"]
    world.brokers[0].damages = True
    world.write("a", "a2")
    with pytest.raises(FatalError, match="damaged"):
        await world.take()
    await world.fetcher.close()


async def test_a_partition_that_changes_nodes_is_read_once() -> None:
    """An answer of the replica is on its way when the leader is asked."""
    world = await following("a0")
    for number in range(1, 20):
        world.write("a", f"a{number}")
        if number % 3 == 0:
            world.fetcher.replicas.leave(A, world.now(), 1)
        assert await world.take() == [f"a{number}"]
    assert await world.fetcher.take(20, 10) == []
    await world.fetcher.close()


# --- single fetches ------------------------------------------------------------------------------------------------


async def one(world: Cluster, offset: int, found: ReadReplicas) -> bytes:
    cluster: Any = world
    async with asyncio.timeout(10):
        return (await fetch_raw(
            cluster, A, offset, committed=True, max_bytes=1000, timeout_ms=1000, replicas=found)).data


async def raw() -> tuple[Cluster, ReadReplicas]:
    world = Cluster(reset="earliest")
    world.brokers[0].prefers = 1
    world.write("a", "a0")
    found = ReadReplicas("r", AGE_MS)
    assert await one(world, 0, found) == world.logs[world.topics["a"].topic_id]
    assert [asked(world, 0), asked(world, 1)] == [1, 1]
    return world, found


async def test_a_single_fetch_is_answered_by_the_named_replica() -> None:
    world, found = await raw()
    assert await one(world, 0, found)
    assert [asked(world, 0), asked(world, 1)] == [1, 2]


async def test_only_the_leader_says_where_the_log_ends() -> None:
    world, found = await raw()
    world.brokers[1].has = 1
    world.write("a", "a1")
    assert await one(world, 1, found)
    assert await one(world, 2, found) == b""


async def test_a_single_fetch_goes_back_to_the_leader() -> None:
    world, found = await raw()
    world.brokers[1].refuses["a"] = ErrorCode.OFFSET_OUT_OF_RANGE
    assert await one(world, 0, found)
    world.later_ms += REFUSED_MS
    assert await one(world, 0, found)
    world.later_ms += REFUSED_MS
    world.unreachable.add(1)
    assert await one(world, 0, found)
    world.brokers[0].refuses["a"] = ErrorCode.OFFSET_OUT_OF_RANGE
    with pytest.raises(FatalError, match="OFFSET_OUT_OF_RANGE"):
        await one(world, 0, found)


async def test_a_leader_that_names_nobody_who_can_be_read_is_not_asked_without_end() -> None:
    world, found = await raw()
    world.brokers[0].prefers = 0
    world.brokers[1].refuses["a"] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await one(world, 0, found)
    with pytest.raises(RetriableError):
        found.prefer = lambda *_: False  # type: ignore[method-assign]
        found.rack = lambda *_: "r"  # type: ignore[method-assign]
        cluster: Any = world
        world.within = lambda timeout_ms, what, attempt: attempt()  # type: ignore[method-assign]
        await fetch_raw(cluster, A, 0, committed=True, max_bytes=1000, timeout_ms=1000, replicas=found)
