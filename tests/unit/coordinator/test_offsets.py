"""Committed offsets against a whole cluster on virtual time."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from hapax.coordinator.log_writer import Unit
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group import removals
from hapax.core.group.offsets import CommitRequest, OffsetCommit, TxnOffsetCommit
from hapax.core.group.values import Answer, ConsumerGroupHeartbeat, ConsumerHeartbeatAnswer
from hapax.core.types import Offset, PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from hapax.wire import messages
from hapax.wire.peer import PeerError
from unit.coordinator.coordinator_world import OFFSETS_TOPIC, CoordinatorWorld, run, shard_of

OTHER_TOPIC = UUID(int=7)
ID, GROUP = "app", "readers"


async def offsets_pending(world: CoordinatorWorld, offset: int = 20) -> tuple[int, int]:
    """A version-2 producer with an offset in its open transaction, over a committed 10."""
    assert await world.commit_offset(GROUP, "t", 0, 10) == 0
    me = await world.init(ID)
    assert await world.txn_commit_offset(ID, me, GROUP, "t", offset) == 0
    return me


async def add_offsets(world: CoordinatorWorld, identity: tuple[int, int]) -> int:
    request = messages.AddOffsetsToTxnRequest(
        transactional_id=ID, producer_id=identity[0], producer_epoch=identity[1], group_id=GROUP
    )
    return int((await world.to_coordinator(ID, request, 3)).error_code)


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_of_a_transaction_count_from_its_commit_on(commit: bool) -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        me = await offsets_pending(world)
        assert await world.committed(GROUP, "t", 0) == (10, 0)
        assert await world.committed(GROUP, "t", 0, stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        assert (await world.end(ID, me, commit, version=5)).error_code == 0
        await world.settled(GROUP, "t")
        assert await world.committed(GROUP, "t", 0, stable=True) == (20 if commit else 10, 0)

    run(scenario)


def test_the_next_transaction_waits_for_the_markers_of_offsets() -> None:
    """Rule 2: COMPLETE waits until the group shard has replayed the marker."""

    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        group = world.group_apart_from(ID)
        me = await world.init(ID)
        assert await world.txn_commit_offset(ID, me, group, "t", 20) == 0
        world.cluster.world.blocked_methods.add("WriteOffsetsMarkers")
        ended = await world.end(ID, me, True, version=5)
        me = (ended.producer_id, ended.producer_epoch)
        refused = await world.txn_commit_offset(ID, me, group, "t", 30)
        assert refused == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await world.committed(group, "t", 0, stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        world.cluster.world.blocked_methods.clear()
        await world.settled(group, "t")
        assert await world.committed(group, "t", 0, stable=True) == (20, 0)
        assert await world.txn_commit_offset(ID, me, group, "t", 30) == 0

    run(scenario)


@pytest.mark.parametrize("dies", ["with pending offsets", "after the decision"])
def test_pending_offsets_survive_the_group_coordinator(dies: str) -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        group = world.group_apart_from(ID)
        assert await world.commit_offset(group, "t", 0, 10) == 0
        me = await world.init(ID)
        assert await world.txn_commit_offset(ID, me, group, "t", 20) == 0
        if dies == "after the decision":
            world.cluster.world.blocked_methods.add("WriteOffsetsMarkers")
            assert (await world.end(ID, me, True, version=5)).error_code == 0
        former = world.owner_of_group(group)
        world.cluster.kill(former, restart=False)
        await world.group_moved_from(former, group)
        if dies == "with pending offsets":
            assert await world.committed(group, "t", 0, stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            assert (await world.end(ID, me, True, version=5)).error_code == 0
        world.cluster.world.blocked_methods.clear()
        await world.settled(group, "t")
        assert await world.committed(group, "t", 0, stable=True) == (20, 0)

    run(scenario)


def test_an_owner_that_was_frozen_never_answers_with_an_old_offset() -> None:
    """Rule 12. The frozen process has the call in its hands before it learns that another took its shards over."""

    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        assert await world.commit_offset(GROUP, "t", 0, 10) == 0
        former = world.owner_of_group(GROUP)
        process = world.cluster.nodes[former].process
        assert process is not None
        kind = messages.OffsetFetchRequest
        request = kind(group_id=GROUP, require_stable=False, topics=[
            kind.OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
        peer = await world.peer(former)
        world.cluster.nodes[former].wanted = False
        world.loop.freeze(process)
        asked = peer.submit(request, version=7)
        await world.group_moved_from(former, GROUP)
        assert await world.to_group(GROUP, _commit(99), 8)
        world.loop.thaw(process)
        try:
            answer = await asked
        except PeerError:
            return
        assert answer.error_code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), answer

    def _commit(offset: int) -> object:
        kind = messages.OffsetCommitRequest
        part = kind.OffsetCommitRequestTopic.OffsetCommitRequestPartition
        return kind(group_id=GROUP, generation_id_or_member_epoch=-1, member_id="", topics=[
            kind.OffsetCommitRequestTopic(name="t", partitions=[part(
                partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata="")])])

    run(scenario, exits_allowed=True)


def test_offsets_after_the_transaction_has_ended_are_refused() -> None:
    """KAFKA-9144 for offsets: a version-1 producer's late TxnOffsetCommit would hang in the group for ever."""

    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        me = await world.init(ID)
        assert await world.txn_commit_offset(ID, me, GROUP, "t", 5, version=3) == ErrorCode.INVALID_TXN_STATE
        assert await add_offsets(world, me) == 0
        assert await world.txn_commit_offset(ID, me, GROUP, "t", 5, version=3) == 0
        assert (await world.end(ID, me, True)).error_code == 0
        await world.settled(GROUP, "t")
        assert await world.txn_commit_offset(ID, me, GROUP, "t", 6, version=3) == ErrorCode.INVALID_TXN_STATE
        assert await world.txn_commit_offset(ID, me, GROUP, "t", 6, version=4) == ErrorCode.TRANSACTION_ABORTABLE
        assert await world.committed(GROUP, "t", 0, stable=True) == (5, 0)
        heir = await world.init(ID)
        assert await world.txn_commit_offset(ID, me, GROUP, "t", 7) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await world.txn_commit_offset(ID, heir, GROUP, "t", 8) == 0

    run(scenario)


@pytest.mark.parametrize("direction", ["the append is lost", "its answer is lost"])
def test_a_commit_of_unknown_outcome_is_not_answered_as_done(direction: str) -> None:
    """redpanda#9571: an error told after a commit that was stored, then the old offset fetched. Either the client is
    told that it worked, or the next fetch shows what the log holds."""

    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        assert await world.commit_offset(GROUP, "t", 0, 10) == 0
        owner = world.owner_of_group(GROUP)
        source, target = (owner, "broker-0") if direction == "the append is lost" else ("broker-0", owner)
        with world.cut(source, target):
            assert await world.commit_offset(GROUP, "t", 0, 20) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        stored = len(await world.logged(OFFSETS_TOPIC, shard_of(GROUP, 4)))
        offset, error = await world.committed(GROUP, "t", 0)
        assert (offset, error) == ((10, 0) if stored == 1 else (20, 0))

    run(scenario)


def test_offsets_of_a_deleted_topic_do_not_come_back_with_its_name() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        assert await world.commit_offset(GROUP, "t", 0, 10) == 0
        await world.delete_topic("t")
        assert await world.commit_offset(GROUP, "t", 0, 11) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await world.create_topics(("t", 1))
        assert await world.committed(GROUP, "t", 0) == (-1, 0)
        key, value = (await world.logged(OFFSETS_TOPIC, shard_of(GROUP, 4)))[-1]
        assert key and value is None, "a tombstone"

    run(scenario)


def test_offsets_expire() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        assert await world.commit_offset(GROUP, "t", 0, 10) == 0
        began = world.loop.time()

        async def forgotten() -> bool:
            return await world.committed(GROUP, "t", 0) == (-1, 0)

        await world.cluster.wait_until(forgotten, "the offset is forgotten", 200)
        assert 60 <= world.loop.time() - began < 63

    run(scenario, settings=("offsets.retention.minutes=1", "offsets.retention.check.interval.ms=1000"))


def test_a_group_without_a_name_and_a_topic_without_being() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        me = await world.init(ID)
        assert await world.txn_commit_offset(ID, me, "", "t", 1) == ErrorCode.INVALID_GROUP_ID
        assert await world.txn_commit_offset(ID, me, GROUP, "u", 1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await world.commit_offset(GROUP, "u", 0, 1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await world.commit_offset("", "t", 0, 1) == 0, "Kafka takes offsets of the empty group"

    run(scenario)


def test_a_topic_named_by_an_id_that_does_not_exist() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        kind = messages.OffsetCommitRequest
        part = kind.OffsetCommitRequestTopic.OffsetCommitRequestPartition
        for topic_id in (OTHER_TOPIC, UUID(int=0)):
            request = kind(group_id=GROUP, generation_id_or_member_epoch=-1, member_id="", topics=[
                kind.OffsetCommitRequestTopic(topic_id=topic_id, partitions=[part(
                    partition_index=0, committed_offset=1, committed_leader_epoch=-1, committed_metadata="")])])
            response = await world.to_group(GROUP, request, 10)
            assert response.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID, topic_id
            group = messages.OffsetFetchRequest.OffsetFetchRequestGroup
            asked = messages.OffsetFetchRequest(require_stable=True, groups=[group(
                group_id=GROUP, member_id=None, member_epoch=-1,
                topics=[group.OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])])])
            (answered,) = (await world.to_group(GROUP, asked, 10)).groups
            assert answered.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID, topic_id

    run(scenario)


@pytest.mark.parametrize("of_bytes", [False, True])
def test_offsets_are_removed_in_several_appends(monkeypatch: pytest.MonkeyPatch, of_bytes: bool) -> None:
    """Each is decided after the former one is replayed, so an offset that was committed again stays."""
    monkeypatch.setattr(removals, "TOMBSTONE_BYTES_PER_APPEND" if of_bytes else "TOMBSTONES_PER_APPEND", 2)

    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 5))
        for partition in range(5):
            assert await world.commit_offset(GROUP, "t", partition, 10) == 0
        shard = world.coordinator(world.owner_of_group(GROUP)).shards.group_shard(GROUP)
        sizes: list[int] = []
        append = shard.append

        def appended(unit: Unit) -> None:
            sizes.append(len(unit.records))
            append(unit)

        monkeypatch.setattr(shard, "append", appended)
        await world.delete_topic("t")

        await world.cluster.wait_until(lambda: not shard.machine.has_offsets(GROUP), "no offset is left")
        assert sizes == ([1] * 5 if of_bytes else [2, 2, 1])

    run(scenario)


def test_an_offset_that_is_committed_again_while_others_expire_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removals, "TOMBSTONES_PER_APPEND", 1)

    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 3))
        for partition in range(3):
            assert await world.commit_offset(GROUP, "t", partition, 10) == 0
        shard = world.coordinator(world.owner_of_group(GROUP)).shards.group_shard(GROUP)
        committing: list[asyncio.Future[int]] = []
        append = shard.append

        def appended(unit: Unit) -> None:
            append(unit)
            if not committing:  # the first tombstone
                monkeypatch.setattr(shard, "append", append)
                committing.append(asyncio.ensure_future(world.commit_offset(GROUP, "t", 2, 20)))

        monkeypatch.setattr(shard, "append", appended)
        await world.cluster.wait_until(lambda: bool(committing), "the first offset expires", 200)
        assert await committing[0] == 0
        await world.cluster.wait_until(lambda: shard.machine.counts(GROUP)[0] == 1, "the others expire")
        assert await world.committed(GROUP, "t", 2) == (20, 0)

    run(scenario, settings=("offsets.retention.minutes=1", "offsets.retention.check.interval.ms=1000"))


@pytest.mark.parametrize("how", ["DeleteGroups", "OffsetDelete", "some"])
def test_offsets_are_deleted_on_request_in_several_appends(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """One append for a group with the offsets of 15,000 partitions would be refused as too large."""
    monkeypatch.setattr(removals, "TOMBSTONES_PER_APPEND", 2)

    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 5))
        for partition in range(5):
            assert await world.commit_offset(GROUP, "t", partition, 10) == 0
        shard = world.coordinator(world.owner_of_group(GROUP)).shards.group_shard(GROUP)
        sizes: list[int] = []
        append = shard.append

        def appended(unit: Unit) -> None:
            sizes.append(len(unit.records))
            append(unit)

        monkeypatch.setattr(shard, "append", appended)
        every = [TopicPartition("t", PartitionIndex(partition)) for partition in range(5)]
        if how == "DeleteGroups":
            assert await shard.delete_group(GROUP) is ErrorCode.NONE
        elif how == "OffsetDelete":
            assert await shard.delete_group_offsets(GROUP, every) == [ErrorCode.NONE] * 5
        else:
            assert await shard.delete_offsets(GROUP, every) == 5
        assert not shard.machine.has_offsets(GROUP) and sizes == [2, 2, 1]

    run(scenario)


def test_offsets_of_a_member_that_joins_while_others_are_deleted_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removals, "TOMBSTONES_PER_APPEND", 1)

    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 3))
        for partition in range(3):
            assert await world.commit_offset(GROUP, "t", partition, 10) == 0
        shard = world.coordinator(world.owner_of_group(GROUP)).shards.group_shard(GROUP)
        append = shard.append
        found: list[asyncio.Future[Answer]] = []
        heartbeat = ConsumerGroupHeartbeat(
            1, GROUP, "m", 0, None, None, 60_000, ("t",), None, None, (), "c", "/h", "uuid")

        def appended(unit: Unit) -> None:
            append(unit)
            if not found:  # the first tombstone
                found.append(asyncio.ensure_future(shard.ask(heartbeat)))

        monkeypatch.setattr(shard, "append", appended)
        every = [TopicPartition("t", PartitionIndex(partition)) for partition in range(3)]
        codes = await shard.delete_group_offsets(GROUP, every)
        joined = await found[0]
        assert isinstance(joined, ConsumerHeartbeatAnswer) and joined.error is ErrorCode.NONE
        subscribed = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        assert codes in ([ErrorCode.NONE, subscribed, subscribed], [ErrorCode.NONE, ErrorCode.NONE, subscribed])
        for partition, code in enumerate(codes):
            assert await world.committed(GROUP, "t", partition) == (10 if code else -1, 0)

    run(scenario)


def test_a_commit_while_its_group_is_deleted_is_kept_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the position of a whole program. Were it stored between two appends of the deletion, its offsets whose
    tombstones come later would be gone after it was confirmed: their records would be copied twice."""
    monkeypatch.setattr(removals, "TOMBSTONES_PER_APPEND", 1)

    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 3))
        for partition in range(3):
            assert await world.commit_offset(GROUP, "t", partition, 10) == 0
        shard = world.coordinator(world.owner_of_group(GROUP)).shards.group_shard(GROUP)
        append = shard.append
        commits: list[asyncio.Future[list[ErrorCode]]] = []
        request = OffsetCommit(GROUP, -1, "", None, tuple(
            CommitRequest(TopicPartition("t", PartitionIndex(partition)), Offset(20), -1, "") for partition in (0, 2)))

        async def commit() -> list[ErrorCode]:
            while True:
                try:
                    return list(await shard.offset_commit(request))
                except Refusal as refusal:
                    assert refusal.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                await asyncio.sleep(0.001)

        def appended(unit: Unit) -> None:
            append(unit)
            if not commits:  # the first tombstone
                commits.append(asyncio.ensure_future(commit()))

        monkeypatch.setattr(shard, "append", appended)
        assert await shard.delete_group(GROUP) is ErrorCode.NONE
        assert await commits[0] == [ErrorCode.NONE] * 2
        assert [await world.committed(GROUP, "t", each) for each in range(3)] == [(20, 0), (-1, 0), (20, 0)]

    run(scenario)


def test_a_commit_that_is_under_way_is_not_torn_by_the_deletion_of_its_group() -> None:
    """The deletion would remove the offset of partition 0, which it knows, and leave that of partition 1."""

    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        assert await world.commit_offset(GROUP, "t", 0, 10) == 0
        shard = world.coordinator(world.owner_of_group(GROUP)).shards.group_shard(GROUP)
        request = OffsetCommit(GROUP, -1, "", None, tuple(
            CommitRequest(TopicPartition("t", PartitionIndex(partition)), Offset(20), -1, "") for partition in (0, 1)))
        commit = asyncio.ensure_future(shard.offset_commit(request))
        await asyncio.sleep(0)
        assert not commit.done()
        with pytest.raises(Refusal) as refused:
            await shard.delete_group(GROUP)
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert list(await commit) == [ErrorCode.NONE] * 2
        assert [await world.committed(GROUP, "t", each) for each in range(2)] == [(20, 0), (20, 0)]
        assert await shard.delete_group(GROUP) is ErrorCode.NONE
        assert [await world.committed(GROUP, "t", each) for each in range(2)] == [(-1, 0), (-1, 0)]

    run(scenario)


@pytest.mark.parametrize("how", ["OffsetDelete", "ResetGroup"])
def test_a_commit_while_offsets_of_its_group_are_deleted_is_kept_whole(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """As with the deletion of a whole group: stored between two appends, it would lose a part of its offsets."""
    monkeypatch.setattr(removals, "TOMBSTONES_PER_APPEND", 1)

    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 3))
        for partition in range(3):
            assert await world.commit_offset(GROUP, "t", partition, 10) == 0
        shard = world.coordinator(world.owner_of_group(GROUP)).shards.group_shard(GROUP)
        append = shard.append
        commits: list[asyncio.Future[list[ErrorCode]]] = []
        refusals = []
        every = [TopicPartition("t", PartitionIndex(partition)) for partition in range(3)]
        request = OffsetCommit(GROUP, -1, "", None, tuple(
            CommitRequest(each, Offset(20), -1, "") for each in (every[0], every[2])))

        async def commit() -> list[ErrorCode]:
            while True:
                try:
                    return list(await shard.offset_commit(request))
                except Refusal as refusal:
                    assert refusal.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                    refusals.append(refusal)
                await asyncio.sleep(0.001)

        def appended(unit: Unit) -> None:
            append(unit)
            if not commits:  # the first tombstone
                commits.append(asyncio.ensure_future(commit()))

        monkeypatch.setattr(shard, "append", appended)
        if how == "OffsetDelete":
            assert await shard.delete_group_offsets(GROUP, every) == [ErrorCode.NONE] * 3
        else:
            assert await shard.delete_offsets(GROUP, every) == 3
        assert await commits[0] == [ErrorCode.NONE] * 2 and refusals
        assert [await world.committed(GROUP, "t", each) for each in range(3)] == [(20, 0), (-1, 0), (20, 0)]

    run(scenario)


def test_offsets_are_not_deleted_in_several_appends_while_some_of_the_group_are_being_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(removals, "TOMBSTONES_PER_APPEND", 1)

    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        every = [TopicPartition("t", PartitionIndex(partition)) for partition in range(2)]
        for partition in range(2):
            assert await world.commit_offset(GROUP, "t", partition, 10) == 0
        shard = world.coordinator(world.owner_of_group(GROUP)).shards.group_shard(GROUP)
        commit = asyncio.ensure_future(shard.offset_commit(
            OffsetCommit(GROUP, -1, "", None, tuple(CommitRequest(each, Offset(20), -1, "") for each in every))))
        await asyncio.sleep(0)
        with pytest.raises(Refusal) as refused:
            await shard.delete_group_offsets(GROUP, every)
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert list(await commit) == [ErrorCode.NONE] * 2
        assert await shard.delete_group_offsets(GROUP, every) == [ErrorCode.NONE] * 2

    run(scenario)


@pytest.mark.parametrize("how", ["OffsetDelete", "ResetGroup"])
def test_a_commit_that_is_being_stored_is_deleted_whole(how: str) -> None:
    """Its offsets are deleted also for partitions that had none before: the deletion stands behind it in the log."""

    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 3))
        every = [TopicPartition("t", PartitionIndex(partition)) for partition in range(3)]
        assert await world.commit_offset(GROUP, "t", 0, 10) == 0
        shard = world.coordinator(world.owner_of_group(GROUP)).shards.group_shard(GROUP)
        commit = asyncio.ensure_future(shard.offset_commit(
            OffsetCommit(GROUP, -1, "", None, tuple(CommitRequest(each, Offset(20), -1, "") for each in every))))
        await asyncio.sleep(0)
        if how == "OffsetDelete":
            assert await shard.delete_group_offsets(GROUP, every[:2]) == [ErrorCode.NONE] * 2
        else:
            assert await shard.delete_offsets(GROUP, every[:2]) == 2
        assert list(await commit) == [ErrorCode.NONE] * 3
        assert [await world.committed(GROUP, "t", each) for each in range(3)] == [(-1, 0), (-1, 0), (20, 0)]

    run(scenario)


def test_an_offset_of_a_transaction_that_is_being_stored_is_not_deleted_by_a_reset() -> None:
    """The reset refuses offsets that an open transaction is about to commit. One that is on its way is one of them."""

    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 2))
        producer_id, epoch = await offsets_pending(world)
        shard = world.coordinator(world.owner_of_group(GROUP)).shards.group_shard(GROUP)
        other = TopicPartition("t", PartitionIndex(1))
        commit = asyncio.ensure_future(shard.txn_offset_commit(TxnOffsetCommit(
            ID, GROUP, ProducerId(producer_id), ProducerEpoch(epoch), -1, "", None,
            (CommitRequest(other, Offset(30), -1, ""),)), 1, 2))
        await asyncio.sleep(0)
        with pytest.raises(Refusal) as refused:
            await shard.delete_offsets(GROUP, [other])
        assert refused.value.code is ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert list(await commit) == [ErrorCode.NONE]
        assert (await world.end(ID, (producer_id, epoch), True, version=5)).error_code == 0
        await world.settled(GROUP, "t")
        assert [await world.committed(GROUP, "t", each, stable=True) for each in range(2)] == [(20, 0), (30, 0)]

    run(scenario)
