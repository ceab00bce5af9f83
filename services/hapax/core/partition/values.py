"""Arguments and results of the partition machine (`hapax.core.partition.machine`)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.producer_table import WINDOW


class Condition(NamedTuple):
    """What a writer says of its batch's records (rule 21)."""

    scope: int
    """Which records they belong with, see `hapax.core.partition.scopes`; 0: with all."""
    expected: int = -1
    """Append only if no record of the scope was appended at or after this offset; -1: unconditionally."""


class AppendContext(NamedTuple):
    """The origin of a batch. The hot path uses the constants below."""

    internal: bool = False
    """From a registered node of the cluster: exempt from sequence checks and verification (rule 1)."""
    shard_epoch: int = -1
    """With `internal`: the epoch of the writing shard; -1 where none applies."""
    verified: bool = False
    """The coordinator has just confirmed that the partition is part of the producer's transaction (rule 3)."""
    condition: Condition | None = None
    """None: unconditionally, and of every scope."""

    def under(self, condition: Condition | None) -> AppendContext:
        return self if condition is None else self._replace(condition=condition)


CLIENT: Final = AppendContext()
VERIFIED: Final = AppendContext(verified=True)

UNKNOWN_CHECKSUM: Final = -1


class Append(NamedTuple):
    """Append the batch at the end of the log, then replay it."""


class NeedVerification(NamedTuple):
    """Park the batch and ask the transaction coordinator first (`hapax.core.partition.verification`)."""


class Duplicate(NamedTuple):
    """The log already holds the batch: append nothing. Answer as for the original once `high_watermark > wait_for`."""

    base_offset: int
    """Of the original batch, or of the last marker for a marker. -1: no longer known, see `error`."""
    wait_for: int
    """Last offset of the original, or a later offset."""
    error: ErrorCode = ErrorCode.NONE
    """DUPLICATE_SEQUENCE_NUMBER if the original is older than the window of five batches, so that its offset is no
    longer known. Clients treat that error as success, so its answer waits like a success (rule 15)."""


class RecordError(NamedTuple):
    """Why one record of a batch is refused (KIP-467)."""

    position: int
    """In the batch, from 0."""
    message: str


class BadRecords(Refusal):
    """A batch is refused for some of its records: INVALID_RECORD, or INVALID_TIMESTAMP."""

    def __init__(self, code: ErrorCode, reason: str, errors: Sequence[RecordError]) -> None:
        super().__init__(code, reason)
        self.errors = tuple(errors)


class OtherBatch(Refusal):
    """A transactional batch has the sequences of a stored one of its transaction, and another checksum. It is a retry
    all the same if the stored batch was compressed in another way: then their records are the same."""

    def __init__(self, reason: str, stored: Duplicate) -> None:
        super().__init__(ErrorCode.UNKNOWN_PRODUCER_ID, reason)
        self.stored = stored


class StaleEpoch(Refusal):
    """A batch or marker of an epoch that the partition knows to be fenced. Its coordinator knows by whom."""

    def __init__(self, producer_id: int, producer_epoch: int, reason: str) -> None:
        super().__init__(ErrorCode.INVALID_PRODUCER_EPOCH, reason)
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch


class WriteResult(NamedTuple):
    """What a write to one partition is answered (Produce)."""

    error: int
    """An `ErrorCode`."""
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    reason: str = ""
    record_errors: tuple[RecordError, ...] = ()


APPEND: Final = Append()
NEED_VERIFICATION: Final = NeedVerification()
AppendDecision = Append | Duplicate | NeedVerification


@dataclass(slots=True)
class OpenTransaction:
    """A transaction that has data in this partition and no marker yet."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    record_count: int
    start_timestamp: int
    """Of its first batch (the client's clock)."""
    serial: int = field(default=-1, compare=False)
    """By which its coordinator knows it; -1: this process has not been told. Not part of the replicated state."""
    verified: bool = field(default=False, compare=False)
    """This leader has asked about it, so its producer's next batch needs no question. Not part of it either."""
    checksums: tuple[int, ...] = field(default=(), compare=False, repr=False)
    """CRC-32C of its newest batches, newest first, at most a producer's window; UNKNOWN_CHECKSUM: not what the
    client sent. From the log; shorter where a snapshot of a former release was loaded."""

    def note(self, checksum: int) -> None:
        """A batch was appended. With LogAppendTime the leader changes its time and its checksum: then `checksum` is
        UNKNOWN_CHECKSUM."""
        self.checksums = (checksum, *self.checksums[: WINDOW - 1])

    def holds(self, place: int, checksum: int) -> bool:
        """Whether the batch `place` batches back may have this checksum."""
        return place >= len(self.checksums) or self.checksums[place] in (UNKNOWN_CHECKSUM, checksum)


@dataclass(frozen=True, slots=True)
class ProducerView:
    """A producer's state for descriptions. The table itself is packed."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    """-1: no batch in this epoch."""
    last_offset: int
    """Of its last batch or marker; -1: it has none."""
    last_timestamp: int
    coordinator_epoch: int
    txn_first_offset: int
    """-1: no open transaction."""
    record_count: int
    """Over all generations and sequence wraps, without records of aborted and of open transactions."""
    txn_record_count: int
    keep_until_ms: int
    """-1: not leased."""
    serial: int
    """Of its last decided transaction; -1: not known."""


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """The state at one offset, independent of the machine. Encoded by `hapax.codec.snapshot`."""

    offset: int
    """The log's end at the snapshot. Replay continues here."""
    pages: Sequence[tuple[bytes, bytes]] = ()
    """(keys, rows) of `ProducerTable`. Rows of dead producers may be among them (see `expired_below`)."""
    ended_leases: array[int] = field(default_factory=lambda: array("q"))
    open_transactions: Sequence[OpenTransaction] = ()
    """By first offset."""
    undecided: Sequence[tuple[int, int]] = ()
    """(first offset, marker's offset) of transactions whose marker was not yet below the high watermark."""
    shard_epoch: int = -1
    marker_epochs: dict[int, int] = field(default_factory=dict)
    """Transaction shard -> highest epoch seen in its markers."""
    expired_below: int = -1
    expired_at_ms: int = -1
    marks: Sequence[tuple[int, int]] = ()
    """(wall clock ms, end of the log then), for expiry."""
