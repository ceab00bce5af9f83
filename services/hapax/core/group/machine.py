"""All groups of one shard: their offsets (`GroupOffsets`), and their members, who may commit them (`Memberships`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.classic import ClassicGroup
from hapax.core.group.consumer import ConsumerGroup
from hapax.core.group.memberships import Memberships
from hapax.core.group.newest_connections import CommitConnections
from hapax.core.group.offsets import (
    NEWEST_OFFSET_COMMIT,
    NO_TIMESTAMP,
    CommitDecision,
    GroupOffsets,
    OffsetCommit,
    OffsetRecord,
    TxnOffsetCommit,
)
from hapax.core.group.rounds import ClassicState
from hapax.core.group.values import CallId, GroupLimits, GroupRecord, LimitsOf, Outcome, TopicFacts, Topics
from hapax.core.types import Now, Offset, TimestampMs, TopicId, TopicPartition

CONSUMER_PROTOCOL_TYPE = "consumer"


class GroupSummary(NamedTuple):
    committed: int
    """Number of partitions with an offset."""
    pending: int
    """Number of partitions with an offset in an open transaction."""
    members: int


class NoTopics:
    """Topics of a cluster that has none."""

    version = 0

    def topic(self, name: str) -> TopicFacts | None:
        return None

    def topic_by_id(self, topic_id: TopicId) -> TopicFacts | None:
        return None


@dataclass(frozen=True, slots=True)
class SameLimits:
    """The same limits for all groups. A closure could not be copied, as an exploration copies the machine."""

    limits: GroupLimits

    def __call__(self, group_id: str) -> GroupLimits:
        return self.limits


class GroupShard(GroupOffsets):
    """Not thread-safe: the shard's coordinator is the only writer."""

    def __init__(
        self, *, max_metadata_bytes: int = 4096, retention_ms: int = 7 * 86_400_000,
        producer_expiry_ms: int = 7 * 86_400_000, limits: GroupLimits | None = None, topics: Topics | None = None,
        limits_of: LimitsOf | None = None, newest_connection: int = -1,
    ) -> None:
        """`limits_of` takes precedence over `limits`. `newest_connection`: see `Memberships`."""
        super().__init__(
            max_metadata_bytes=max_metadata_bytes, retention_ms=retention_ms, producer_expiry_ms=producer_expiry_ms)
        self.memberships = Memberships(
            limits_of or SameLimits(limits or GroupLimits()), topics or NoTopics(), newest_connection)
        self._connections = CommitConnections(newest_connection)

    # --- commits --------------------------------------------------------------------------------------------------

    def is_superseded(self, request: OffsetCommit) -> bool:
        """Whether a plain commit has come over an older connection than another commit of its member (rule 4). Then it
        is not answered, and its connection is closed. A commit that names no member's generation or epoch always
        counts: it may come from any process."""
        return request.generation >= 0 and request.connection >= 0 and self._connections.is_older(
            request.group_id, request.member_id, request.connection)

    def decide_offset_commit(self, request: OffsetCommit, now: Now) -> CommitDecision:
        """Call it for a commit that is not superseded. Its connection becomes the member's newest one."""
        decision = super().decide_offset_commit(request, now)
        if request.generation >= 0 and request.connection >= 0:
            self._connections.note(request.group_id, request.member_id, request.connection, self._is_member)
        return decision

    def loaded(self) -> None:
        """Called when the shard begins to serve. Members that the log knows may have committed before the load, over
        connections of which this owner does not know. So their older connections count no more."""
        self._connections.loaded(
            (group_id, member_id) for group_id, group in self.memberships.groups() for member_id in group.member_ids())

    def _is_member(self, group_id: str, member_id: str) -> bool:
        group = self.memberships.get(group_id)
        return group is not None and group.has_member(member_id)

    def check_commit(self, request: OffsetCommit | TxnOffsetCommit, now: Now, *, transactional: bool) -> None:
        """Raises Refusal: 69 if the request names a generation of a group that does not exist; 22, 25, 27, 82 or 113
        for its member; 35 if the version cannot name a member of the consumer protocol; 14 while the group is being
        deleted in several writes, because those to come would remove a part of what is committed."""
        self.memberships.check_stays(request.group_id)
        group = self.memberships.get(request.group_id)
        if group is None:
            if request.generation >= 0:
                raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"group {request.group_id!r} has no members")
            return
        if isinstance(group, ClassicGroup):
            group.check_commit(request.generation, request.member_id, request.instance_id, transactional, now)
            return
        partitions = [(wanted.topic_id, int(wanted.partition.partition)) for wanted in request.offsets]
        version = request.version if isinstance(request, OffsetCommit) else NEWEST_OFFSET_COMMIT
        group.check_commit(
            request.generation, request.member_id, request.instance_id, partitions, transactional, version)

    def check_fetch(self, group_id: str, member_id: str, member_epoch: int) -> None:
        """Checks the member that OffsetFetch names from version 9 on. Raises Refusal: 25, 113."""
        group = self.memberships.get(group_id)
        if isinstance(group, ConsumerGroup) and (member_id or member_epoch >= 0):
            group.check_fetch(member_id, member_epoch)

    # --- retention and removal ------------------------------------------------------------------------------------

    def retained_since(self, group_id: str, topic: str) -> TimestampMs | None:
        """Follows Kafka. In the classic protocol, offsets of a group without members expire from the time when the last
        member left. In the consumer protocol, and in a group that never had members, they expire from their commit. A
        group with members keeps the offsets of the topics that it reads."""
        group = self.memberships.get(group_id)
        if group is None:
            return NO_TIMESTAMP
        if group.is_empty():
            if isinstance(group, ClassicGroup) and group.protocol_type:
                return group.state_timestamp
            return NO_TIMESTAMP
        if isinstance(group, ClassicGroup) and group.state is not ClassicState.STABLE:
            return None
        subscribed = group.subscribed_topics()
        return None if subscribed is None or topic in subscribed else NO_TIMESTAMP

    def decide_removal(
        self, group_id: str, partitions: Collection[TopicPartition] | None,
        storing: Collection[TopicPartition] = (),
    ) -> tuple[OffsetRecord, ...]:
        """Tombstones for some of a group's offsets, or with None for all. `storing`: as in `decide_offsets_deletion`.
        Raises Refusal: 69 for an unknown group, 68 for one with members, 88 if an open transaction is about to commit
        one of the offsets."""
        self._check_empty(group_id)
        return super().decide_removal(group_id, partitions, storing)

    def decide_offsets_deletion(
        self, group_id: str, partitions: Sequence[TopicPartition], storing: Collection[TopicPartition] = ()
    ) -> tuple[tuple[OffsetRecord, ...], tuple[ErrorCode, ...]]:
        """Decides OffsetDelete: the tombstones, including those for offsets in open transactions, and an error for each
        partition. `storing`: partitions of the group's commits that are being appended, which are not part of this
        state yet. Their tombstones come behind them in the log; without these a part of such a commit would stay.
        Raises Refusal: 69 for an unknown group; 68 for one with members whose type is not "consumer", because their
        subscriptions cannot be read."""
        group = self.memberships.get(group_id)
        if group is None and not self.has_offsets(group_id):
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")
        subscribed: Collection[str] = ()
        if group is not None and not group.is_empty():
            found = group.subscribed_topics()
            if isinstance(group, ClassicGroup) and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
                raise Refusal(ErrorCode.NON_EMPTY_GROUP, f"group {group_id!r} has members")
            subscribed = {each.topic for each in partitions} if found is None else found
        codes = tuple(
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if each.topic in subscribed else ErrorCode.NONE for each in partitions)
        return tuple(
            OffsetRecord(group_id, each, None)
            for each, code in zip(partitions, codes, strict=True)
            if code is ErrorCode.NONE and (self.holds(group_id, each) or each in storing)
        ), codes

    def check_stable(self, group_id: str) -> None:
        """Raises Refusal(UNSTABLE_OFFSET_COMMIT) if an open transaction is about to commit an offset."""
        if self.counts(group_id)[1]:
            super().decide_removal(group_id, None)

    def delete_group(self, call: CallId, group_id: str, now: Now) -> Outcome:
        """Deletes an empty group and its offsets. Raises Refusal: 69, 68."""
        if self.memberships.get(group_id) is None and not self.has_offsets(group_id):
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")
        self._check_empty(group_id)
        return self.memberships.remove(call, group_id, self.all_of(group_id))

    def expire_groups(self) -> Outcome:
        """Writes that remove groups with neither members nor offsets."""
        return self.memberships.remove_vacant(self.has_offsets)

    def _check_empty(self, group_id: str) -> None:
        group = self.memberships.get(group_id)
        if group is not None and not group.is_empty():
            raise Refusal(ErrorCode.NON_EMPTY_GROUP, f"group {group_id!r} has {len(group.members)} members")

    # --- writes of memberships ------------------------------------------------------------------------------------

    def stored(self, group_id: str, log_offset: Offset, now: Now) -> Outcome:
        """Called when the group's write is durable. Its first record is at `log_offset`."""
        write = self.memberships.writing(group_id)
        for number, record in enumerate(write.records):
            if isinstance(record, OffsetRecord):
                self.replay_offset(record, Offset(log_offset + number))
        return self.memberships.stored(group_id, now)

    def replay(self, record: GroupRecord, log_offset: Offset) -> None:
        """Applies a record that belongs to no transaction, while the shard loads."""
        if isinstance(record, OffsetRecord):
            self.replay_offset(record, log_offset)
        else:
            self.memberships.replay(record)

    # --- queries --------------------------------------------------------------------------------------------------

    def groups(self) -> Iterator[str]:
        """Ids of all groups: those with members, those that had members, and those that only have offsets."""
        with_offsets = set(super().groups())
        yield from with_offsets
        yield from (group_id for group_id, _ in self.memberships.groups() if group_id not in with_offsets)

    def members_of(self, group_id: str) -> int:
        """The number of a group's members."""
        group = self.memberships.get(group_id)
        return 0 if group is None else len(group.members)

    def summary(self, group_id: str) -> GroupSummary | None:
        """None if the group is unknown."""
        group = self.memberships.get(group_id)
        if group is None and not self.has_offsets(group_id):
            return None
        committed, pending = self.counts(group_id)
        return GroupSummary(committed, pending, self.members_of(group_id))

    def describe(self) -> list[str]:
        """The whole state as lines of text, for scenario scripts and for comparing two shards."""
        lines = []
        for group_id, group in sorted(self.memberships.groups()):
            if isinstance(group, ClassicGroup):
                members = ",".join(member.member_id for member in group.members)
                lines.append(f"group {group_id} generation={group.generation} members=[{members}]")
            else:
                members = ",".join(f"{each}@{group.current(each).epoch}" for each in sorted(group.members))
                lines.append(f"group {group_id} epoch={group.epoch} members=[{members}]")
        return [*lines, *super().describe()]
