"""The transaction machine's inputs (requests, results) and outputs (decisions, replies, effects).

The service handles every request with the same loop::

    outcome = shard.end_txn(request, now)            # raises Refusal: answer its code
    match outcome:
        Decision(record=None)   -> answer `reply` (after confirming leadership where `confirm`, rule 12)
        Decision(record=r)      -> persist r; effects = shard.replay(r, now); carry them out; answer `reply`;
                                   where `reply` is None: ask again, as after Held
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
    Transaction,
    TransactionPartition,
)
from hapax.core.transaction.states import State
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
    TopicIdPartition,
    TopicPartition,
)


class ProducerIdReserve(Protocol):
    """Producer ids fetched ahead from the allocator. The shards of a process share them."""

    def take(self) -> ProducerId | None:
        """An id that no other caller gets, or None when the reserve is empty. An unused id is lost."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Settings of the coordinator, with Kafka's names where Kafka has them."""

    max_timeout_ms: int = 15 * 60 * 1000                # transaction.max.timeout.ms
    default_timeout_ms: int = 60 * 1000                 # where JoinTransaction has none
    id_expiration_ms: int = 7 * 24 * 3600 * 1000        # transactional.id.expiration.ms
    token_id_expiration_ms: int = 365 * 24 * 3600 * 1000
    """For ids with a commit token. Without the token, a replayed batch would be committed again (rule 7)."""
    single_use_keep_ms: int = 15 * 60 * 1000            # transaction.single.use.retention.ms
    """For tokens of single-use scopes, and for ids that have only such tokens. A caller whose answer was lost repeats
    its request within this time."""
    hold_ms: int = 1000
    """A call that meets an unfinished transaction is held for this time. Then it gets CONCURRENT_TRANSACTIONS."""
    max_scopes: int = 100                               # transaction.max.scopes: of one transactional id
    max_members: int = 1000                             # transaction.max.members: of one multi-writer transaction
    two_phase_commit: bool = False                      # transaction.two.phase.commit.enable


# --- requests -----------------------------------------------------------------------------------------------------


class Caller(NamedTuple):
    """The caller of a request. Holds, connection fencing and descriptions of a fencing need it."""

    client_id: str
    peer: str
    arrived: Millis         # monotonic; holds are measured from it
    connection: int = -1    # serial of the framed connection; -1: a call from another service
    api_version: int = 0    # of the Kafka request; decides between error codes 47 and 90
    principal: str | None = None  # for the audit log; no decision depends on it
    call: str = ""          # likewise, such as EndTxn
    address: str = ""       # likewise: IP address, where it is not that of `peer`


@dataclass(frozen=True, slots=True)
class InitProducerId:
    transactional_id: str
    timeout_ms: int
    caller: Caller
    producer_id: ProducerId = NO_PRODUCER_ID            # with an epoch: the producer recovers (KIP-360)
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    enable_two_phase_commit: bool = False               # KIP-939: its transactions have no time limit
    keep_prepared: bool = False                         # KIP-939: an open transaction stays open


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxn:
    """From a version-1 client, or for AddOffsetsToTxn with the group's partition of `__consumer_offsets`.

    Version 2 has neither call: the broker or group shard registers a partition when it is first written.
    """

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    partitions: tuple[TransactionPartition, ...]
    caller: Caller
    unknown: tuple[TopicPartition, ...] = ()            # requested, but no such topic or partition exists


@dataclass(frozen=True, slots=True)
class VerifyPartitions:
    """From a partition broker or a group shard at the first write. With `add` (version 2) it registers the partitions.
    """

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    partitions: tuple[TransactionPartition, ...]
    add: bool
    caller: Caller
    unknown: tuple[TopicPartition, ...] = ()
    after_serial: Serial = NO_TRANSACTION
    """The partition has this transaction's marker, so the question is about a later one."""
    serial: Serial = NO_SERIAL                          # the last to begin before the question came; below 0: unknown


@dataclass(frozen=True, slots=True)
class EndTxn:
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    commit: bool
    caller: Caller
    transaction_version: int = 1                        # EndTxn v5 and later: 2


class CommitName(NamedTuple):
    """The newest commit of a scope. The scope's next owner names it in order to continue after it."""

    owner: str
    value: int


@dataclass(frozen=True, slots=True)
class TokenWork:
    """An engine's description of the work behind its token (rule 7). Without it, a token has only its value."""

    owner: str = ""                                     # the query; empty: the token has no owner
    run: str = ""                                       # the driver: it changes each time the owner is started
    follows: int | None = None                          # the owner's number that was committed last; None: any
    continue_from: CommitName | None = None             # continue after another owner's commit, or replace a newer one
    fingerprints: tuple[Fingerprint, ...] = ()          # the first kind that is also stored is compared
    allow_other_work: bool = False                      # confirm a replay whose fingerprint differs
    followed: tuple[Fingerprint, ...] = ()              # of `follows`; the first kind that is also stored is compared


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
    partition: TransactionPartition | None = None       # that the member will write first
    tentative: bool = False                             # it has nothing to write yet


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
    """Commits or aborts with a commit token: for one writer (`producer_id` set) or for many (`winners`)."""

    transactional_id: str
    commit: bool
    caller: Caller
    token: Token | None = None
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    winners: tuple[Winner, ...] = ()
    record_count: int = 0
    allow_other_count: bool = False
    serial: Serial = NO_TRANSACTION                     # multi-writer: of this transaction; 0: of the token's
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
    """From a broker that found a transaction open on a partition for too long (rule 9)."""

    transactional_id: str                               # empty: the broker does not know it
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    partition: TransactionPartition
    first_offset: Offset
    caller: Caller
    serial: Serial = NO_SERIAL                          # of the transaction open there; below 1: unknown
    last_offset: Offset = NO_OFFSET                     # of the producer, as the broker saw it; -1: unknown


@dataclass(frozen=True, slots=True)
class EnsureTransactionalId:
    """Gives the id a producer id where it has none. It fences no producer."""

    transactional_id: str
    caller: Caller


@dataclass(frozen=True, slots=True)
class RestoreTransactionalId:
    """Creates the id as it was at a backup's cut, under a new producer id."""

    transactional_id: str
    former: Transaction                                 # as `admin.restored` gives it
    producer_id_floor: int
    caller: Caller


@dataclass(frozen=True, slots=True)
class FenceProducer:
    """Fences the producer that holds the id, if it is still this instance."""

    transactional_id: str
    instance: str                                       # from `admin.instance_of`
    caller: Caller
    serial: Serial = NO_TRANSACTION                     # only while this transaction is open; 0: in any case


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    """An operator commits a transaction under two-phase commit, in place of its producer, which is fenced."""

    transactional_id: str
    serial: Serial
    caller: Caller


Request = (
    InitProducerId | AddPartitionsToTxn | VerifyPartitions | EndTxn | JoinTransaction | RenewTransaction
    | EndTransaction | GetCommitToken | AbortHanging | EnsureTransactionalId | FenceProducer | CommitPrepared
    | RestoreTransactionalId
)


# --- outcomes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Held:
    """Ask again after each replay of this id. Asked at `until` (monotonic) or later, the machine refuses with 51."""

    until: Millis


@dataclass(frozen=True, slots=True)
class NeedProducerId:
    """The reserve of producer ids is empty. Fetch a block, then ask again."""


class WinnerCheck(NamedTuple):
    """The partition must hold the records of this producer's open transaction up to `last_sequence`."""

    partition: TransactionPartition
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    last_sequence: Sequence


@dataclass(frozen=True, slots=True)
class CheckWinners:
    """A multi-writer commit needs to know which records are missing. Ask the partitions' leaders, then ask again with
    the request's `missing` set."""

    serial: Serial
    checks: tuple[WinnerCheck, ...]


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """The connection is superseded by a newer one, or older than the load. Close it without an answer: a live client
    connects again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    record: Record | None
    """Persist it, then replay it. None: nothing changes."""
    reply: Reply | None
    """The answer, once the record is durable. None: there is no caller (time-out, completion), or the record only
    prepares the decision: ask again after its replay."""
    confirm: bool = False
    """The caller makes a decision from this answer: first confirm the shard's leadership at its partition (rule 12)."""
    effects: tuple[Effect, ...] = ()
    """To carry out at once. `replay` returns further effects."""
    pending: State | None = None
    """The id's state while the record is being written. None: the record's own state."""


# --- replies ------------------------------------------------------------------------------------------------------


# The reply to InitProducerId, and to EndTxn of version 2, is the `ProducerIdentity` that the producer uses next.


@dataclass(frozen=True, slots=True)
class Kept:
    """The reply to an InitProducerId that has kept an open transaction (KIP-939)."""

    identity: ProducerIdentity                          # of the caller, with which it ends the transaction
    ongoing: ProducerIdentity                           # of the transaction, as its producer saved it


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
    registered: bool = False                            # the request's partition belongs to the member
    noted: bool = True                                  # the caller's run is among those of the transaction


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
    ProducerIdentity | Kept | PartitionResults | Joined | Renewed | Ended | CommitTokenFound | HangingAborted
    | InstanceFenced
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
    """Send until every marker is stored, without a limit, and report to `markers_answered`. All markers of one
    partition are one append."""

    transactional_id: str
    serial: Serial
    transaction_version: int
    markers: tuple[Marker, ...]
    first_offset: Offset = NO_OFFSET                    # conditional: decides only a transaction that began here
    last_offset: Offset = NO_OFFSET                     # conditional: and that has no record after this one


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Call `time_out` at `at` (monotonic). It replaces the id's timer."""

    transactional_id: str
    at: Millis


@dataclass(frozen=True, slots=True)
class StopTimer:
    transactional_id: str


@dataclass(frozen=True, slots=True)
class ReportFencing:
    """Write an event to `__hapax_events`: the replayed transaction's `fencing` is new."""

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
    retry: SendMarkers | None                           # the markers to send again
