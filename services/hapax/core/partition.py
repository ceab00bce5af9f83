"""One partition's state, as a function of its log.

The rules everything else follows from:

* **Decide, persist, replay.** `decide_*` only reads and says what to append; the broker appends; `replay*` alone
  changes the state, in live operation, in recovery and on followers alike. Between a decision and its replay the
  broker must not decide anything else for the partition (its mailbox is the only writer).
* **Decisions are made at the end of the log, answers leave at the high watermark.** A duplicate's answer too:
  it carries the offset that must lie below the high watermark first (rule 5).
* **Nothing here is a client's word for it.** What replicas must agree on comes from the log alone; the wall clock is
  used for leases only, and expiry is itself a record.

Header and control record come decoded; see `hapax.core.batch` and `hapax.core.control`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from hapax.core.batch import BatchHeader
from hapax.core.control import Control, Marker, ProducerExpiry, ProducerFence


class AppendContext(NamedTuple):
    """Where a batch comes from. Use the constants below on the hot path."""

    internal: bool = False
    """From a registered node of the cluster: exempt from sequence checks and verification (rule 1)."""
    shard_epoch: int = -1
    """With `internal`: the epoch of the writing shard; -1 where none applies."""
    verified: bool = False
    """The coordinator has just confirmed that the partition is part of the producer's transaction (rule 3)."""
    expected_offset: int = -1
    """Conditional append: append only if the log ends here; -1: unconditionally (rule 21)."""


CLIENT: Final = AppendContext()
VERIFIED: Final = AppendContext(verified=True)


class Append(NamedTuple):
    """Append the batch at the end of the log, then replay it."""


class NeedVerification(NamedTuple):
    """Park the batch and ask the transaction coordinator first (`hapax.core.verification`)."""


class Duplicate(NamedTuple):
    """The log holds it already: append nothing, answer as for the original once `wait_for` is below the high
    watermark, that is once `high_watermark > wait_for`."""

    base_offset: int
    """Of the original batch; of the last marker for a marker."""
    wait_for: int
    """Last offset of the original."""
    timestamp: int = -1
    """Maximum timestamp of the original; its log-append time where the topic has that."""


APPEND: Final = Append()
NEED_VERIFICATION: Final = NeedVerification()
AppendDecision = Append | Duplicate | NeedVerification


class AbortedTransaction(NamedTuple):
    """An entry of the aborted-transaction index (`.txnindex`)."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Of the marker."""
    last_stable_offset: int
    """Of the log at the marker, this transaction left out: no later entry can begin below it."""


@dataclass(slots=True)
class OpenTransaction:
    """A transaction that has data in this partition and no marker yet."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    record_count: int
    start_timestamp: int
    """Of its first batch (the client's clock)."""


@dataclass(frozen=True, slots=True)
class ProducerView:
    """A producer as one describes it; the table itself is packed."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    """-1: no batch in this epoch."""
    last_offset: int
    """Of its last batch or marker; -1: none."""
    last_timestamp: int
    coordinator_epoch: int
    txn_first_offset: int
    """-1: no open transaction."""
    record_count: int
    """Over all generations and sequence wraps, without aborted and without undecided records."""
    txn_record_count: int
    keep_until_ms: int
    """-1: not leased."""
    serial: int
    """Of the last decided transaction, -1: none known."""


class Partition:
    """The state machine of one partition. All offsets are those of the log; all methods are synchronous and pure."""

    # --- decide ---------------------------------------------------------------------------------------------------

    def decide_append(self, header: BatchHeader, now_ms: int, context: AppendContext = CLIENT) -> AppendDecision:
        """What to do with a data batch. Raises Refusal.

        `now_ms` is the wall clock (leases). The batch was checked by `check_batch`, and by `check_client_batch`
        unless internal.
        """
        raise NotImplementedError

    def decide_marker(self, marker: Marker) -> Append | Duplicate:
        """A transaction marker. Raises Refusal (INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED)."""
        raise NotImplementedError

    def decide_control(self, header: BatchHeader, control: Control, shard_epoch: int) -> Append | Duplicate:
        """A control batch of an internal writer: a shard's fence, or its markers for offsets. Raises Refusal."""
        raise NotImplementedError

    def decide_producer_fence(self, fence: ProducerFence, now_ms: int) -> Append:
        """Takes a leased producer over, renews or ends its lease. Raises Refusal."""
        raise NotImplementedError

    def decide_expiry(self, now_ms: int) -> ProducerExpiry | None:
        """Called every few minutes: the expiry record to append as a control batch, or None where nothing is due."""
        raise NotImplementedError

    # --- replay ---------------------------------------------------------------------------------------------------

    def replay(self, header: BatchHeader) -> None:
        """A data batch, at its offset (`header.base_offset` as stored in the log)."""
        raise NotImplementedError

    def replay_control(self, header: BatchHeader, control: Control) -> AbortedTransaction | None:
        """A control batch. Returns what is to be written to the `.txnindex`, where it aborted something."""
        raise NotImplementedError

    # --- ask ------------------------------------------------------------------------------------------------------

    log_start_offset: int
    log_end_offset: int
    high_watermark: int

    @property
    def last_stable_offset(self) -> int:
        """Readers with read_committed see what lies below (exclusive)."""
        raise NotImplementedError

    def aborted_transactions(self, fetch_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Those that overlap [fetch_offset, end_offset); `end_offset` is the end of the returned data."""
        raise NotImplementedError

    # --- move -----------------------------------------------------------------------------------------------------

    def advance_high_watermark(self, offset: int) -> bool:
        """Everything below `offset` is committed. Returns whether it moved; it never goes back."""
        raise NotImplementedError

    def advance_log_start(self, offset: int) -> None:
        """Records below are gone (retention, DeleteRecords). Producers' state stays."""
        raise NotImplementedError
