"""Changes a group with members from the classic to the consumer protocol, and back (KIP-848).

One append deletes the records of one protocol and writes those of the other. No partition may have two owners
meanwhile. So the new group takes over everything that a member may still have, which can be more than its assignment:

* On the way to the consumer protocol, this is what the last leader gave the member, and what the member reported as
  still owned when it last joined. It has to give up the part of the latter that it was not given again.
* On the way back, it is what the member is assigned and what it has still to give up.

Empty groups change without this module (`memberships.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.classic import ClassicGroup
from hapax.core.group.consumer_state import ConsumerState
from hapax.core.group.reconciliation import STABLE, UNREVOKED, Current, Partition
from hapax.core.group.roster import Member
from hapax.core.group.subscription import (
    PROTOCOL_TYPE,
    Assignment,
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
)
from hapax.core.group.values import (
    UNKNOWN_HASH,
    ClassicFacade,
    ClassicGroupRecord,
    ClassicGroupValue,
    ClassicMemberValue,
    CurrentRecord,
    GroupEpochRecord,
    GroupEpochValue,
    GroupLimits,
    MemberRecord,
    MembershipRecord,
    MemberValue,
    Partitions,
    ProtocolOffer,
    TargetEpochRecord,
    TargetEpochValue,
    TargetRecord,
    Topics,
)
from hapax.core.types import LONGEST_NAME_BYTES, Now, TimestampMs

_UPGRADES: Final = ("upgrade", "bidirectional")
_DOWNGRADES: Final = ("downgrade", "bidirectional")
"""Values of `group.consumer.migration.policy`."""


# --- to the consumer protocol ---------------------------------------------------------------------------------------


def upgraded(group: ClassicGroup, limits: GroupLimits, topics: Topics) -> tuple[MembershipRecord, ...]:
    """The records that turn the group and its members into those of the consumer protocol. The group's epoch is the
    classic generation, or 1 if there was none yet.

    Raises Refusal(GROUP_ID_NOT_FOUND) if the group must not or cannot change: the server cannot read what a member has,
    or the leader's assignor sends members more than partitions, which no assignor of the server can do.
    """
    if limits.migration_policy not in _UPGRADES:
        raise _stays("group.consumer.migration.policy forbids the change")
    if group.protocol_type != PROTOCOL_TYPE:
        raise _stays(f"its type is {group.protocol_type!r}")
    read = {member.member_id: _read(group, member) for member in group.members}
    assigned = _given(read, topics)
    epoch = max(1, group.generation)
    members: list[MembershipRecord] = []
    targets: list[MembershipRecord] = []
    currents: list[MembershipRecord] = []
    still_has = _left_over(read, assigned, topics)
    for member in group.members:
        member_id, group_id = member.member_id, group.group_id
        subscription, _ = read[member_id]
        members.append(MemberRecord(group_id, member_id, _value(member, subscription)))
        targets.append(TargetRecord(group_id, member_id, assigned[member_id]))
        pending = still_has[member_id]
        current = Current(
            epoch, epoch, UNREVOKED if pending else STABLE, dict.fromkeys(assigned[member_id], epoch),
            dict.fromkeys(pending, epoch))
        currents.append(CurrentRecord(group_id, member_id, current.value()))
    return (
        ClassicGroupRecord(group.group_id, None), *members,
        GroupEpochRecord(group.group_id, GroupEpochValue(epoch, UNKNOWN_HASH)), *targets,
        TargetEpochRecord(group.group_id, TargetEpochValue(epoch, TimestampMs(0))), *currents,
    )


def _read(group: ClassicGroup, member: Member) -> tuple[Subscription, Assignment]:
    for name in (member.member_id, member.instance_id or ""):  # they are stored in the keys of records
        if len(name.encode(errors="replace")) > LONGEST_NAME_BYTES:
            raise _stays(f"a member's id has more than {LONGEST_NAME_BYTES} bytes")
    offered = any(offer.name == group.protocol for offer in member.protocols)
    metadata = member.metadata(group.protocol) if offered else member.protocols[0].metadata
    subscription, assignment = read_subscription(metadata), read_assignment(member.assignment)
    if subscription is None:
        raise _stays(f"the subscription of {member.member_id!r} cannot be read")
    if assignment is None:
        raise _stays(f"the assignment of {member.member_id!r} cannot be read")
    if assignment.user_data not in (b"", subscription.user_data):  # librdkafka's leaders return a member's user data
        raise _stays("its assignor sends members more than partitions")
    return subscription, assignment


def _given(read: Mapping[str, tuple[Subscription, Assignment]], topics: Topics) -> dict[str, Partitions]:
    """What the last leader gave each member. A partition that it gave to several members belongs to the first one."""
    taken: set[Partition] = set()
    found = {}
    for member_id, (_, assignment) in read.items():
        found[member_id] = partitions_of(assignment.partitions, topics) - taken
        taken |= found[member_id]
    return found


def _left_over(
    read: Mapping[str, tuple[Subscription, Assignment]], assigned: Mapping[str, Partitions], topics: Topics
) -> dict[str, Partitions]:
    """What members owned when they last joined, and what no member was given since. Of several claims of one partition,
    the one of the latest generation counts."""
    taken = {partition for partitions in assigned.values() for partition in partitions}
    found = {}
    for member_id, (subscription, _) in sorted(read.items(), key=lambda each: -each[1][0].generation):
        found[member_id] = partitions_of(subscription.owned, topics) - taken
        taken |= found[member_id]
    return found


def _value(member: Member, subscription: Subscription) -> MemberValue:
    return classic_value(
        member.instance_id, member.client_id, member.client_host, subscription, member.rebalance_timeout_ms,
        ClassicFacade(member.session_timeout_ms, member.protocols))


def classic_value(
    instance_id: str | None, client_id: str, client_host: str, subscription: Subscription, rebalance_timeout_ms: int,
    facade: ClassicFacade,
) -> MemberValue:
    """The value of a group member that uses the classic protocol."""
    return MemberValue(
        instance_id, subscription.rack_id, client_id, client_host, tuple(sorted(set(subscription.topics))), None,
        rebalance_timeout_ms, None, facade)


def partitions_of(names: Iterable[tuple[str, int]], topics: Topics) -> Partitions:
    """The partitions of those topics that exist."""
    found = ((topics.topic(name), index) for name, index in names)
    return frozenset((facts.topic_id, index) for facts, index in found if facts is not None)


# --- to the classic protocol ----------------------------------------------------------------------------------------


def downgraded(state: ConsumerState, limits: GroupLimits, topics: Topics, now: Now) -> ClassicGroupValue | None:
    """The record of a classic group, if the group may change and all members use the classic protocol; else None. It
    names no leader, so the members meet in a round first, also when the next coordinator loads the record."""
    protocol = common_protocol(state.members.values())
    if protocol is None or limits.migration_policy not in _DOWNGRADES or len(state.members) > limits.max_size:
        return None
    members = []
    for member_id, value in state.members.items():
        if value.classic is None:
            return None
        offer = next(each for each in value.classic.protocols if each.name == protocol)
        members.append(ClassicMemberValue(
            member_id, value.instance_id, value.client_id, value.client_host, value.rebalance_timeout_ms,
            value.classic.session_timeout_ms, offer.metadata,
            embedded_assignment(offer, state.current(member_id).holds(), topics),
        ))  # fmt: skip
    return ClassicGroupValue(PROTOCOL_TYPE, state.epoch, protocol, None, now.wall, tuple(members))


def common_protocol(members: Iterable[MemberValue]) -> str | None:
    """A protocol that all classic members offer: the first of them in a member's preferences. None if there is none."""
    facades = [value.classic for value in members if value.classic is not None]
    if not facades:
        return None
    common = set.intersection(*({offer.name for offer in facade.protocols} for facade in facades))
    return next((offer.name for offer in facades[0].protocols if offer.name in common), None)


def embedded_assignment(offer: ProtocolOffer, partitions: Partitions, topics: Topics) -> bytes:
    """The assignment in the version of the member's subscription, without partitions of deleted topics."""
    subscription = read_subscription(offer.metadata)
    found = ((topics.topic_by_id(topic_id), index) for topic_id, index in partitions)
    named = [(facts.name, index) for facts, index in found if facts is not None]
    return write_assignment(named, 0 if subscription is None else subscription.version)


def _stays(reason: str) -> Refusal:
    return Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"the group uses the classic protocol, and {reason}")
