"""What a group of the consumer protocol keeps in memory, and what it tells of its topics."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hapax.core.errors import ErrorCode
from hapax.core.group.consumer_state import ConsumerState
from hapax.core.group.expressions import Askers
from hapax.core.group.machine import GroupShard
from hapax.core.group.offsets import CommittedOffset, OffsetRecord
from hapax.core.group.values import GroupLimits, MemberRecord, MemberValue
from hapax.core.types import Offset, PartitionIndex, TimestampMs, TopicPartition
from scenarios.consumer_world import ConsumerWorld, request

DAY_MS = 86_400_000
OLD = CommittedOffset(Offset(5), -1, "", TimestampMs(1))


@pytest.fixture
def world() -> ConsumerWorld:
    made = ConsumerWorld(GroupLimits())
    made.topics.create("ab", 2)
    return made


def joins(world: ConsumerWorld, **fields: object) -> None:
    call = world.call(request("m", 0, rebalance_timeout_ms=10_000, owned=(), **fields))
    assert world.answers[call].error is ErrorCode.NONE


def changes(world: ConsumerWorld, **fields: object) -> None:
    world.pass_time(2_000)
    call = world.call(request("m", world.group.current("m").epoch, owned=(), **fields))
    assert world.answers[call].error is ErrorCode.NONE


def test_a_group_id_is_not_empty(world: ConsumerWorld) -> None:
    call = world.call(request("m", 0, group_id="", rebalance_timeout_ms=1, owned=(), subscribed_names=("t",)))
    assert world.answers[call].error is ErrorCode.INVALID_REQUEST


def test_offsets_do_not_expire_while_an_expression_is_not_resolved(world: ConsumerWorld) -> None:
    """It may match their topic, whose records may be older than the retention of offsets."""
    shard = GroupShard(topics=world.topics)
    partition = TopicPartition("ab", PartitionIndex(0))
    shard.replay_offset(OffsetRecord("g", partition, OLD), Offset(0))

    def kept() -> bool:
        shard.memberships._slots["g"].group = world.group
        _, codes = shard.decide_offsets_deletion("g", [partition])
        expiring = shard.decide_expiry(TimestampMs(world.now.wall + 8 * DAY_MS))
        assert bool(expiring) is (codes == (ErrorCode.NONE,))
        return not expiring

    joins(world, subscribed_regex="a.*")
    for record in (each for batch in world.log for each in batch):
        shard.memberships.replay(record)
    assert kept()
    world.resolve("a.*", ("ab",), world.topics.version)
    assert kept()
    changes(world, subscribed_regex=".*b")
    assert kept()
    world.resolve(".*b", (), world.topics.version)
    assert not kept()


def test_the_names_of_the_topics_are_not_gathered_for_each_partition(world: ConsumerWorld) -> None:
    joins(world, subscribed_names=("ab", "c"))
    assert world.group.subscribed_topics() == {"ab", "c"}
    assert world.group.subscribed_topics() is world.group.subscribed_topics()
    changes(world, subscribed_names=("c",))
    assert world.group.subscribed_topics() == {"c"}


def test_subscriptions_that_were_leave_no_trace(world: ConsumerWorld) -> None:
    joins(world, subscribed_names=("ab",))
    for number in range(50):
        changes(world, subscribed_names=(f"t{number}",), subscribed_regex=f"r{number}")
    assert len(world.group._topic_ids) < 10 and len(world.group._questions._asked) < 10


def test_other_limits_hold_from_the_next_heartbeat_on(world: ConsumerWorld) -> None:
    """A session that has begun keeps its end until the member is told the new interval: it cannot lapse by a change."""
    joins(world, subscribed_names=("ab",))
    world.pass_time(1_000)
    world.limits = replace(world.limits, consumer_session_timeout_ms=5_000, consumer_heartbeat_interval_ms=1_000)
    world.pass_time(20_000)
    assert "m" in world.group._state.members
    call = world.call(request("m", world.group.current("m").epoch))
    assert world.answers[call].heartbeat_interval_ms == 1_000
    world.pass_time(4_999)
    assert "m" in world.group._state.members
    world.pass_time(1)
    assert "m" not in world.group._state.members


def test_the_interval_of_assignments_may_be_the_group_s_own(world: ConsumerWorld) -> None:
    world.limits = replace(world.limits, consumer_assignment_interval_ms=10_000)
    joins(world, subscribed_names=("ab",))
    world.call(request("n", 0, rebalance_timeout_ms=10_000, owned=(), subscribed_names=("ab",)))
    world.pass_time(9_000)
    world.call(request("n", world.group.current("n").epoch))
    assert world.group._state.target_epoch < world.group._state.epoch
    world.limits = replace(world.limits, consumer_assignment_interval_ms=0)
    world.call(request("n", world.group.current("n").epoch))
    assert world.group._state.target_epoch == world.group._state.epoch


def test_members_of_the_consumer_protocol_take_bounded_memory() -> None:
    world = ConsumerWorld(GroupLimits(max_metadata_bytes=10_000))
    codes = []
    for number in range(1_000):
        call = world.call(request(
            f"m{number}", 0, rebalance_timeout_ms=1_000, owned=(), subscribed_names=(1_000 * "a",)))
        codes.append(world.answers[call].error)
    assert codes.count(ErrorCode.NONE) == len(world.group.members) == 4
    assert set(codes) == {ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED}
    world.pass_time(46_000)
    call = world.call(request("n", 0, rebalance_timeout_ms=1_000, owned=(), subscribed_names=("a",)))
    assert world.answers[call].error is ErrorCode.NONE, "the others have expired"


@pytest.mark.parametrize("fields", [
    {"subscribed_names": tuple(50 * str(number) for number in range(200))}, {"subscribed_regex": 9_000 * "a"},
    {"rack_id": 9_000 * "r"}])
def test_a_member_that_grows_beyond_the_limit_stays_as_it_was(fields: dict[str, object]) -> None:
    world = ConsumerWorld(GroupLimits(max_metadata_bytes=5_000))
    world.topics.create("ab", 2)
    joins(world, subscribed_names=("ab",))
    call = world.call(request("m", 1, owned=None, **fields))
    assert world.answers[call].error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.group.members["m"].subscribed_names == ("ab",) and world.group.epoch == 1
    call = world.call(request("m", 1))
    assert world.answers[call].error is ErrorCode.NONE


def test_members_of_before_a_lower_limit_stay_and_may_take_less() -> None:
    world = ConsumerWorld(GroupLimits())
    joins(world, subscribed_names=("ab", "cd"))
    world.limits = GroupLimits(max_metadata_bytes=1)
    world.start(world.log)
    changes(world, subscribed_names=("ab",))
    assert world.group.members["m"].subscribed_names == ("ab",)


def test_the_count_of_memory_follows_what_members_say() -> None:
    world = ConsumerWorld(GroupLimits())
    joins(world, subscribed_names=("ab", "cd"))
    changes(world, subscribed_names=(), subscribed_regex="a.*", rack_id="r", server_assignor="range")
    counted = world.group._state.bytes
    assert counted == 1_000 + len("client" + "/10.0.0.1" + "a.*" + "r" + "range")
    world.start(world.log)
    assert world.group._state.bytes == counted
    world.call(request("m", -1))
    assert world.group._state.bytes == 0


def test_a_refused_join_leaves_nothing_behind() -> None:
    """Each attempt comes under an id of its own."""
    world = ConsumerWorld(GroupLimits(max_metadata_bytes=5_000))
    world.topics.create("ab", 2)
    joins(world, subscribed_names=("ab",))
    for number in range(20):
        for fields in ({"subscribed_regex": "("}, {"subscribed_regex": 5_000 * "a"}):
            call = world.call(request(f"n{number}", 0, rebalance_timeout_ms=1_000, owned=(), connection=9, **fields))
            assert world.answers[call].error is not ErrorCode.NONE
    assert list(world.group._connections._newest) == ["m"]


def test_a_new_coordinator_waits_as_long_as_a_member_was_told_that_it_may_be_silent() -> None:
    """The group's session was made shorter than its interval was before. The coordinator dies before the member's next
    heartbeat, whose answer would have told it."""
    world = ConsumerWorld(GroupLimits())
    world.topics.create("ab", 2)
    joins(world, subscribed_names=("ab",))
    world.limits = GroupLimits(
        consumer_session_timeout_ms=3_000, consumer_heartbeat_interval_ms=1_000, consumer_longest_interval_ms=15_000)
    world.start(world.log)
    world.pass_time(15_000)
    call = world.call(request("m", 1))
    assert world.answers[call].heartbeat_interval_ms == 1_000
    world.pass_time(2_999)
    assert "m" in world.group.members
    world.pass_time(1)
    assert "m" not in world.group.members, "now it knows the interval"


def test_what_comes_late_over_an_older_connection_does_not_say_whose_rights_count(world: ConsumerWorld) -> None:
    joins(world, subscribed_regex="a.*", principal="User:former", connection=1)
    world.resolve("a.*", (), world.topics.version)
    world.questions.clear()
    present, late = (2, "User:present"), (1, "User:former")
    for at in range(4):
        if at == 3:
            world.topics.create("ac", 1)
        for connection, principal in (present, late) if at < 3 else (late, present):
            call = world.call(request("m", world.group.current("m").epoch, principal=principal, connection=connection))
            assert world.answers[call].error is ErrorCode.NONE
        world.pass_time(5_000)
    assert {each.principal for each in world.questions} == {"User:present"}


def test_who_asks_for_many_expressions_is_found_in_one_pass() -> None:
    """Members come back one by one to a new coordinator. With an expression each, they are asked about again and
    again."""
    askers, state = Askers(), ConsumerState()
    many = 200
    for number in range(many):
        value = MemberValue(None, None, "c", "/h", (), f"r{number}", 10_000, None)
        state.replay(MemberRecord("g", f"m{number}", value))
        askers.hear(request(f"m{number}", 1, principal=f"User:{number}"), f"m{number}", value)
    looked_up = 0

    class Counted(dict[str, MemberValue]):
        def get(self, key: str, default: object = None) -> object:  # type: ignore[override]
            nonlocal looked_up
            looked_up += 1
            return super().get(key, default)

    state.members = Counted(state.members)
    questions = askers.questions("g", [f"r{number}" for number in range(many)], state)
    assert [each.principal for each in questions] == [f"User:{number}" for number in range(many)]
    assert looked_up == many
