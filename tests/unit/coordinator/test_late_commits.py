"""Plain commits of a member that come late, over a connection which its client has given up."""

from __future__ import annotations

import pytest

from hapax.wire import messages
from hapax.wire.peer import Peer, PeerError
from unit.coordinator.coordinator_world import CoordinatorWorld, run

GROUP, MEMBER = "readers", "m"


async def join(peer: Peer) -> int:
    """Returns the epoch."""
    request = messages.ConsumerGroupHeartbeatRequest(
        group_id=GROUP, member_id=MEMBER, member_epoch=0, instance_id=None, rack_id=None, rebalance_timeout_ms=60_000,
        subscribed_topic_names=["t"], subscribed_topic_regex=None, server_assignor=None, topic_partitions=[])
    response = await peer.call(request, version=1)
    assert response.error_code == 0
    return int(response.member_epoch)


async def commit(peer: Peer, epoch: int, offset: int) -> int:
    kind = messages.OffsetCommitRequest
    part = kind.OffsetCommitRequestTopic.OffsetCommitRequestPartition
    request = kind(
        group_id=GROUP, generation_id_or_member_epoch=epoch, member_id=MEMBER if epoch >= 0 else "",
        topics=[kind.OffsetCommitRequestTopic(name="t", partitions=[part(
            partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata="")])])
    return int((await peer.call(request, version=9)).topics[0].partitions[0].error_code)


def test_a_late_commit_over_an_older_connection_is_not_answered() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        owner = world.owner_of_group(GROUP)
        older, newer = await world.peer(owner, fresh=True), await world.peer(owner, fresh=True)
        epoch = await join(newer)
        # franz-go joins over another connection than it commits: commits are compared with commits only.
        assert await commit(older, epoch, 10) == 0
        assert await commit(newer, epoch, 20) == 0
        with pytest.raises(PeerError):
            await commit(older, epoch, 11)
        assert await world.committed(GROUP, "t", 0) == (20, 0)
        # A client that was alive on it connects again.
        assert await commit(await world.peer(owner, fresh=True), epoch, 15) == 0
        assert await world.committed(GROUP, "t", 0) == (15, 0)
        counted = world.coordinator(owner).shards.group_shard(GROUP).resources.counters.fencings
        assert counted.labels("older_connection").value == 1

    run(scenario)


def test_a_new_owner_hears_members_that_it_finds_over_newer_connections_only() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        former = world.owner_of_group(GROUP)
        epoch = await join(await world.peer(former))
        assert await commit(await world.peer(former), epoch, 10) == 0
        (heir,) = (name for name in world.coordinators() if name != former)
        before = await world.peer(heir)
        assert before is not None
        await world.stop(former)
        await world.group_moved_from(former, GROUP)
        with pytest.raises(PeerError):
            await commit(before, epoch, 9)
        assert await world.committed(GROUP, "t", 0) == (10, 0)
        assert await commit(await world.peer(heir, fresh=True), epoch, 11) == 0
        assert await world.committed(GROUP, "t", 0) == (11, 0)

    run(scenario)


def test_commits_that_name_no_member_are_not_ordered() -> None:
    """They may come from several processes: tools, and consumers that chose their partitions themselves."""

    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        owner = world.owner_of_group(GROUP)
        older, newer = await world.peer(owner, fresh=True), await world.peer(owner, fresh=True)
        assert await commit(newer, -1, 20) == 0
        assert await commit(older, -1, 10) == 0
        assert await world.committed(GROUP, "t", 0) == (10, 0)

    run(scenario)
