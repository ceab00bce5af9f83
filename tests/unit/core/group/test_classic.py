"""What a group of the classic protocol costs, refuses in a body that is no subscription, and leaves behind."""

from __future__ import annotations

import struct
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapax.core.errors import ErrorCode
from hapax.core.group.classic import ClassicGroup, ClassicState
from hapax.core.group.deadlines import Deadlines
from hapax.core.group.subscription import subscribed_topics, write_assignment
from hapax.core.group.values import (
    CallId,
    ClassicGroupValue,
    ClassicMemberValue,
    GroupLimits,
    Heartbeat,
    JoinAnswer,
    JoinGroup,
    ProtocolOffer,
    SyncAnswer,
    SyncGroup,
)
from hapax.core.types import Millis, Now, TimestampMs
from scenarios.machines.classic_shard import ClassicShard

LONG_MS = 300_000
names = st.lists(st.text("ab.é€", max_size=5), max_size=4)


def subscription(*topics: str, rest: bytes = b"\xff\xff\xff\xff") -> bytes:
    """Version 0 and what later versions have after the topics."""
    names = [topic.encode() for topic in topics]
    return b"".join((
        struct.pack(">hi", 0, len(names)), *(struct.pack(">h", len(name)) + name for name in names), rest,
    ))  # fmt: skip


def joins(member_id: str, fresh: int, metadata: bytes = b"", session_ms: int = 45_000) -> JoinGroup:
    return JoinGroup(
        7, "g", member_id, None, "consumer", (ProtocolOffer("range", metadata), ProtocolOffer("sticky", metadata)),
        session_ms, LONG_MS, "c", "/h", str(fresh),
    )  # fmt: skip


def stable(shard: ClassicShard, *metadata: bytes) -> list[str]:
    """Members with this metadata, in a stable group. Returns their ids."""
    ids = []
    for number, each in enumerate(metadata):
        shard.call(joins("", number, each))
        _, answer = shard.take_answers().pop()
        assert isinstance(answer, JoinAnswer)
        ids.append(answer.member_id)
        shard.call(joins(answer.member_id, -1, each))
    shard.pass_time(shard.now_ms + 6_000)
    for member_id in ids:
        shard.call(SyncGroup(5, "g", 1, member_id, None, "consumer", "range", tuple((each, b"a") for each in ids)))
    assert shard.group.state is ClassicState.STABLE
    shard.take_answers()
    return ids


def test_five_hundred_members_meet_within_a_second_of_processor_time() -> None:
    began = time.process_time()
    shard = ClassicShard(GroupLimits())
    ids = stable(shard, *[subscription("t", rest=bytes(400))] * 500)
    shard.call(joins(ids[0], -1))
    for member_id in ids[1:]:
        shard.call(joins(member_id, -1))
    answers = [answer for _, answer in shard.take_answers()]
    assert len(answers) == 500
    assert all(isinstance(answer, JoinAnswer) and answer.generation == 2 for answer in answers)
    assert time.process_time() - began < 1


def test_a_heartbeat_takes_microseconds() -> None:
    shard = ClassicShard(GroupLimits())
    ids = stable(shard, *[b""] * 100)
    beats = [Heartbeat("g", 1, member_id, None) for member_id in ids]
    now = shard.now()
    began = time.process_time()
    for number in range(20_000):
        shard.group.heartbeat(CallId(number), beats[number % 100], now)
    assert (time.process_time() - began) / 20_000 < 60e-6


def test_a_session_that_was_renewed_while_a_write_was_under_way_does_not_end() -> None:
    shard = ClassicShard(GroupLimits())
    first, second = stable(shard, b"", b"")
    shard.call(joins(first, -1))
    shard.call(joins(second, -1))
    shard.holds_writes = True
    shard.call(SyncGroup(5, "g", 2, first, None, "consumer", "range", ()))
    shard.pass_time(shard.now_ms + 45_000)  # the session of `second` has ended, and its end waits for the write
    shard.call(Heartbeat("g", 2, second, None))
    shard.store()
    assert shard.group.state is ClassicState.STABLE
    assert [member.member_id for member in shard.group.members] == [first, second]


@pytest.mark.parametrize("timeout_ms", [0, -(2**31)])
def test_a_round_without_a_timeout_in_which_nobody_waits_does_not_end_for_ever(timeout_ms: int) -> None:
    group, deadlines = ClassicGroup("g", GroupLimits(max_size=1), Deadlines()), Deadlines()
    group._deadlines = deadlines
    members = tuple(ClassicMemberValue(each, each, "c", "/h", 10, 60_000, b"", b"a") for each in ("i", "j"))
    group.replay(ClassicGroupValue("consumer", 3, "range", "i", TimestampMs(-1), members))
    for member in group.members:
        member.rebalance_timeout_ms = timeout_ms
    group.loaded(Now(Millis(0), TimestampMs(0)))  # there are too many members, so a round begins
    now, rounds = 0, 0
    while group.state is ClassicState.PREPARING and now < 50_000:
        now = max(now + 1, deadlines.next() or 0)  # a timer fires no sooner
        for deadline in deadlines.take_due(Millis(now)):
            rounds += 1
            group.due(deadline, Now(Millis(now), TimestampMs(now)))
    assert rounds < 100


def test_nothing_stays_of_a_group_that_is_unloaded() -> None:
    shard = ClassicShard(GroupLimits())
    ids = stable(shard, b"", b"", b"")
    shard.call(joins("", 7))
    shard.take_answers()
    shard.call(joins(ids[0], -1))
    shard.call(joins(ids[1], -1))
    refused = shard.group.unload()
    assert [answer.error for _, answer in refused] == [ErrorCode.NOT_COORDINATOR] * 2
    assert shard.deadlines.next() is None


def test_calls_that_wait_for_a_write_are_refused_when_the_group_is_unloaded() -> None:
    shard = ClassicShard(GroupLimits())
    first, second = stable(shard, b"", b"")
    shard.call(joins(first, -1))
    shard.call(joins(second, -1))
    shard.take_answers()
    shard.holds_writes = True
    shard.call(SyncGroup(5, "g", 2, second, None, "consumer", "range", ()))
    shard.call(SyncGroup(5, "g", 2, first, None, "consumer", "range", ()))
    refused = shard.group.unload()
    assert [type(answer) for _, answer in refused] == [SyncAnswer] * 2


def test_ten_thousand_ids_that_are_never_used_go_when_their_sessions_end() -> None:
    shard = ClassicShard(GroupLimits())
    for number in range(10_000):
        shard.call(joins("", number))
    shard.pass_time(45_000)
    assert not shard.group._pending
    assert shard.deadlines.next() is None


def test_the_subscribed_topics_are_those_of_the_members_of_the_generation() -> None:
    shard = ClassicShard(GroupLimits())
    first, _ = stable(shard, subscription("t", "u"), subscription("u", "v", rest=b""))
    assert shard.group.subscribed_topics() == {"t", "u", "v"}
    shard.call(joins(first, -1, subscription("w")))
    assert shard.group.subscribed_topics() == {"t", "u", "v"}  # the round has not ended


def test_topics_are_unknown_where_one_member_does_not_say_them() -> None:
    shard = ClassicShard(GroupLimits())
    stable(shard, subscription("t"), b"no subscription")
    assert shard.group.subscribed_topics() is None


def test_topics_are_known_after_a_failover() -> None:
    shard = ClassicShard(GroupLimits())
    stable(shard, subscription("t"), subscription("u"))
    shard.fail_over()
    assert shard.group.subscribed_topics() == {"t", "u"}


def test_a_record_without_a_rebalance_timeout_takes_the_session_timeout() -> None:
    """As Kafka's records before 0.10.1."""
    group = ClassicGroup("g", GroupLimits(), Deadlines())
    member = ClassicMemberValue("m", None, "c", "/h", -1, 9_000, b"", b"a")
    group.replay(ClassicGroupValue("consumer", 3, "range", "m", TimestampMs(-1), (member,)))
    assert [each.rebalance_timeout_ms for each in group.members] == [9_000]
    group.loaded(Now(Millis(0), TimestampMs(0)))
    assert group.state is ClassicState.STABLE


def test_of_several_records_the_last_one_counts() -> None:
    """A shard loads every record of a group that compaction has not removed."""
    group = ClassicGroup("g", GroupLimits(), Deadlines())
    for subscribed, session_ms in ((b"1", 6_000), (b"2", 9_000)):
        member = ClassicMemberValue("m", None, "c", "/h", LONG_MS, session_ms, subscribed, subscribed)
        value = ClassicGroupValue("consumer", 3, "range", "m", TimestampMs(7), (member,))
        group.replay(value)
    assert group.value() == value


@given(names, st.binary(max_size=8))
def test_topics_are_read_from_any_version(topics: list[str], rest: bytes) -> None:
    assert subscribed_topics(subscription(*topics, rest=rest)) == tuple(topics)


@given(names, st.data())
def test_a_subscription_that_is_cut_or_altered_raises_nothing(topics: list[str], data: st.DataObject) -> None:
    whole = bytearray(subscription(*topics, rest=b""))
    at = data.draw(st.integers(0, len(whole) - 1))
    assert subscribed_topics(bytes(whole[:at])) is None
    whole[at] = data.draw(st.integers(0, 255))
    subscribed_topics(bytes(whole))


@given(st.binary(max_size=40))
def test_any_bytes_are_a_subscription_or_none(metadata: bytes) -> None:
    found = subscribed_topics(metadata)
    assert found is None or subscription(*found, rest=b"")[2:] == metadata[2 : len(subscription(*found, rest=b""))]


LITTLE = GroupLimits(max_metadata_bytes=50_000)


def refusal_of(shard: ClassicShard, request: JoinGroup) -> ErrorCode:
    shard.call(request)
    answers = [answer for _, answer in shard.take_answers()]
    return answers[-1].error if answers else ErrorCode.NONE


def test_metadata_of_a_hundred_megabytes_are_refused() -> None:
    shard = ClassicShard(GroupLimits())
    assert refusal_of(shard, joins("", 1, bytes(50_000_000))) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert len(shard.group.members) == 0


def test_a_client_that_asks_for_ids_and_never_joins_takes_bounded_memory() -> None:
    shard = ClassicShard(LITTLE)
    codes = [refusal_of(shard, joins("", number)) for number in range(10_000)]
    assert codes.count(ErrorCode.MEMBER_ID_REQUIRED) < 50
    assert set(codes) == {ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.GROUP_MAX_SIZE_REACHED}
    shard.pass_time(shard.now_ms + 46_000)
    assert refusal_of(shard, joins("", 10_001)) is ErrorCode.MEMBER_ID_REQUIRED, "the ids have expired"


def test_a_client_that_joins_and_never_syncs_takes_bounded_memory() -> None:
    shard = ClassicShard(LITTLE)
    old = replace(joins("", 0, bytes(2_000)), version=3)  # joins at once
    refused = 0
    for number in range(10_000):
        refused += refusal_of(shard, replace(old, fresh_id=str(number))) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert len(shard.group.members) == 9 and refused == 9_991
    shard.pass_time(shard.now_ms + 2 * LONG_MS)
    assert refusal_of(shard, replace(old, fresh_id="again")) is ErrorCode.NONE, "they were removed"


def test_a_member_that_grows_beyond_the_limit_is_turned_away_and_leaves_its_room() -> None:
    shard = ClassicShard(LITTLE)
    ids = stable(shard, b"x", b"y")
    assert refusal_of(shard, joins(ids[1], -1, bytes(30_000))) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [member.member_id for member in shard.group.members] == ids[:1]
    assert refusal_of(shard, joins(ids[0], -1, bytes(20_000))) is ErrorCode.NONE


def test_a_new_coordinator_counts_the_same_members() -> None:
    shard = ClassicShard(LITTLE)
    stable(shard, bytes(1_000), bytes(1_000))
    shard.fail_over()
    assert shard.group._roster.bytes == 2 * (1_000 + len("range") + 1_000), "the chosen protocol is stored"


def cooperative(*owned: int) -> bytes:
    """A subscription of version 1, which lists what its member owns when it joins."""
    listed = write_assignment([("t", each) for each in owned], 1)[2:-4]
    return struct.pack(">hih", 1, 1, 1) + b"t" + struct.pack(">i", -1) + listed


def static_join(instance_id: str, member_id: str, fresh: int, metadata: bytes) -> JoinGroup:
    return JoinGroup(
        9, "g", member_id, instance_id, "consumer", (ProtocolOffer("sticky", metadata),), 45_000, LONG_MS, "c", "/h",
        str(fresh))


def restarts_after(owned: list[int], assigned: list[int]) -> ClassicShard:
    """Two static members. The second one joined with these partitions, was assigned those, and has started again."""
    shard = ClassicShard(GroupLimits())
    shard.call(static_join("i", "", 0, cooperative()))
    shard.call(static_join("j", "", 1, cooperative(*owned)))
    shard.pass_time(shard.now_ms + 6_000)
    answers = [answer for _, answer in shard.take_answers()]
    ids = {answer.member_id[0]: answer.member_id for answer in answers if isinstance(answer, JoinAnswer)}
    given = ((ids["i"], write_assignment([], 1)), (ids["j"], write_assignment([("t", each) for each in assigned], 1)))
    for each in ids.values():
        shard.call(SyncGroup(5, "g", 1, each, None, "consumer", "sticky", given))
    assert shard.group.state is ClassicState.STABLE
    shard.take_answers()
    shard.call(static_join("j", "", 2, cooperative()))
    return shard


def test_a_static_member_that_starts_again_before_it_gives_up_partitions_lets_others_have_them() -> None:
    """Its former process would have joined again once it had given partition 1 up. The new one does not know of it."""
    shard = restarts_after(owned=[0, 1], assigned=[0])
    assert shard.group.state is ClassicState.PREPARING
    assert shard.take_answers() == []


@pytest.mark.parametrize(("owned", "assigned"), [([0], [0, 1]), ([0, 1], [0, 1]), ([], [0])])
def test_a_static_member_that_owes_nothing_starts_again_without_a_round(owned: list[int], assigned: list[int]) -> None:
    shard = restarts_after(owned, assigned)
    assert shard.group.state is ClassicState.STABLE
    ((_, answer),) = shard.take_answers()
    assert isinstance(answer, JoinAnswer)
    assert answer.generation == 1
