"""What goes into the transaction machine (requests, results) and what comes out (decisions, replies, effects).

The service's loop for one request is always the same::

    outcome = shard.end_txn(request, now)            # raises Refusal: answer its code
    match outcome:
        Decision(record=None)   -> answer `reply` (after confirming leadership where `confirm`, rule 12)
        Decision(record=r)      -> persist r; effects = shard.replay(r, now); carry them out; answer `reply`;
                                   where `reply` is None: ask again, as for a request that was held
        Held(until)             -> park it; ask again after each replay of this id, and at `until` at the latest
        NeedProducerId()        -> await a block of ids, offer it to the reserve, ask again
        CheckWinners(checks)    -> ask the brokers, then ask again with the request's `missing` filled in
        CloseConnection(reason) -> drop the caller's connection without an answer (rule 4)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from hapax.core.errors import ErrorCode
from hapax.core.transaction.record import (
    NO_TRANSACTION,
    CommittedToken,
    Fingerprint,
    ProducerIdentity,
    Record,
    Token,
    TransactionPartition,
)
from hapax.core.types import (
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SERIAL,
    Millis,
    Offset,
    ProducerEpoch,
    ProducerId,
    Sequence,
    Serial,
    TimestampMs,
    TopicIdPartition,
    TopicPartition,
)


class Now(NamedTuple):
    """The two clocks of an event: monotonic for limits, wall for what people read."""

    monotonic: Millis
    wall: TimestampMs


class ProducerIdReserve(Protocol):
    """Ids fetched ahead from the allocator, shared by the shards of a process."""

    def take(self) -> ProducerId | None:
        """An id that nobody else gets, or None when the reserve is empty. One that is not used is wasted."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Settings of the coordinator, under Kafka's names where it has them."""

    max_timeout_ms: int = 15 * 60 * 1000                # transaction.max.timeout.ms
    default_timeout_ms: int = 60 * 1000                 # where JoinTransaction names none
    id_expiration_ms: int = 7 * 24 * 3600 * 1000        # transactional.id.expiration.ms
    token_id_expiration_ms: int = 365 * 24 * 3600 * 1000
    """For ids with a commit token: losing one would let a replayed batch in again (rule 7)."""
    single_use_keep_ms: int = 15 * 60 * 1000            # transaction.single.use.retention.ms
    """For tokens of single-use scopes, and ids that had no other: whose answer was lost asks again within it."""
    hold_ms: int = 1000
    """A call that meets an unfinished transaction is held so long before it is told CONCURRENT_TRANSACTIONS."""
    max_scopes: int = 100                               # transaction.max.scopes: of one transactional id
    max_members: int = 1000                             # transaction.max.members: of one multi-writer transaction


# --- requests -----------------------------------------------------------------------------------------------------


class Caller(NamedTuple):
    """Who asks, for holds, for connection fencing and for 'fenced by whom'."""

    client_id: str
    peer: str
    arrived: Millis         # monotonic; holds are measured from it
    connection: int = -1    # serial of the framed connection; -1: a call from another service
    api_version: int = 0    # of the Kafka request; decides between error codes 47 and 90


@dataclass(frozen=True, slots=True)
class InitProducerId:
    transactional_id: str
    timeout_ms: int
    caller: Caller
    producer_id: ProducerId = NO_PRODUCER_ID            # with an epoch: the producer recovers (KIP-360)
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    enable_two_phase_commit: bool = False
    keep_prepared: bool = False


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxn:
    """From a version-1 client, or for AddOffsetsToTxn with the group's partition of `__consumer_offsets`.

    Version 2 has neither call: a partition is registered by the broker or group shard that is written to.
    """

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    partitions: tuple[TransactionPartition, ...]
    caller: Caller
    unknown: tuple[TopicPartition, ...] = ()            # asked for, but no such topic or partition exists


@dataclass(frozen=True, slots=True)
class VerifyPartitions:
    """From a partition broker or a group shard at the first write; with `add` (version 2) it registers them."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    partitions: tuple[TransactionPartition, ...]
    add: bool
    caller: Caller
    unknown: tuple[TopicPartition, ...] = ()
    after_serial: Serial = NO_TRANSACTION               # decided where it is asked: the one asked about comes later
    serial: Serial = NO_SERIAL                          # the last to begin before the question came; below 0: not told


@dataclass(frozen=True, slots=True)
class EndTxn:
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    commit: bool
    caller: Caller
    transaction_version: int = 1                        # EndTxn v5 and later: 2


class CommitName(NamedTuple):
    """The newest commit of a scope, as its next owner names it to go on from it."""

    owner: str
    value: int


@dataclass(frozen=True, slots=True)
class TokenWork:
    """What an engine that replays says of the work behind its token (rule 7). Without it a token is its value alone."""

    owner: str = ""                                     # the query; empty: the token has none
    run: str = ""                                       # the driver: another one each time the owner is started
    follows: int | None = None                          # the owner's number that was committed last; None: any
    continue_from: CommitName | None = None             # goes on from another owner's commit, or over a newer one
    fingerprints: tuple[Fingerprint, ...] = ()          # the first of a kind that is kept, too, is compared
    allow_other_work: bool = False                      # confirm a replay whose fingerprint differs
    followed: tuple[Fingerprint, ...] = ()              # of `follows`; the first of a kind that is kept is compared


NO_TOKEN_WORK: Final = TokenWork()


@dataclass(frozen=True, slots=True)
class JoinTransaction:
    transactional_id: str
    token: Token
    member_key: str
    timeout_ms: int                                     # 0: the default
    caller: Caller
    allow_unknown_history: bool = False
    work: TokenWork = NO_TOKEN_WORK


@dataclass(frozen=True, slots=True)
class RenewTransaction:
    transactional_id: str
    serial: Serial
    timeout_ms: int                                     # from now on
    caller: Caller
    token: Token | None = None


class WinnerPartition(NamedTuple):
    partition: TransactionPartition
    last_sequence: Sequence


@dataclass(frozen=True, slots=True)
class Winner:
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    partitions: tuple[WinnerPartition, ...]


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """The decision with a commit token: of one writer (`producer_id` set) or of many (`winners`)."""

    transactional_id: str
    commit: bool
    caller: Caller
    token: Token | None = None
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    winners: tuple[Winner, ...] = ()
    record_count: int = 0
    allow_other_count: bool = False
    serial: Serial = NO_TRANSACTION                     # multi-writer: the transaction meant; 0: the token's
    allow_unknown_history: bool = False
    single_use: bool = False                            # the token's scope has no other commit
    work: TokenWork = NO_TOKEN_WORK
    missing: tuple[WinnerCheck, ...] | None = None
    """The answer to `CheckWinners`: records that the partitions do not hold. None: the partitions were not asked."""


@dataclass(frozen=True, slots=True)
class GetCommitToken:
    transactional_id: str
    scope: str
    caller: Caller


@dataclass(frozen=True, slots=True)
class AbortHanging:
    """A broker found a transaction open on a partition for too long (rule 9)."""

    transactional_id: str                               # empty: the broker does not know it
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    partition: TransactionPartition
    first_offset: Offset
    caller: Caller
    serial: Serial = NO_SERIAL                          # of the transaction open there; below 1: not known
    last_offset: Offset = NO_OFFSET                     # of the producer, as the broker saw it; -1: not told


@dataclass(frozen=True, slots=True)
class EnsureTransactionalId:
    """That the id has a producer id; nobody is fenced by it."""

    transactional_id: str
    caller: Caller


@dataclass(frozen=True, slots=True)
class FenceProducer:
    """Whoever holds the id, if that is the instance which was seen."""

    transactional_id: str
    instance: str                                       # as `transaction_admin.instance_of` told
    caller: Caller
    serial: Serial = NO_TRANSACTION                     # only while this transaction is open; 0: whichever is


Request = (
    InitProducerId | AddPartitionsToTxn | VerifyPartitions | EndTxn | JoinTransaction | RenewTransaction
    | EndTransaction | GetCommitToken | AbortHanging | EnsureTransactionalId | FenceProducer
)


# --- outcomes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Held:
    """Not yet: ask again after each replay of this id; at `until` (monotonic) the machine refuses by itself (51)."""

    until: Millis


@dataclass(frozen=True, slots=True)
class NeedProducerId:
    """The reserve of producer ids is empty: fetch a block, then ask again."""


class WinnerCheck(NamedTuple):
    """The partition must hold this producer's records of the open transaction up to `last_sequence`."""

    partition: TransactionPartition
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    last_sequence: Sequence


@dataclass(frozen=True, slots=True)
class CheckWinners:
    """Before a multi-writer commit is decided: ask the partitions' leaders, then ask again with what is missing."""

    serial: Serial
    checks: tuple[WinnerCheck, ...]


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Superseded by a newer connection, or older than the load: drop it, answer nothing; the client comes back."""

    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    record: Record | None
    """To persist, then to replay. None: nothing changes."""
    reply: Reply | None
    """To answer when the record is durable. None: nobody asked (time-out, completion), or the record only makes way:
    ask again after its replay."""
    confirm: bool = False
    """Others decide on this answer: confirm the shard's leadership at its partition first (rule 12)."""
    effects: tuple[Effect, ...] = ()
    """Beside those that `replay` returns: carry out at once."""


# --- replies ------------------------------------------------------------------------------------------------------


# InitProducerId, and EndTxn of version 2, are answered with the `ProducerIdentity` under which the producer goes on.


class EndOutcome(IntEnum):
    """As in `hapax.v1.Outcome`."""

    COMMITTED = 1
    ABORTED = 2
    ALREADY_COMMITTED = 3


class PartitionResult(NamedTuple):
    topic: str
    partition: int
    error: ErrorCode
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PartitionResults:
    """For AddPartitionsToTxn, AddOffsetsToTxn (one entry) and VerifyPartitions, in the request's order."""

    serial: Serial
    results: tuple[PartitionResult, ...]


@dataclass(frozen=True, slots=True)
class Joined:
    already_committed: bool
    identity: ProducerIdentity
    serial: Serial
    committed: CommittedToken | None                    # the newest of the scope
    remaining_ms: Millis


@dataclass(frozen=True, slots=True)
class Renewed:
    remaining_ms: Millis


@dataclass(frozen=True, slots=True)
class Ended:
    outcome: EndOutcome
    identity: ProducerIdentity                          # single-writer: for the next transaction
    serial: Serial
    committed_records: int = 0


@dataclass(frozen=True, slots=True)
class CommitTokenFound:
    token: CommittedToken | None


@dataclass(frozen=True, slots=True)
class HangingAborted:
    """The conditional marker is in the decision's effects."""


@dataclass(frozen=True, slots=True)
class InstanceFenced:
    identity: ProducerIdentity                          # that counts now


Reply = (
    ProducerIdentity | PartitionResults | Joined | Renewed | Ended | CommitTokenFound | HangingAborted | InstanceFenced
)


# --- effects ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Marker:
    """One producer's marker for the partitions it wrote in a transaction."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch                       # as it stands in the marker (version 2: raised)
    commit: bool
    partitions: tuple[TransactionPartition, ...]
    """Those of `__consumer_offsets` go through their group shard (rule 2)."""


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """Send until each is answered, without end; report to `markers_answered`. All of one partition are one append."""

    transactional_id: str
    serial: Serial
    transaction_version: int
    markers: tuple[Marker, ...]
    first_offset: Offset = NO_OFFSET                    # conditional: decides only a transaction that began there,
    last_offset: Offset = NO_OFFSET                     # and to which nothing was written after this


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Call `time_out` at `at` (monotonic). Replaces the id's timer."""

    transactional_id: str
    at: Millis


@dataclass(frozen=True, slots=True)
class StopTimer:
    transactional_id: str


@dataclass(frozen=True, slots=True)
class ReportFencing:
    """For `__hapax_events`: the replayed transaction's `fencing` is new."""

    transactional_id: str


Effect = SendMarkers | StartTimer | StopTimer | ReportFencing


# --- results of markers -------------------------------------------------------------------------------------------


class MarkerResult(NamedTuple):
    producer_id: ProducerId
    partition: TopicIdPartition
    error: ErrorCode                                    # NONE: stored and durable


@dataclass(frozen=True, slots=True)
class MarkersProgress:
    decision: Decision | None                           # the COMPLETE record, once every marker is stored
    retry: SendMarkers | None                           # what has to be sent again
