"""The log's records of a transactional id. One immutable `Transaction` is the value of one record, and it is the state.

A decision makes the next `Transaction`. Persisting writes it. Replaying puts it in the place of the previous one. While
a multi-writer transaction is open, a change of one member is a `Delta` instead, which holds that whole member (see
`deltas`). Live operation and recovery cannot differ, because there is no other state to restore.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, NamedTuple

from hapax.core.transaction.states import State
from hapax.core.types import (
    MAX_PRODUCER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Millis,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    Serial,
    TimestampMs,
    TopicId,
    TopicIdPartition,
)

OFFSETS_TOPIC: Final = "__consumer_offsets"
NO_TIMESTAMP: Final = TimestampMs(-1)
NO_TRANSACTION: Final = Serial(0)   # the serials of transactions count from 1
NO_LIMIT: Final = Millis(2**63 - 1)
"""Limit of a transaction under two-phase commit: no time-out ends it."""
NO_TIMEOUT_MS: Final = 2**31 - 1
"""How Kafka writes that the transactions of a producer have no time limit (KIP-939)."""
_NO_TIME: Final = Millis(0)
FIRST_EPOCH: Final = ProducerEpoch(0)
LAST_EPOCH: Final = ProducerEpoch(MAX_PRODUCER_EPOCH - 1)
"""The last epoch that a client gets. The producer needs a new producer id to go on from here, but fencing can still
raise this epoch."""


class TransactionPartition(NamedTuple):
    """A partition of a transaction. The topic's name serves messages and Kafka's schema, its id serves markers
    (rule 10)."""

    topic: str
    topic_id: TopicId
    partition: PartitionIndex

    @property
    def by_id(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.partition)


class TopicBits(NamedTuple):
    """Partitions of one topic: bit i stands for partition i."""

    topic: str
    topic_id: TopicId
    bits: int


@dataclass(frozen=True, slots=True)
class PartitionSet:
    """The partitions that one member has registered, sorted by topic name, topic id and index.

    A micro-batch of 1,000 tasks in 200 partitions has 200,000 pairs of member and partition. A set costs one bit for
    each pair instead of one object."""

    topics: tuple[TopicBits, ...] = ()

    @classmethod
    def of(cls, partitions: Iterable[TransactionPartition]) -> PartitionSet:
        bits: dict[tuple[str, TopicId], int] = {}
        for topic, topic_id, partition in partitions:
            bits[topic, topic_id] = bits.get((topic, topic_id), 0) | 1 << partition
        return cls._sorted(bits)

    @classmethod
    def _sorted(cls, bits: dict[tuple[str, TopicId], int]) -> PartitionSet:
        return cls(tuple([TopicBits(*topic, bits[topic]) for topic in sorted(bits) if bits[topic]]))

    def __iter__(self) -> Iterator[TransactionPartition]:
        for topic, topic_id, bits in self.topics:
            while bits:
                lowest = bits & -bits
                yield TransactionPartition(topic, topic_id, PartitionIndex(lowest.bit_length() - 1))
                bits ^= lowest

    def __len__(self) -> int:
        return sum(each.bits.bit_count() for each in self.topics)

    def __contains__(self, partition: TransactionPartition) -> bool:
        topic, topic_id, index = partition
        return any(
            each.bits >> index & 1 for each in self.topics if each.topic_id == topic_id and each.topic == topic
        )

    def __or__(self, other: PartitionSet) -> PartitionSet:
        bits = {each[:2]: each.bits for each in self.topics}
        for topic, topic_id, more in other.topics:
            bits[topic, topic_id] = bits.get((topic, topic_id), 0) | more
        return self._sorted(bits)

    def __and__(self, other: PartitionSet) -> PartitionSet:
        return self - (self - other)

    def __sub__(self, other: PartitionSet) -> PartitionSet:
        bits = {each[:2]: each.bits for each in self.topics}
        for topic, topic_id, less in other.topics:
            bits[topic, topic_id] = bits.get((topic, topic_id), 0) & ~less
        return self._sorted(bits)

    def __le__(self, other: PartitionSet) -> bool:
        return not self - other


NO_PARTITIONS: Final = PartitionSet()


class FencingCause(IntEnum):
    """Why an epoch was raised by someone else than its producer."""

    INITIALIZED = 0      # another InitProducerId
    TIMED_OUT = 1        # the transaction was open past its limit
    NEWER_TOKEN = 2      # a newer commit token, or another scope's, opened the next transaction


class Holder(NamedTuple):
    """The client that initialised the transactional id last."""

    client_id: str
    peer: str                       # host:port


@dataclass(frozen=True, slots=True)
class Fencing:
    """Which client fenced which, when and from where. It is kept with the id, so that later refusals can say it."""

    cause: FencingCause
    at_ms: TimestampMs
    client_id: str                  # of the caller that fenced; empty: the coordinator itself (time-out)
    peer: str                       # host:port of that caller
    fenced_producer_id: ProducerId  # -1: all members of a multi-writer transaction
    fenced_epoch: ProducerEpoch     # the highest epoch that is refused from now on
    serial: Serial                  # of the transaction that was open then, or the last one
    fenced: Holder | None = None    # the client that held the id until then


class Fingerprint(NamedTuple):
    """A digest of the committed work. Two fingerprints of one kind are equal exactly where the work is the same."""

    kind: str                       # "offsets", "records": the caller's own name for what it put into the digest
    digest: bytes


@dataclass(frozen=True, slots=True)
class CommittedToken:
    """The newest commit token of a scope (rule 7)."""

    scope: str
    value: int
    record_count: int
    serial: Serial                  # of the transaction that committed it
    committed_at_ms: TimestampMs
    owner: str = ""                 # the query that commits in this scope; empty: the caller named none
    base: int = 0                   # the value of the owner's number 0
    fingerprints: tuple[Fingerprint, ...] = ()
    single_use: bool = False        # the scope has no second commit: kept for a repeated request, then dropped
    past: bytes = b""
    """Of the owner's commits before this one, the newest last: eight bytes each (see `tokens.trace`)."""

    @property
    def number(self) -> int:
        """The value as the owner counts it."""
        return self.value - self.base


class LastOutcome(NamedTuple):
    """The outcome of the newest decided transaction."""

    committed: bool
    at_ms: TimestampMs


class Token(NamedTuple):
    """A commit token: `value` rises with every commit of `scope`. In a request, `value` is the owner's own number."""

    scope: str
    value: int
    owner: str = ""
    base: int = 0                   # the value of the owner's number 0

    @property
    def number(self) -> int:
        """The value as the owner counts it."""
        return self.value - self.base


class ProducerIdentity(NamedTuple):
    """The producer id and epoch that a producer writes and calls with."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch


@dataclass(frozen=True, slots=True)
class Member:
    """One writer of a multi-writer transaction (one task attempt)."""

    key: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    partitions: PartitionSet = NO_PARTITIONS
    won: PartitionSet = NO_PARTITIONS
    """After PREPARE_COMMIT: the partitions in which this member's records are committed. In its others they are
    aborted."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A field of the log's format since its first version, which is never set. What the platform allows an id stands in
    the metadata store (see `policy`), where it can be changed and withdrawn without the coordinator."""

    allowed_topics: tuple[str, ...] = ()    # empty: every topic
    max_timeout_ms: int = 0                 # 0: the cluster's transaction.max.timeout.ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The state of a transactional id after its last record (TransactionLogValue v1 and Hapax's tagged fields)."""

    transactional_id: str
    state: State
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    """The epoch that the producer uses next. After a version-2 decision, and in its markers, it is the raised one."""
    last_producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    """The epoch before the last raise *by this very producer*: a retried call still carries it. -1: another caller
    raised the epoch."""
    previous_producer_id: ProducerId = NO_PRODUCER_ID
    """The exhausted producer id that was replaced, for retries across the change."""
    next_producer_id: ProducerId = NO_PRODUCER_ID
    """In PREPARE_*: the producer id that replaces the exhausted one at completion. The client knows it already. Of a
    kept transaction: the producer id of its new holder, in ONGOING too."""
    next_producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    """Set: a producer has kept the open transaction of its predecessor (KIP-939), and this is its own epoch. The
    transaction's records, and so its markers, have `producer_id` and `producer_epoch`."""
    two_phase: bool = False
    """Whether the producer takes part in two-phase commit: then its transactions have no time limit."""
    timeout_ms: int = 60_000
    client_version: int = 1                 # transactions version of the client: 1 or 2
    partitions: tuple[TransactionPartition, ...] = ()
    """Of the single writer. The partitions of a multi-writer transaction are those of its members."""
    start_ms: TimestampMs = NO_TIMESTAMP    # wall clock, for messages and Kafka's schema
    last_update_ms: TimestampMs = NO_TIMESTAMP
    serial: Serial = NO_TRANSACTION
    """Of the open or last transaction. Markers carry it, and a partition accepts each serial once (rule 9)."""
    elapsed_ms: Millis = _NO_TIME           # how long the transaction was open when the record was made (rule 14)
    limit_ms: Millis = _NO_TIME             # how long it may be open; RenewTransaction extends it
    holder: Holder | None = None            # None: no producer holds the id, or only members of a transaction do
    fencing: Fencing | None = None
    tokens: tuple[CommittedToken, ...] = ()
    open_token: Token | None = None         # set: the open or deciding transaction is a multi-writer one
    members: tuple[Member, ...] = ()        # sorted by producer id
    idle_members: tuple[ProducerIdentity, ...] = ()
    """Identities for the next members. Their number is bounded by the peak of parallelism (rule 6)."""
    runs: tuple[str, ...] = ()
    """Of a multi-writer transaction: the drivers whose members joined, each at the place of its first member. The last
    one is alive. Only that driver may abort the transaction or commit none of its records."""
    policy: Policy | None = None
    outcome: LastOutcome | None = None
    takes_deltas: bool = field(default=True, compare=False)
    """False: a release that skips deltas wrote the record. The next change of the open multi-writer transaction is a
    whole record, which such a release refuses to read."""

    @property
    def is_open(self) -> bool:
        return self.state is State.ONGOING

    @property
    def is_multi_writer(self) -> bool:
        """Whether members write the open or deciding transaction."""
        return self.open_token is not None

    @property
    def identity(self) -> ProducerIdentity:
        """The identity of the single writer's next call; (-1, -1) while the id has no producer id."""
        if self.is_kept:
            return ProducerIdentity(self.next_producer_id, self.next_producer_epoch)
        if self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdentity(self.next_producer_id, FIRST_EPOCH)
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def is_kept(self) -> bool:
        """Whether another producer than the open or deciding transaction's own holds the id, and kept it."""
        return self.next_producer_epoch != NO_PRODUCER_EPOCH

    @property
    def has_no_limit(self) -> bool:
        """Whether the open or deciding transaction takes part in two-phase commit. Only its holder, a newer holder of
        the id and an operator decide it."""
        return self.limit_ms == NO_LIMIT

    @property
    def last_identity(self) -> ProducerIdentity | None:
        """The identity of a call that is retried after it took effect; None where that producer was fenced."""
        if self.last_producer_epoch == NO_PRODUCER_EPOCH:
            return None
        replaced = self.previous_producer_id
        return ProducerIdentity(
            self.producer_id if replaced == NO_PRODUCER_ID else replaced, self.last_producer_epoch
        )

    @property
    def epoch_exhausted(self) -> bool:
        """Whether the single writer needs another producer id for its next epoch."""
        return self.identity.producer_epoch >= LAST_EPOCH

    @property
    def highest_producer_id(self) -> ProducerId:
        """The highest of the producer ids that it and its members use or have used."""
        return max(
            self.producer_id, self.next_producer_id, self.previous_producer_id,
            *(member.producer_id for member in self.members), *(member.producer_id for member in self.idle_members),
        )

    @property
    def every_partition(self) -> tuple[TransactionPartition, ...]:
        """The single writer's partitions in the order of their registration, or those of all members, each once."""
        return tuple(self.partitions_of_members) if self.members else self.partitions

    @property
    def partitions_of_members(self) -> PartitionSet:
        every = NO_PARTITIONS
        for member in self.members:
            every |= member.partitions
        return every

    def member(self, producer_id: ProducerId) -> Member | None:
        place = self._place(producer_id)
        found = self.members[place : place + 1]
        return found[0] if found and found[0].producer_id == producer_id else None

    def with_member(self, member: Member) -> Transaction:
        """Replaces the member with the same producer id. A new member leaves the idle ones."""
        place = self._place(member.producer_id)
        known = place < len(self.members) and self.members[place].producer_id == member.producer_id
        return replace(
            self,
            members=(*self.members[:place], member, *self.members[place + known :]),
            idle_members=self.idle_members if known else tuple(
                [idle for idle in self.idle_members if idle.producer_id != member.producer_id]
            ),
        )

    def _place(self, producer_id: ProducerId) -> int:
        return bisect_left(self.members, producer_id, key=_producer_id)

    def committed_token(self, scope: str) -> CommittedToken | None:
        return next((token for token in self.tokens if token.scope == scope), None)

    @property
    def is_decided(self) -> bool:
        """Whether the decision is in the log. Its markers may not all be stored yet."""
        return self.state is State.PREPARE_COMMIT or self.state is State.PREPARE_ABORT


def _producer_id(member: Member) -> ProducerId:
    return member.producer_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A change by one member of an open multi-writer transaction. The newest delta of a member holds all of the member.

    It applies where the id's last whole record precedes it in the log and has its serial.
    """

    transactional_id: str
    serial: Serial
    elapsed_ms: Millis
    limit_ms: Millis
    last_update_ms: TimestampMs
    member: Member | None = None            # None: only the limit has changed

    @property
    def producer_id(self) -> ProducerId:
        """Part of the record's key; -1: the delta belongs to no member."""
        return NO_PRODUCER_ID if self.member is None else self.member.producer_id


class Tombstone(NamedTuple):
    """The record that removes an expired transactional id, and its deltas."""

    transactional_id: str
    deltas: tuple[ProducerId, ...] = ()


Record = Transaction | Delta | Tombstone
