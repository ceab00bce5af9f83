"""What the log keeps of a transactional id: one immutable `Transaction` is one record's value, and it is the state.

Deciding makes the next `Transaction`; persisting writes it; replaying puts it in the place of the last. Live operation
and recovery cannot differ, because there is nothing else to restore.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from hapax.core.transaction_states import State
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
_NO_TIME: Final = Millis(0)
FIRST_EPOCH: Final = ProducerEpoch(0)
LAST_EPOCH: Final = ProducerEpoch(MAX_PRODUCER_EPOCH - 1)
"""The last epoch a client is ever given; a raise from here needs a new producer id, but fencing can still raise it."""


class TransactionPartition(NamedTuple):
    """A partition of a transaction: by name for people and Kafka's schema, by id for markers (rule 10)."""

    topic: str
    topic_id: TopicId
    partition: PartitionIndex

    @property
    def by_id(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.partition)


class FencingCause(IntEnum):
    """Why an epoch was raised by another hand."""

    INITIALIZED = 0      # another InitProducerId
    TIMED_OUT = 1        # the transaction outlived its limit
    NEWER_TOKEN = 2      # a newer commit token, or another scope's, opened the next transaction


class Holder(NamedTuple):
    """Who initialised the transactional id last."""

    client_id: str
    peer: str                       # host:port


@dataclass(frozen=True, slots=True)
class Fencing:
    """Who fenced whom, when and from where; kept with the id, so that every later refusal can say it."""

    cause: FencingCause
    at_ms: TimestampMs
    client_id: str                  # of the caller that fenced; empty: the coordinator itself (time-out)
    peer: str                       # host:port of that caller
    fenced_producer_id: ProducerId  # -1: all members of a multi-writer transaction
    fenced_epoch: ProducerEpoch     # the highest epoch that is refused from now on
    serial: Serial                  # of the transaction that was open then, or the last one
    fenced: Holder | None = None    # who held the id until then


@dataclass(frozen=True, slots=True)
class CommittedToken:
    """The newest commit token of a scope (rule 7)."""

    scope: str
    value: int
    record_count: int
    serial: Serial                  # of the transaction that committed it
    committed_at_ms: TimestampMs


class LastOutcome(NamedTuple):
    """Of the newest transaction that was decided."""

    committed: bool
    at_ms: TimestampMs


class Token(NamedTuple):
    """A commit token: `value` rises with every commit of `scope`."""

    scope: str
    value: int


class ProducerIdentity(NamedTuple):
    """What a producer writes and calls under."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch


@dataclass(frozen=True, slots=True)
class Member:
    """One writer of a multi-writer transaction (one task attempt)."""

    key: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    partitions: tuple[TransactionPartition, ...] = ()
    won: tuple[TransactionPartition, ...] = ()
    """After PREPARE_COMMIT: where this member's records are committed. Its other partitions are aborted."""


@dataclass(frozen=True, slots=True)
class Policy:
    """In the log's format since its first version, and set by nobody: what the platform allows an id stands in the
    metadata store (`transaction_policy`), where it is changed and taken back without its coordinator."""

    allowed_topics: tuple[str, ...] = ()    # empty: every topic
    max_timeout_ms: int = 0                 # 0: the cluster's transaction.max.timeout.ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transactional id as its last record left it (TransactionLogValue v1 and Hapax's tagged fields)."""

    transactional_id: str
    state: State
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    """The epoch under which the producer goes on. After a version-2 decision, and in its markers: the raised one."""
    last_producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    """The epoch before the last raise *by this very producer*: a retried call still bears it. -1: raised by another."""
    previous_producer_id: ProducerId = NO_PRODUCER_ID
    """The producer id before an exhausted one was replaced, for retries across the change."""
    next_producer_id: ProducerId = NO_PRODUCER_ID
    """In PREPARE_*: the id that replaces the exhausted one at completion, already told to the client."""
    timeout_ms: int = 60_000
    client_version: int = 1                 # transactions version of the client: 1 or 2
    partitions: tuple[TransactionPartition, ...] = ()
    """Of the single writer; a multi-writer transaction has them with its members."""
    start_ms: TimestampMs = NO_TIMESTAMP    # wall clock, for people and Kafka's schema
    last_update_ms: TimestampMs = NO_TIMESTAMP
    serial: Serial = NO_TRANSACTION
    """Of the open or last transaction. Markers carry it, and a partition takes each serial once (rule 9)."""
    elapsed_ms: Millis = _NO_TIME           # how long the transaction was open when the record was made (rule 14)
    limit_ms: Millis = _NO_TIME             # how long it may be open; RenewTransaction moves it
    holder: Holder | None = None            # None: nobody, or only members of multi-writer transactions
    fencing: Fencing | None = None
    tokens: tuple[CommittedToken, ...] = ()
    open_token: Token | None = None         # set: the open or deciding transaction is a multi-writer one
    members: tuple[Member, ...] = ()
    idle_members: tuple[ProducerIdentity, ...] = ()
    """Member identities to be used next; their number is bounded by the peak of parallelism (rule 6)."""
    policy: Policy | None = None
    outcome: LastOutcome | None = None

    @property
    def is_open(self) -> bool:
        return self.state is State.ONGOING

    @property
    def is_multi_writer(self) -> bool:
        """The open or deciding transaction is written by members."""
        return self.open_token is not None

    @property
    def identity(self) -> ProducerIdentity:
        """Under which the single writer makes its next call; without a producer id yet: (-1, -1)."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdentity(self.next_producer_id, FIRST_EPOCH)
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def last_identity(self) -> ProducerIdentity | None:
        """Under which a call that is retried after its effect still comes; None where that producer was fenced."""
        if self.last_producer_epoch == NO_PRODUCER_EPOCH:
            return None
        replaced = self.previous_producer_id
        return ProducerIdentity(
            self.producer_id if replaced == NO_PRODUCER_ID else replaced, self.last_producer_epoch
        )

    @property
    def epoch_exhausted(self) -> bool:
        return self.producer_epoch >= LAST_EPOCH

    @property
    def highest_producer_id(self) -> ProducerId:
        """Of those it uses or has used, its members' included."""
        return max(
            self.producer_id, self.next_producer_id, self.previous_producer_id,
            *(member.producer_id for member in self.members), *(member.producer_id for member in self.idle_members),
        )

    @property
    def every_partition(self) -> tuple[TransactionPartition, ...]:
        """Of the single writer or of all members, each once, in the order of their registration."""
        if not self.members:
            return self.partitions
        return tuple(dict.fromkeys(partition for member in self.members for partition in member.partitions))

    def member(self, producer_id: ProducerId) -> Member | None:
        return next((member for member in self.members if member.producer_id == producer_id), None)

    def committed_token(self, scope: str) -> CommittedToken | None:
        return next((token for token in self.tokens if token.scope == scope), None)

    @property
    def is_decided(self) -> bool:
        """The decision is in the log, its markers may not all be stored yet."""
        return self.state is State.PREPARE_COMMIT or self.state is State.PREPARE_ABORT


class Tombstone(NamedTuple):
    """The record that removes an expired transactional id."""

    transactional_id: str


Record = Transaction | Tombstone
