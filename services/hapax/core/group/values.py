"""Inputs and outputs of the membership machines of consumer groups.

A group's membership changes by events: a client's call, a timer that is due, a write that was stored or refused. The
machine answers each event with an `Outcome`: calls to answer now, and records to append. It follows the rule of the
core: *decide, persist, replay*. The state that a group's next coordinator needs changes only when a record is replayed.
The rest (who waits in a round of the classic protocol, when a session ends) changes with the event itself. It is lost
at a failover, and the clients' next calls build it up again.

    outcome = machine.call(group, call, request, now)
    answer   outcome.answers               each (call, answer), at once
    append   outcome.writes                each Write in one batch: all of its records or none;
             then machine.stored(group, offset, now) or machine.refused(group, code, now), and handle its outcome
    resolve  outcome.regexes               off the loop; then machine.resolved(...)
    at machine.next_deadline()             machine.due(now)

While a write of a group is under way, the group's other events wait in the machine, in their order. So a decision never
rests on a state that is about to change.

Sources: KIP-62, KIP-345, KIP-394, KIP-814 (classic protocol); KIP-848 and KIP-1251 (consumer protocol).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, NewType, Protocol, TypeAlias

from hapax.core.errors import ErrorCode
from hapax.core.group.offsets import NO_GENERATION as NO_GENERATION
from hapax.core.group.offsets import NO_MEMBER as NO_MEMBER
from hapax.core.group.offsets import OffsetRecord
from hapax.core.types import TimestampMs, TopicId

CallId = NewType("CallId", int)
"""Names a client's call that waits for its answer. The service assigns the numbers and never uses one twice."""

UNKNOWN_HASH: Final = 0

Partitions = frozenset[tuple[TopicId, int]]
"""(topic id, partition) of each partition."""
NO_PARTITIONS: Final[Partitions] = frozenset()


class TopicFacts(NamedTuple):
    name: str
    topic_id: TopicId
    partitions: int
    """Number of partitions."""


class Topics(Protocol):
    """The topics of the cluster at the time of an event."""

    @property
    def version(self) -> int:
        """Rises whenever a topic is created or deleted or gets partitions; never negative. It is read at every
        heartbeat."""
        ...

    def topic(self, name: str) -> TopicFacts | None: ...
    def topic_by_id(self, topic_id: TopicId) -> TopicFacts | None: ...


# --- calls of the classic protocol --------------------------------------------------------------------------------


class ProtocolOffer(NamedTuple):
    """A protocol that a member supports, with its subscription as the client encoded it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroup:
    version: int
    group_id: str
    member_id: str
    instance_id: str | None
    protocol_type: str
    protocols: tuple[ProtocolOffer, ...]
    """Most preferred first."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """The session timeout if the client's version does not have this field (version 0)."""
    client_id: str
    client_host: str
    fresh_id: str
    """A random UUID as text, for the id of a new member."""
    connection: int = 0
    """Serial of the connection over which it came. Serials rise with every connection of the process."""


@dataclass(frozen=True, slots=True)
class SyncGroup:
    version: int
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol: str | None
    assignments: tuple[tuple[str, bytes], ...]
    """(member id, its assignment). Only the leader sends them."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None


class LeavingMember(NamedTuple):
    member_id: str
    instance_id: str | None


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    version: int
    group_id: str
    members: tuple[LeavingMember, ...]


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    error: ErrorCode
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = NO_MEMBER
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()
    """The members, in the leader's answer; empty for followers."""
    reason: str = ""
    """Of an error: one sentence, where there is more to say than the code. So in the answers below."""


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    error: ErrorCode
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RemovalAnswer:
    """Of DeleteGroups."""

    error: ErrorCode


@dataclass(frozen=True, slots=True)
class LeaveAnswer:
    error: ErrorCode
    members: tuple[ErrorCode, ...] = ()
    """One error per member, in the order of the request."""


# --- calls of the consumer protocol -------------------------------------------------------------------------------


class OwnedTopic(NamedTuple):
    topic_id: TopicId
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeat:
    """A heartbeat. A field that is None has not changed since the member's last heartbeat."""

    version: int
    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    """-1: unchanged."""
    subscribed_names: tuple[str, ...] | None
    subscribed_regex: str | None
    server_assignor: str | None
    owned: tuple[OwnedTopic, ...] | None
    client_id: str
    client_host: str
    fresh_id: str
    """A random UUID as text, for the id of a member of version 0."""
    connection: int = 0
    """Serial of the connection over which it came. Serials rise with every connection of the process."""
    principal: str = ""
    """Whose connection it is: `core/access/principals.py`."""


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatAnswer:
    error: ErrorCode
    message: str | None = None
    member_id: str = NO_MEMBER
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None
    """None if it has not changed since the last answer."""


SUPERSEDED: Final = ConsumerHeartbeatAnswer(ErrorCode.NETWORK_EXCEPTION)
SUPERSEDED_JOIN: Final = JoinAnswer(ErrorCode.NETWORK_EXCEPTION, NO_MEMBER)
"""Not sent: the connection is closed, because the member has a newer one."""


Request = JoinGroup | SyncGroup | Heartbeat | LeaveGroup | ConsumerGroupHeartbeat
Answer = JoinAnswer | SyncAnswer | HeartbeatAnswer | LeaveAnswer | ConsumerHeartbeatAnswer | RemovalAnswer


# --- records ------------------------------------------------------------------------------------------------------
# Each is one record of `__consumer_offsets`: its key's fields, and a value, which is None in a tombstone.


class ClassicMemberValue(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    """Metadata of the group's chosen protocol."""
    assignment: bytes


class ClassicGroupValue(NamedTuple):
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp: TimestampMs
    """When the group entered its state; -1 if unknown."""
    members: tuple[ClassicMemberValue, ...]


class ClassicGroupRecord(NamedTuple):
    """Key of kind 2."""

    group: str
    value: ClassicGroupValue | None


class GroupEpochValue(NamedTuple):
    epoch: int
    metadata_hash: int
    """Hash of the subscribed topics; `UNKNOWN_HASH` forces a comparison at the next heartbeat."""


class GroupEpochRecord(NamedTuple):
    """Key of kind 3."""

    group: str
    value: GroupEpochValue | None


class ClassicFacade(NamedTuple):
    """What a member of a consumer group that uses the classic protocol has said about itself."""

    session_timeout_ms: int
    protocols: tuple[ProtocolOffer, ...]


class MemberValue(NamedTuple):
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_names: tuple[str, ...]
    """Sorted."""
    subscribed_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic: ClassicFacade | None = None


class MemberRecord(NamedTuple):
    """Key of kind 5."""

    group: str
    member_id: str
    value: MemberValue | None


class TargetEpochValue(NamedTuple):
    epoch: int
    timestamp: TimestampMs
    """When the assignor ran; 0 if it has never run."""


class TargetEpochRecord(NamedTuple):
    """Key of kind 6."""

    group: str
    value: TargetEpochValue | None


class TargetRecord(NamedTuple):
    """Key of kind 7: the target assignment of one member."""

    group: str
    member_id: str
    value: Partitions | None


class CurrentValue(NamedTuple):
    """Key of kind 8: the state of a member on its way to its target."""

    epoch: int
    previous_epoch: int
    state: int
    """0 stable, 1 revokes partitions, 2 waits for partitions of others (values of Kafka's schema)."""
    assigned: tuple[tuple[TopicId, int, int], ...]
    """(topic id, partition, the epoch at which it was assigned: KIP-1251), sorted."""
    pending_revocation: tuple[tuple[TopicId, int, int], ...]


class CurrentRecord(NamedTuple):
    group: str
    member_id: str
    value: CurrentValue | None


class RegexValue(NamedTuple):
    topics: tuple[str, ...]
    """The matching topics, sorted."""
    version: int
    """The version of the cluster's topics at which the expression was resolved."""
    timestamp: TimestampMs


class RegexRecord(NamedTuple):
    """Key of kind 16: a resolved regular expression."""

    group: str
    regex: str
    value: RegexValue | None


MembershipRecord = (
    ClassicGroupRecord | GroupEpochRecord | MemberRecord | TargetEpochRecord | TargetRecord | CurrentRecord
    | RegexRecord
)
GroupRecord = MembershipRecord | OffsetRecord


# --- outcomes -----------------------------------------------------------------------------------------------------


class Write(NamedTuple):
    """One atomic append."""

    group: str
    records: tuple[GroupRecord, ...]


class RegexQuestion(NamedTuple):
    """Asks which topics match an expression, of those that the asker may describe. The expression has already compiled.
    """

    group: str
    regex: str
    principal: str
    client_host: str


@dataclass(slots=True)
class Outcome:
    answers: list[tuple[CallId, Answer]] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    regexes: list[RegexQuestion] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Settings of the group coordinator, with Kafka's names and defaults. A consumer group may have its own values of
    some (`core/group/configs.py`)."""

    min_session_timeout_ms: int = 6_000                 # group.min.session.timeout.ms
    max_session_timeout_ms: int = 1_800_000             # group.max.session.timeout.ms
    initial_rebalance_delay_ms: int = 3_000             # group.initial.rebalance.delay.ms
    max_size: int = 2**31 - 1                           # group.max.size
    max_metadata_bytes: int = 64 * 1024 * 1024          # group.max.metadata.bytes
    new_member_join_timeout_ms: int = 300_000
    """A new member's JoinGroup waits no longer than this, because its client may have given up."""
    consumer_session_timeout_ms: int = 45_000           # group.consumer.session.timeout.ms
    consumer_heartbeat_interval_ms: int = 5_000         # group.consumer.heartbeat.interval.ms
    consumer_longest_interval_ms: int = 0
    """The longest interval that a member may have been told before a change of its group's configuration; 0 for a group
    without one."""
    consumer_max_size: int = 2**31 - 1                  # group.consumer.max.size
    consumer_assignors: tuple[str, ...] = ("uniform", "range")  # group.consumer.assignors
    consumer_assignment_interval_ms: int = 1_000        # group.consumer.assignment.interval.ms
    consumer_regex_refresh_ms: int = 600_000            # group.consumer.regex.refresh.interval.ms
    migration_policy: str = "bidirectional"             # group.consumer.migration.policy


LimitsOf: TypeAlias = Callable[[str], GroupLimits]
"""A group's name -> what holds for it now. It may be different at every call."""
