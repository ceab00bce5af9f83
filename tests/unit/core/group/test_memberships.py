"""What a shard's memberships add to its groups: one event and one write at a time, and groups that change kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group import removals
from hapax.core.group.classic import ClassicGroup
from hapax.core.group.consumer import ConsumerGroup
from hapax.core.group.machine import GroupShard
from hapax.core.group.offsets import CommitRequest, CommittedOffset, OffsetCommit, OffsetRecord, TxnOffsetCommit
from hapax.core.group.values import (
    Answer,
    CallId,
    ClassicGroupRecord,
    ConsumerGroupHeartbeat,
    ConsumerHeartbeatAnswer,
    GroupEpochRecord,
    GroupLimits,
    Heartbeat,
    HeartbeatAnswer,
    JoinAnswer,
    JoinGroup,
    LeaveAnswer,
    LeaveGroup,
    LeavingMember,
    MembershipRecord,
    Outcome,
    OwnedTopic,
    ProtocolOffer,
    RemovalAnswer,
    SyncAnswer,
    SyncGroup,
    TopicFacts,
    Write,
)
from hapax.core.types import (
    Millis,
    Now,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicId,
    TopicPartition,
)

T0 = TopicPartition("t", PartitionIndex(0))


class OneTopic:
    version = 1
    facts = TopicFacts("t", TopicId(b"t" * 16), 4)

    def topic(self, name: str) -> TopicFacts | None:
        return self.facts if name == "t" else None

    def topic_by_id(self, topic_id: TopicId) -> TopicFacts | None:
        return self.facts if topic_id == self.facts.topic_id else None


class World:
    """A shard whose writes are stored when the test says so."""

    def __init__(self) -> None:
        self.limits = GroupLimits(initial_rebalance_delay_ms=0, min_session_timeout_ms=1)
        self.shard = self.made()
        self.log: list[MembershipRecord | OffsetRecord] = []
        self.writes: list[Write] = []
        self.answers: dict[CallId, Answer] = {}
        self.calls = 0
        self.ms = 1_000

    def made(self) -> GroupShard:
        return GroupShard(limits=self.limits, topics=OneTopic())

    @property
    def now(self) -> Now:
        return Now(Millis(self.ms), TimestampMs(self.ms))

    def take(self, outcome: Outcome) -> None:
        for call, answer in outcome.answers:
            assert call not in self.answers, "answered twice"
            self.answers[call] = answer
        self.writes += outcome.writes

    def call(self, request: object) -> CallId:
        self.calls += 1
        call = CallId(self.calls)
        self.take(self.shard.memberships.call(call, request, self.now))  # type: ignore[arg-type]
        return call

    def store(self) -> None:
        """All writes, and those that they lead to."""
        while self.writes:
            write = self.writes.pop(0)
            first = len(self.log)
            self.log += write.records
            self.take(self.shard.stored(write.group, Offset(first), self.now))

    def refuse(self, code: ErrorCode) -> None:
        self.take(self.shard.memberships.refused(self.writes.pop(0).group, code, self.now))

    def asked(self, request: object) -> Answer:
        call = self.call(request)
        self.store()
        return self.answers[call]

    def reloaded(self) -> GroupShard:
        made = self.made()
        for at, record in enumerate(self.log):
            made.replay(record, Offset(at))
        made.memberships.loaded(self.now)
        return made

    def compact(self) -> None:
        """Only the newest record of each key is left, where it is in the log."""
        newest = {(type(record), record[:-1]): at for at, record in enumerate(self.log)}
        kept = set(newest.values())
        self.log = [record for at, record in enumerate(self.log) if at in kept]


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.store()
    assert kinds(made.reloaded()) == kinds(made.shard)


def kinds(shard: GroupShard) -> dict[str, type]:
    return {group_id: type(shard.memberships.get(group_id)) for group_id in shard.groups()}


def join(member_id: str = "", version: int = 3, group: str = "g") -> JoinGroup:
    return JoinGroup(
        version, group, member_id, None, "consumer", (ProtocolOffer("range", b""),), 10_000, 10_000, "c", "/h", "uuid")


def beat(member_id: str, epoch: int, group: str = "g") -> ConsumerGroupHeartbeat:
    joins = epoch == 0
    return ConsumerGroupHeartbeat(
        1, group, member_id, epoch, None, None, 10_000 if joins else -1, ("t",) if joins else None, None, None,
        () if joins else None, "c", "/h", "uuid")


def joined(world: World, group: str = "g") -> JoinAnswer:
    answer = world.asked(join(group=group))
    assert isinstance(answer, JoinAnswer) and answer.error is ErrorCode.NONE
    return answer


def test_events_wait_for_the_write_in_their_order(world: World) -> None:
    me = joined(world)
    sync = world.call(SyncGroup(3, "g", me.generation, me.member_id, None, None, None, ((me.member_id, b"all"),)))
    leave = world.call(LeaveGroup(3, "g", (LeavingMember(me.member_id, None),)))
    again = world.call(SyncGroup(3, "g", me.generation, me.member_id, None, None, None, ()))
    assert not {sync, leave, again} & set(world.answers) and len(world.writes) == 1
    # A heartbeat does not wait: the log may be slow for longer than a session.
    assert world.asked is not None
    beat_call = world.call(Heartbeat("g", me.generation, me.member_id, None))
    assert world.answers[beat_call] == HeartbeatAnswer(ErrorCode.NONE)
    world.store()
    assert world.answers[sync] == SyncAnswer(ErrorCode.NONE, "consumer", "range", b"all")
    assert world.answers[leave] == LeaveAnswer(ErrorCode.NONE, (ErrorCode.NONE,))
    assert world.answers[again] == SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID)


def test_a_deadline_that_passes_during_a_write_is_kept(world: World) -> None:
    me = joined(world)
    world.call(SyncGroup(3, "g", me.generation, me.member_id, None, None, None, ((me.member_id, b"all"),)))
    world.ms += 60_000
    world.take(world.shard.memberships.due(world.now))
    assert len(world.writes) == 1
    world.store()  # the answer renews the session: the deadline was an earlier one
    group = world.shard.memberships.get("g")
    assert isinstance(group, ClassicGroup) and len(group.members) == 1
    world.ms += 60_000
    world.take(world.shard.memberships.due(world.now))
    world.store()
    assert group.is_empty()


def test_a_refused_write_leaves_no_group_behind(world: World) -> None:
    call = world.call(join())
    world.refuse(ErrorCode.MESSAGE_TOO_LARGE)
    assert world.answers[call].error is not ErrorCode.NONE
    assert world.shard.memberships.get("g") is None and list(world.shard.groups()) == []
    call = world.call(beat("m", 0))
    world.refuse(ErrorCode.MESSAGE_TOO_LARGE)
    assert world.answers[call].error is not ErrorCode.NONE and list(world.shard.groups()) == []


@pytest.mark.parametrize(("request_", "code"), [
    (join("m"), ErrorCode.UNKNOWN_MEMBER_ID),
    (Heartbeat("g", 1, "m", None), ErrorCode.UNKNOWN_MEMBER_ID),
    (SyncGroup(3, "g", 1, "m", None, None, None, ()), ErrorCode.UNKNOWN_MEMBER_ID),
    (beat("m", 5), ErrorCode.GROUP_ID_NOT_FOUND),
    (beat("m", -1), ErrorCode.GROUP_ID_NOT_FOUND),
])  # fmt: skip
def test_a_group_that_does_not_exist(world: World, request_: object, code: ErrorCode) -> None:
    assert world.asked(request_).error is code
    assert list(world.shard.groups()) == [] and not world.log


def test_an_empty_group_becomes_one_of_the_other_protocol_in_one_write(world: World) -> None:
    me = joined(world)
    refused = world.asked(beat("m", 0))
    assert isinstance(refused, ConsumerHeartbeatAnswer)
    assert world.asked(LeaveGroup(3, "g", (LeavingMember(me.member_id, None),))).error is ErrorCode.NONE
    call = world.call(beat("m", 0))
    (write,) = world.writes
    assert ClassicGroupRecord("g", None) in write.records
    assert isinstance(world.shard.memberships.get("g"), ClassicGroup)
    world.store()
    answer = world.answers[call]
    assert isinstance(answer, ConsumerHeartbeatAnswer) and answer.error is ErrorCode.NONE and answer.member_epoch > 0
    assert isinstance(world.shard.memberships.get("g"), ConsumerGroup)

    assert world.asked(beat("m", -1)).error is ErrorCode.NONE
    call = world.call(join())
    (write,) = world.writes
    assert GroupEpochRecord("g", None) in write.records
    world.store()
    assert world.answers[call].error is ErrorCode.NONE
    assert isinstance(world.shard.memberships.get("g"), ClassicGroup)


def test_a_refused_change_of_kind_leaves_the_group_as_it_was(world: World) -> None:
    me = joined(world)
    world.asked(LeaveGroup(3, "g", (LeavingMember(me.member_id, None),)))
    call = world.call(beat("m", 0))
    waits = world.call(join())
    world.refuse(ErrorCode.MESSAGE_TOO_LARGE)
    assert world.answers[call].error is not ErrorCode.NONE
    world.store()
    assert world.answers[waits].error is ErrorCode.NONE
    assert isinstance(world.shard.memberships.get("g"), ClassicGroup)


def test_a_group_is_deleted_with_its_offsets_once_it_is_empty(world: World) -> None:
    me = joined(world)
    world.log.append(OffsetRecord("g", T0, CommittedOffset(Offset(5), -1, "", TimestampMs(1))))
    world.shard.replay_offset(world.log[-1], Offset(len(world.log) - 1))
    call = CallId(900)
    with pytest.raises(Refusal) as refused:
        world.shard.delete_group(call, "g", world.now)
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
    world.asked(LeaveGroup(3, "g", (LeavingMember(me.member_id, None),)))
    world.take(world.shard.delete_group(call, "g", world.now))
    (write,) = world.writes
    assert len(write.records) == 2
    new = world.call(join())  # it waits, and makes the group again
    world.store()
    assert world.answers[call] == RemovalAnswer(ErrorCode.NONE) and world.answers[new].error is ErrorCode.NONE
    assert not world.shard.has_offsets("g")
    with pytest.raises(Refusal) as refused:
        world.shard.delete_group(CallId(901), "h", world.now)
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_with_many_offsets_is_deleted_in_several_writes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its other events wait for the last one. If one is refused, the group is there as before."""
    monkeypatch.setattr(removals, "TOMBSTONES_PER_APPEND", 2)
    me = joined(world)
    world.asked(LeaveGroup(3, "g", (LeavingMember(me.member_id, None),)))
    for partition in range(4):
        each = OffsetRecord(
            "g", TopicPartition("t", PartitionIndex(partition)), CommittedOffset(Offset(5), -1, "", TimestampMs(1)))
        world.shard.replay_offset(each, Offset(len(world.log)))
        world.log.append(each)
    world.take(world.shard.delete_group(CallId(900), "g", world.now))
    assert [len(write.records) for write in world.writes] == [2]
    world.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert not world.writes
    assert isinstance(world.answers[CallId(900)], RemovalAnswer)
    assert world.answers[CallId(900)].error is not ErrorCode.NONE

    world.take(world.shard.delete_group(CallId(901), "g", world.now))
    new = world.call(join())
    (first,) = world.writes
    assert not any(isinstance(record, ClassicGroupRecord) for record in first.records)
    world.writes.clear()
    world.log += first.records
    world.take(world.shard.stored("g", Offset(len(world.log) - len(first.records)), world.now))
    assert CallId(901) not in world.answers and new not in world.answers
    (last,) = world.writes
    assert len(last.records) == 3 and isinstance(last.records[-1], ClassicGroupRecord)
    world.store()
    assert world.answers[CallId(901)] == RemovalAnswer(ErrorCode.NONE)
    assert world.answers[new].error is ErrorCode.NONE
    assert not world.shard.has_offsets("g")


@pytest.mark.parametrize("transactional", [False, True])
def test_offsets_are_not_committed_between_two_writes_of_a_deletion(
    world: World, monkeypatch: pytest.MonkeyPatch, transactional: bool
) -> None:
    """The tombstones to come would remove a part of them. Before the first and after the last write they are whole."""
    monkeypatch.setattr(removals, "TOMBSTONES_PER_APPEND", 1)
    places = [TopicPartition("t", PartitionIndex(partition)) for partition in range(2)]
    for each in places:
        record = OffsetRecord("g", each, CommittedOffset(Offset(5), -1, "", TimestampMs(1)))
        world.shard.replay_offset(record, Offset(len(world.log)))
        world.log.append(record)
    wanted = tuple(CommitRequest(each, Offset(9), -1, "") for each in places)

    def commit() -> int:
        if transactional:
            request = TxnOffsetCommit("", "g", ProducerId(1), ProducerEpoch(0), -1, "", None, wanted)
            return len(world.shard.decide_txn_offset_commit(request, world.now).records)
        return len(world.shard.decide_offset_commit(OffsetCommit("g", -1, "", None, wanted), world.now).records)

    assert commit() == 2
    world.take(world.shard.delete_group(CallId(900), "g", world.now))
    with pytest.raises(Refusal) as refused:
        commit()
    assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    (first,) = world.writes
    world.writes.clear()
    world.log += first.records
    world.take(world.shard.stored("g", Offset(len(world.log) - 1), world.now))
    assert commit() == 2, "nothing comes after the last"
    world.store()
    assert world.answers[CallId(900)] == RemovalAnswer(ErrorCode.NONE)
    assert [each.partition for each in first.records if isinstance(each, OffsetRecord)] == places[:1]


def test_offsets_are_committed_once_a_deletion_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removals, "TOMBSTONES_PER_APPEND", 1)
    places = [TopicPartition("t", PartitionIndex(partition)) for partition in range(2)]
    for each in places:
        record = OffsetRecord("g", each, CommittedOffset(Offset(5), -1, "", TimestampMs(1)))
        world.shard.replay_offset(record, Offset(len(world.log)))
        world.log.append(record)
    world.take(world.shard.delete_group(CallId(900), "g", world.now))
    world.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    request = OffsetCommit("g", -1, "", None, (CommitRequest(places[1], Offset(9), -1, ""),))
    assert len(world.shard.decide_offset_commit(request, world.now).records) == 1


def test_an_empty_group_without_offsets_goes(world: World) -> None:
    for group in ("g", "h", "k"):
        me = joined(world, group)
        if group != "k":
            world.asked(LeaveGroup(3, group, (LeavingMember(me.member_id, None),)))
    world.log.append(OffsetRecord("h", T0, CommittedOffset(Offset(5), -1, "", TimestampMs(1))))
    world.shard.replay_offset(world.log[-1], Offset(len(world.log) - 1))
    world.take(world.shard.expire_groups())
    assert [write.group for write in world.writes] == ["g"]
    world.store()
    assert sorted(world.shard.groups()) == ["h", "k"]


def test_a_partition_has_one_owner_after_a_load_of_a_compacted_log(world: World) -> None:
    def told(request: object) -> ConsumerHeartbeatAnswer:
        world.ms += world.limits.consumer_assignment_interval_ms
        answer = world.asked(request)
        assert isinstance(answer, ConsumerHeartbeatAnswer) and answer.error is ErrorCode.NONE
        return answer

    former = told(beat("n", 0))
    assert former.assignment is not None and len(former.assignment) == 4
    told(replace(beat("n", former.member_epoch), rack_id="r"))  # its record follows that of its assignment
    new = told(beat("m", 0))
    assert new.assignment == frozenset()
    told(replace(beat("m", new.member_epoch), rack_id="r"))
    before = world.shard
    world.compact()
    world.shard = world.reloaded()
    assert world.shard.describe() == before.describe()
    assert not told(beat("m", 0)).assignment, "what the other member has not given up was given away"
    kept = told(replace(beat("n", former.member_epoch), owned=(OwnedTopic(OneTopic.facts.topic_id, (0, 1, 2, 3)),)))
    assert kept.assignment is not None and len(kept.assignment) == 2, "it keeps half of it"
