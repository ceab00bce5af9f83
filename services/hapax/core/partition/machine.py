"""One partition's state, as a function of its log.

Everything else follows from these rules:

* **Decide, persist, replay.** `decide_*` reads the state and returns what to append. The broker appends it. Only
  `replay*` changes the state: in live operation, in recovery and on followers. Between a decision and its replay the
  broker decides nothing else for the partition; it is the only writer.
* **Decisions are made at the end of the log; answers leave at the high watermark.** This holds for a duplicate too:
  its decision names the offset that must be below the high watermark first (rule 5).
* **Replicas agree because their state comes from the log alone.** The wall clock is used for leases only, and expiry
  is itself a record.

Batch headers and control records are passed decoded; see `hapax.core.batch` and `hapax.core.control`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from hapax.core.batch import LOG_APPEND_TIME, TRANSACTIONAL, BatchHeader
from hapax.core.control import (
    LEASE_RELEASED,
    Control,
    Marker,
    ProducerExpiry,
    ProducerFence,
    ShardFence,
    later_end,
)
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.aborted_index import AbortedIndex, AbortedTransaction
from hapax.core.partition.leader_epochs import LeaderEpochs
from hapax.core.partition.producer_table import Producer, ProducerTable
from hapax.core.partition.scopes import Scopes
from hapax.core.partition.values import (
    APPEND,
    CLIENT,
    NEED_VERIFICATION,
    UNKNOWN_CHECKSUM,
    VERIFIED,
    Append,
    AppendContext,
    AppendDecision,
    Condition,
    Duplicate,
    NeedVerification,
    OpenTransaction,
    OtherBatch,
    PartitionSnapshot,
    ProducerView,
    StaleEpoch,
)
from hapax.core.sequence import MAX_SEQUENCE, distance

__all__ = [
    "APPEND", "CLIENT", "NEED_VERIFICATION", "VERIFIED", "AbortedTransaction", "Append", "AppendContext",
    "AppendDecision", "Condition", "Duplicate", "NeedVerification", "OpenTransaction", "PartitionMachine",
    "PartitionSnapshot", "ProducerView",
]  # fmt: skip

DEFAULT_EXPIRY_MS: Final = 24 * 60 * 60 * 1000
"""producer.id.expiration.ms"""

_EXPIRY_MARKS: Final = 48
"""Number of (time, end of the log) marks kept in one expiry time: half-hourly ones with the default of 24 h."""

_MAX_AWAITED: Final = 1000


class PartitionMachine:
    """The state machine of one partition. All offsets are log offsets. All methods are synchronous and do no I/O."""

    __slots__ = (
        "_awaited", "_marks", "_open", "_undecided", "_undecided_first", "aborted", "expiry_ms", "high_watermark",
        "leader_epochs", "log_end_offset", "log_start_offset", "marker_epochs", "producers", "scopes", "shard_epoch",
    )  # fmt: skip

    def __init__(
        self,
        snapshot: PartitionSnapshot | None = None,
        *,
        log_start_offset: int = 0,
        aborted: Iterable[AbortedTransaction] = (),
        leader_epochs: Iterable[tuple[int, int]] = (),
        expiry_ms: int = DEFAULT_EXPIRY_MS,
    ) -> None:
        """A new partition, or one as of a snapshot. The caller then replays the log from `log_end_offset` on.

        `aborted` and `leader_epochs` come from the `.txnindex` files and the checkpoint. Entries above the snapshot
        are removed here and come back with the replay. Without a snapshot the whole log is replayed, from
        `log_start_offset` on.
        """
        self.expiry_ms = expiry_ms
        self.log_start_offset = log_start_offset
        self.high_watermark = log_start_offset
        self.aborted = AbortedIndex(aborted)
        self.leader_epochs = LeaderEpochs(leader_epochs)
        self.log_end_offset: int
        self.shard_epoch: int
        self.marker_epochs: dict[int, int]
        self.producers: ProducerTable
        self._open: dict[int, OpenTransaction]
        self._undecided: deque[tuple[int, int]]
        self._undecided_first: int
        self._marks: deque[tuple[int, int]]
        self._awaited: dict[int, tuple[int, int]]
        self.scopes = Scopes()
        self._load(snapshot, log_start_offset)
        self.leader_epochs.truncate_to(self.log_end_offset)

    # --- decide ---------------------------------------------------------------------------------------------------

    def decide_append(self, header: BatchHeader, now_ms: int, context: AppendContext = CLIENT) -> AppendDecision:
        """What to do with a data batch. Raises Refusal.

        `now_ms` is the wall clock (leases). The batch has passed `check_batch` and, unless internal,
        `check_client_batch`.
        """
        producer_id = header.producer_id
        if context.internal:
            self._check_shard_epoch(context.shard_epoch)
            if producer_id >= 0:
                self._check_internal_producer(header)
        elif producer_id >= 0:
            producer = self.producers.get(producer_id)
            if producer is None:
                self._check_stranger(header)
            else:
                duplicate = self._check_sequence(header, producer)
                if duplicate is not None:
                    return duplicate
                if 0 <= producer.keep_until_ms < now_ms:
                    raise Refusal(
                        ErrorCode.INVALID_PRODUCER_EPOCH,
                        f"the lease of producer {producer_id} {_ended(producer.keep_until_ms)}; lease it again",
                    )
            if (header.attributes & TRANSACTIONAL or self._open) and self._must_verify(header, context.verified):
                return NEED_VERIFICATION
        # After the duplicate check: the retry of a conditional append that succeeded must find its own batch, not a
        # condition that it broke itself (rule 21).
        if context.condition is not None:
            self.scopes.check(context.condition, self.log_end_offset)
        return APPEND

    def _check_stranger(self, header: BatchHeader) -> None:
        """A producer without state here may begin at any sequence, because the partition may have expired it. Raises
        Refusal where its lease ended here, or where an earlier batch of it was refused and has not come again."""
        producer_id = header.producer_id
        if self.producers.lease_has_ended(producer_id):
            raise Refusal(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"the lease of producer {producer_id} ended long ago and its state is gone; take a new lease",
            )
        if self._awaited:
            epoch, sequence = self._awaited.get(producer_id, (-1, 0))
            if epoch == header.producer_epoch and distance(sequence, header.base_sequence) > 0:
                raise Refusal(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {producer_id}: sequence {header.base_sequence} before the refused {sequence}",
                )

    def _check_sequence(self, header: BatchHeader, producer: Producer) -> Duplicate | None:
        """None: the batch continues the producer's sequence. Raises Refusal."""
        base = header.base_sequence
        if header.producer_epoch != producer.epoch:
            if header.producer_epoch < producer.epoch:
                raise _stale_epoch(header.producer_id, header.producer_epoch, producer)
            if base != 0:
                raise Refusal(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {header.producer_id}: epoch {header.producer_epoch} begins at sequence {base}, not at 0",
                )
            return None
        expected = (producer.last_sequence + 1) & MAX_SEQUENCE
        if base == expected:
            return None
        delta = header.last_offset_delta
        # Only a batch that was accepted in this epoch can be a duplicate. A producer without state may have begun at
        # any sequence. An earlier sequence was never stored: error 46 would claim that it was, and lose it.
        if 0 < distance(base, expected) <= producer.epoch_records:
            last = (base + delta) & MAX_SEQUENCE
            window = self.producers.window()
            decided_below = self._decided_below(header)
            for place, entry in enumerate(window):
                if entry.first_offset < decided_below:
                    if distance(base, entry.last_sequence) >= 0:
                        raise Refusal(
                            ErrorCode.UNKNOWN_PRODUCER_ID,
                            f"producer {header.producer_id}, epoch {producer.epoch}: sequence {base} was used before "
                            f"offset {decided_below}, in a transaction that is decided; the next needs a new epoch",
                        )
                    break
                if entry.last_sequence == last and entry.delta == delta:
                    return self._repeated(header, place, Duplicate(entry.first_offset, entry.last_offset))
            else:
                if distance(last, window[-1].first_sequence) > 0:
                    return Duplicate(-1, window[-1].first_offset - 1, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
        raise Refusal(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id}, epoch {producer.epoch}: sequence {base}, expected {expected}",
        )

    def _decided_below(self, header: BatchHeader) -> int:
        """The producer's batches below this offset belong to decided transactions.

        A client that aborts may give its next transaction's records the sequences of records that it gave up:
        librdkafka purges the batches that it would have to send again, stored or not. Such a batch is no duplicate; if
        it were answered as one, it would be acknowledged and lost. UNKNOWN_PRODUCER_ID is the only error at which
        librdkafka aborts and takes a new epoch (error 45 is fatal). A retry is never refused by this: a client that
        still waits for an answer has not ended its transaction.
        """
        if not header.attributes & TRANSACTIONAL:
            return 0
        transaction = self._open.get(header.producer_id)
        return self.log_end_offset if transaction is None else transaction.first_offset

    def _repeated(self, header: BatchHeader, place: int, stored: Duplicate) -> Duplicate:
        """Raises OtherBatch unless the batch is the stored one with its sequences, `place` batches back.

        A version-1 client that reuses sequences as in `_decided_below` may still have a batch in flight on a
        connection that it has given up. If that batch arrives after the next transaction was registered and before
        the transaction's own first batch, it enters that transaction: nothing in the batch names its transaction. The
        transaction's own batch then has the same sequences, but is no duplicate. UNKNOWN_PRODUCER_ID makes the client
        abort, which removes the foreign batch. A retry has the same bytes.
        """
        transaction = self._open.get(header.producer_id)
        if header.attributes & TRANSACTIONAL and transaction is not None and not transaction.holds(place, header.crc):
            raise OtherBatch(
                f"producer {header.producer_id}, epoch {header.producer_epoch}: sequence {header.base_sequence} holds "
                f"another batch, sent by an earlier transaction perhaps; abort, the next needs a new epoch", stored)
        return stored

    def _must_verify(self, header: BatchHeader, verified: bool) -> bool:
        """Whether the coordinator must be asked. Raises Refusal."""
        transaction = self._open.get(header.producer_id)
        if not header.attributes & TRANSACTIONAL:
            if transaction is not None:
                raise Refusal(
                    ErrorCode.INVALID_TXN_STATE,
                    f"a write outside of the transaction that producer {header.producer_id} has open since offset "
                    f"{transaction.first_offset}",
                )
            return False
        if transaction is None:
            return not verified
        if transaction.producer_epoch == header.producer_epoch:
            return not (transaction.verified or verified)
        if verified:
            # The coordinator lets a transaction begin once the markers of the last one are stored. So a marker is on
            # its way here; the client tries again.
            raise Refusal(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"the transaction of epoch {transaction.producer_epoch} since offset {transaction.first_offset} "
                f"has no marker yet",
            )
        return True

    def _check_shard_epoch(self, shard_epoch: int) -> None:
        """Rule 1. A new owner appends its fence first. If an unclean election discarded the fence, the owner was not
        replaced: it has to load the shard again."""
        if shard_epoch != self.shard_epoch:
            above = shard_epoch > self.shard_epoch
            code = ErrorCode.OPERATION_NOT_ATTEMPTED if above else ErrorCode.TRANSACTION_COORDINATOR_FENCED
            raise Refusal(code, f"shard epoch {shard_epoch}; the last fence is {self.shard_epoch}")

    def _check_internal_producer(self, header: BatchHeader) -> None:
        """Transactional offsets carry the client's producer id. Sequences are not checked; epochs are."""
        producer = self.producers.get(header.producer_id)
        if producer is not None and header.producer_epoch < producer.epoch:
            raise _stale_epoch(header.producer_id, header.producer_epoch, producer)

    def decide_marker(self, marker: Marker) -> Append | Duplicate:
        """A transaction marker. Raises Refusal (INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED).

        A marker is appended even if no transaction is open: its epoch keeps late batches of the transaction out, and
        its serial late markers.
        """
        producer = self.producers.get(marker.producer_id)
        transaction = self._open.get(marker.producer_id)
        if producer is not None and 0 <= marker.serial <= producer.serial:
            return Duplicate(producer.last_offset, producer.last_offset)
        known = self.marker_epochs.get(marker.shard, -1) if marker.shard >= 0 else -1
        if producer is not None:
            known = max(known, producer.coordinator_epoch)
        if marker.coordinator_epoch < known:
            raise Refusal(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"marker of coordinator epoch {marker.coordinator_epoch}; epoch {known} has taken over",
            )
        if transaction is not None and 0 <= marker.serial < transaction.serial:
            raise Refusal(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"marker of transaction {marker.serial}; transaction {transaction.serial} is open",
            )
        if marker.first_offset >= 0 and (transaction is None or transaction.first_offset != marker.first_offset):
            last_offset = -1 if producer is None else producer.last_offset
            return Duplicate(last_offset, last_offset)
        if producer is not None and 0 <= marker.last_offset != producer.last_offset:
            raise Refusal(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                f"producer {marker.producer_id} has written since offset {marker.last_offset}: what was found hanging "
                f"there goes on",
            )
        if producer is None:
            return APPEND
        if marker.producer_epoch < producer.epoch:
            raise _stale_epoch(marker.producer_id, marker.producer_epoch, producer)
        if marker.transaction_version >= 2 and marker.producer_epoch == producer.epoch:
            if transaction is not None:
                raise Refusal(
                    ErrorCode.INVALID_PRODUCER_EPOCH,
                    f"marker of epoch {marker.producer_epoch} does not raise the epoch of the open transaction",
                )
            if marker.serial < 0:
                return Duplicate(producer.last_offset, producer.last_offset)
        return APPEND

    def decide_markers(self, markers: Sequence[Marker]) -> list[Append | Duplicate | Refusal]:
        """Decides all markers of one append, in order. A refusal is returned and does not affect the others."""
        decisions: list[Append | Duplicate | Refusal] = []
        appended: dict[int, tuple[int, int]] = {}
        for marker in markers:
            serial, offset = appended.get(marker.producer_id, (-1, -1))
            decision: Append | Duplicate | Refusal
            if 0 <= marker.serial <= serial:
                decision = Duplicate(offset, offset)
            else:
                try:
                    decision = self.decide_marker(marker)
                except Refusal as refusal:
                    decision = refusal
            if isinstance(decision, Append):
                appended[marker.producer_id] = (marker.serial, self.log_end_offset + len(appended))
            decisions.append(decision)
        return decisions

    def decide_control(self, control: Control, shard_epoch: int) -> Append | Duplicate:
        """A control batch of an internal writer: its shard's fence, or an offsets marker. Raises Refusal."""
        if isinstance(control, ShardFence):
            if control.shard_epoch != shard_epoch:
                raise Refusal(ErrorCode.INVALID_RECORD, f"fence of epoch {control.shard_epoch}, not {shard_epoch}")
            if shard_epoch < self.shard_epoch:
                raise Refusal(
                    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                    f"shard epoch {shard_epoch}; the last fence is {self.shard_epoch}",
                )
            return APPEND
        self._check_shard_epoch(shard_epoch)
        if isinstance(control, Marker):
            return self.decide_marker(control)
        raise Refusal(ErrorCode.INVALID_RECORD, "not a control record of an internal writer")

    def decide_producer_fence(self, fence: ProducerFence) -> ProducerFence:
        """Takes over a leased producer, or renews or ends its lease. Returns the record to append. Raises Refusal.

        A lease that has ended may be taken over while the producer's state exists, that is until the lease is closed
        and its counts are stored.
        """
        producer = self.producers.get(fence.producer_id)
        if producer is None:
            if self.producers.lease_has_ended(fence.producer_id):
                raise Refusal(
                    ErrorCode.UNKNOWN_PRODUCER_ID,
                    f"the lease of producer {fence.producer_id} ended long ago and its progress is gone",
                )
            return fence
        if fence.producer_epoch < producer.epoch:
            raise _stale_epoch(fence.producer_id, fence.producer_epoch, producer)
        if fence.producer_id in self._open:
            raise Refusal(ErrorCode.INVALID_TXN_STATE, f"producer {fence.producer_id} has an open transaction")
        if fence.producer_epoch == producer.epoch:
            return replace(fence, keep_until_ms=later_end(producer.keep_until_ms, fence.keep_until_ms))
        return fence

    def decide_expiry(self, now_ms: int) -> ProducerExpiry | None:
        """Returns the expiry to append as a control batch, or None. To be called about every ten seconds.

        Each call visits a few pages of the producer table and removes the dead rows in them. A million producers are
        visited in a fraction of the expiry time.
        """
        marks = self._marks
        if not marks or now_ms - marks[-1][0] >= self.expiry_ms // _EXPIRY_MARKS:
            marks.append((now_ms, self.log_end_offset))
        while len(marks) > 1 and marks[1][0] <= now_ms - self.expiry_ms:
            marks.popleft()
        due_below = marks[0][1] if marks[0][0] <= now_ms - self.expiry_ms else 0
        if self.producers.sweep(16 + self.producers.pages // 1024, due_below):
            return ProducerExpiry(due_below, now_ms)
        return None

    def sweep_dead(self) -> None:
        """Removes some of the producers that an expiry record in the log has forgotten. To be called from time to time
        on followers; only the leader decides what expires."""
        self.producers.sweep(16 + self.producers.pages // 1024, 0)

    def note_refused(self, header: BatchHeader) -> None:
        """The broker refuses this valid batch for a reason that passes (no space, no coordinator).

        A producer without state may begin at any sequence. So that its next batch in flight is not taken for its
        first, the machine expects the refused batch before it. Not part of the replicated state: after a restart the
        client sends its batches again in order.
        """
        producer_id = header.producer_id
        if producer_id < 0 or header.base_sequence < 0 or self.producers.get(producer_id) is not None:
            return
        epoch, sequence = self._awaited.get(producer_id, (-1, 0))
        if (epoch, distance(sequence, header.base_sequence)) >= (header.producer_epoch, 0):
            return
        if len(self._awaited) >= _MAX_AWAITED:
            del self._awaited[next(iter(self._awaited))]
        self._awaited[producer_id] = (header.producer_epoch, header.base_sequence)

    def name_transaction(self, producer_id: int, serial: int) -> bool:
        """The coordinator has named the transaction that the producer has open here (rule 24). Only the leader knows
        it: no record carries it, so another leader asks again at the next batch. False: no transaction is open."""
        transaction = self._open.get(producer_id)
        if transaction is None:
            return False
        transaction.verified = True
        if transaction.serial < 0:
            transaction.serial = serial
        return True

    def seal(self, producer_id: int) -> None:
        """The producer's records here are being counted for a commit that names them (rule 6). Its next batch is
        verified again: the coordinator refuses it once the commit is decided."""
        transaction = self._open.get(producer_id)
        if transaction is not None:
            transaction.verified = False

    def seal_all(self) -> None:
        """A leadership begins. This leader does not know which producers a former leader has sealed or verified."""
        for transaction in self._open.values():
            transaction.verified = False

    # --- replay ---------------------------------------------------------------------------------------------------

    def replay(self, header: BatchHeader) -> None:
        """A data batch from the log (`header.base_offset` and `leader_epoch` as assigned).

        Trusts the log: its batches were decided before. Raises ValueError if the batch is below the log's end.
        """
        (
            base_offset, _, leader_epoch, _, crc, attributes, delta, _, timestamp, producer_id, epoch, sequence, count,
        ) = header  # fmt: skip
        last_offset = base_offset + delta
        self._extend(base_offset, last_offset, leader_epoch)
        if producer_id < 0:
            return
        if self._awaited:
            self._awaited.pop(producer_id, None)
        producers = self.producers
        producer = producers.get(producer_id)
        total = in_epoch = 0
        if producer is None:
            producers.put_new(producer_id, epoch)
        else:
            total = producer.record_count
            in_epoch = producer.epoch_records
            if epoch != producer.epoch:
                producers.put_epoch(epoch)
                in_epoch = 0
        if attributes & TRANSACTIONAL:
            transaction = self._open.get(producer_id)
            if transaction is None:
                transaction = OpenTransaction(producer_id, epoch, base_offset, count, timestamp)
                self._open[producer_id] = transaction
            else:
                transaction.record_count += count
            if sequence >= 0:
                transaction.note(UNKNOWN_CHECKSUM if attributes & LOG_APPEND_TIME else crc)
        else:
            total += count
        if sequence < 0:
            producers.put_activity(last_offset, timestamp, total)
            return
        in_epoch += delta + 1
        producers.put_batch(
            (sequence + delta) & MAX_SEQUENCE,
            delta,
            last_offset,
            timestamp,
            total,
            in_epoch if in_epoch < MAX_SEQUENCE else MAX_SEQUENCE,
        )

    def replay_control(self, header: BatchHeader, control: Control) -> AbortedTransaction | None:
        """A control batch from the log. Returns the entry for the `.txnindex` if the batch aborted a transaction."""
        self.scopes.control_appended(header.base_offset, header.last_offset + 1)
        self._extend(header.base_offset, header.last_offset, header.leader_epoch)
        if isinstance(control, Marker):
            return self._replay_marker(header, control)
        if isinstance(control, ProducerFence):
            record_count = self._enter_epoch(control.producer_id, control.producer_epoch)[0]
            self.producers.put_activity(header.last_offset, header.max_timestamp, record_count)
            self.producers.put_lease(control.keep_until_ms)
        elif isinstance(control, ShardFence):
            self.shard_epoch = max(self.shard_epoch, control.shard_epoch)
        else:
            self.producers.expired_below = max(self.producers.expired_below, control.below_offset)
            self.producers.expired_at_ms = max(self.producers.expired_at_ms, control.now_ms)
        return None

    def _replay_marker(self, header: BatchHeader, marker: Marker) -> AbortedTransaction | None:
        record_count, serial = self._enter_epoch(marker.producer_id, marker.producer_epoch)
        transaction = self._open.pop(marker.producer_id, None)
        aborted = None
        if transaction is not None:
            self._leave_undecided(transaction.first_offset, header.last_offset)
            if marker.commit:
                record_count += transaction.record_count
            else:
                first_open = self._first_open_offset()
                stable = header.last_offset + 1 if first_open is None else first_open
                aborted = AbortedTransaction(
                    marker.producer_id, transaction.first_offset, header.last_offset, stable
                )
                self.aborted.add(aborted)
        self.producers.put_activity(header.last_offset, header.max_timestamp, record_count)
        self.producers.put_marker(max(marker.serial, serial), marker.coordinator_epoch)
        if marker.shard >= 0:
            known = self.marker_epochs.get(marker.shard, -1)
            self.marker_epochs[marker.shard] = max(known, marker.coordinator_epoch)
        return aborted

    def _enter_epoch(self, producer_id: int, epoch: int) -> tuple[int, int]:
        """Selects the producer's row for the next `put_*`, in that epoch. Returns (record count, serial)."""
        producer = self.producers.get(producer_id)
        if producer is None:
            self.producers.put_new(producer_id, epoch)
            return 0, -1
        if producer.epoch != epoch:
            self.producers.put_epoch(epoch)
        return producer.record_count, producer.serial

    def _leave_undecided(self, first_offset: int, marker_offset: int) -> None:
        """Holds back a decided transaction from readers until its marker is below the high watermark. Until then a
        failover could still discard the marker."""
        if marker_offset < self.high_watermark:
            return
        self._undecided.append((first_offset, marker_offset))
        if self._undecided_first < 0 or first_offset < self._undecided_first:
            self._undecided_first = first_offset

    def _extend(self, base_offset: int, last_offset: int, leader_epoch: int) -> None:
        if base_offset < self.log_end_offset:
            raise ValueError(f"batch at {base_offset} in a log that ends at {self.log_end_offset}")
        self.log_end_offset = last_offset + 1
        if leader_epoch > self.leader_epochs.latest:
            self.leader_epochs.assign(leader_epoch, base_offset)

    # --- ask ------------------------------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """read_committed readers see the records below this offset."""
        stable = self.high_watermark
        if 0 <= self._undecided_first < stable:
            stable = self._undecided_first
        if self._open:
            first_open = next(iter(self._open.values())).first_offset
            if first_open < stable:
                stable = first_open
        return max(stable, self.log_start_offset)

    def aborted_transactions(self, fetch_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Aborted transactions that overlap [fetch_offset, end_offset), the range of the returned records."""
        return self.aborted.overlapping(fetch_offset, end_offset)

    def open_transactions(self) -> list[OpenTransaction]:
        """By first offset. The caller must not change them."""
        return list(self._open.values())

    @property
    def open_transaction_count(self) -> int:
        return len(self._open)

    def _first_open_offset(self) -> int | None:
        return next(iter(self._open.values())).first_offset if self._open else None

    def describe_producer(self, producer_id: int) -> ProducerView | None:
        """The state at the end of the log. An answer on which others decide must wait until the high watermark has
        reached `log_end_offset`."""
        producer = self.producers.get(producer_id)
        if producer is None:
            return None
        transaction = self._open.get(producer_id)
        return ProducerView(
            producer_id=producer_id,
            producer_epoch=producer.epoch,
            last_sequence=producer.last_sequence,
            last_offset=producer.last_offset,
            last_timestamp=producer.last_timestamp,
            coordinator_epoch=producer.coordinator_epoch,
            txn_first_offset=-1 if transaction is None else transaction.first_offset,
            record_count=producer.record_count,
            txn_record_count=0 if transaction is None else transaction.record_count,
            keep_until_ms=producer.keep_until_ms,
            serial=producer.serial,
        )

    def may_have_forgotten(self, producer_id: int) -> bool:
        """Whether a producer without a view may have written here before its state was removed."""
        return self.producers.may_have_forgotten(producer_id)

    def describe_producers(self) -> Iterator[ProducerView]:
        """All producers with state, by id."""
        for producer_id in sorted(self.producers.ids()):
            view = self.describe_producer(producer_id)
            if view is not None:
                yield view

    # --- move -----------------------------------------------------------------------------------------------------

    def advance_high_watermark(self, offset: int) -> bool:
        """Everything below `offset` is committed. Returns whether the high watermark moved; it never goes back."""
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        undecided = self._undecided
        if undecided and undecided[0][1] < offset:
            while undecided and undecided[0][1] < offset:
                undecided.popleft()
            self._undecided_first = min((first for first, _ in undecided), default=-1)
        return True

    def advance_log_start(self, offset: int, kept_from: int | None = None) -> None:
        """Records below `offset` are deleted, and from `kept_from` on still stored. Producers' state stays."""
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = offset
        self.log_end_offset = max(self.log_end_offset, offset)
        self.advance_high_watermark(offset)
        self.aborted.advance_start(offset)
        self.leader_epochs.advance_start(offset if kept_from is None else kept_from)

    def truncate_to(self, offset: int, snapshot: PartitionSnapshot | None, kept_from: int) -> None:
        """The log was cut at `offset`. The state becomes that of `snapshot`, the newest at or below `offset` (None:
        there is none). The caller then replays the log from `log_end_offset`, as it is after this call, to `offset`:
        deleted records too, as far as it has them (`kept_from`), for they tell producers' state."""
        if snapshot is not None and snapshot.offset > offset:
            raise ValueError(f"snapshot at {snapshot.offset} for a log that ends at {offset}")
        self.high_watermark = min(self.high_watermark, offset)
        self._load(snapshot, kept_from)
        self.leader_epochs.truncate_to(offset)

    def adopt(self, snapshot: PartitionSnapshot, aborted: Iterable[AbortedTransaction]) -> None:
        """The log has been copied up to the offset of another replica's snapshot. State of removed records is only in
        that snapshot and in `aborted`, which holds all aborted transactions below the snapshot."""
        if snapshot.offset < self.log_end_offset:
            raise ValueError(f"snapshot at {snapshot.offset} for a log that ends at {self.log_end_offset} already")
        self.aborted = AbortedIndex(entry for entry in aborted if entry.last_offset >= self.log_start_offset)
        self._load(snapshot, self.log_start_offset)

    def snapshot(self) -> PartitionSnapshot:
        """The state at the end of the log. Costs one copy of the packed table."""
        return PartitionSnapshot(
            offset=self.log_end_offset,
            pages=self.producers.freeze(),
            ended_leases=self.producers.ended_leases(),
            open_transactions=[replace(transaction) for transaction in self._open.values()],
            undecided=list(self._undecided),
            shard_epoch=self.shard_epoch,
            marker_epochs=dict(self.marker_epochs),
            expired_below=self.producers.expired_below,
            expired_at_ms=self.producers.expired_at_ms,
            marks=list(self._marks),
        )

    def _load(self, snapshot: PartitionSnapshot | None, kept_from: int) -> None:
        snapshot = snapshot or PartitionSnapshot(kept_from)
        self.scopes.forget()
        self.log_end_offset = max(snapshot.offset, kept_from)
        self._open = {
            transaction.producer_id: replace(transaction) for transaction in snapshot.open_transactions
        }
        self.producers = ProducerTable(self._open)
        self.producers.expired_below = snapshot.expired_below
        self.producers.expired_at_ms = snapshot.expired_at_ms
        self.producers.load(snapshot.pages, snapshot.ended_leases)
        # The snapshot may be older than what was committed since.
        self._undecided = deque(pair for pair in snapshot.undecided if pair[1] >= self.high_watermark)
        self._undecided_first = min((first for first, _ in self._undecided), default=-1)
        self.shard_epoch = snapshot.shard_epoch
        self.marker_epochs = dict(snapshot.marker_epochs)
        self._marks = deque(snapshot.marks)
        self._awaited = {}
        self.aborted.truncate_to(self.log_end_offset)


def _ended(keep_until_ms: int) -> str:
    return "was given back" if keep_until_ms <= LEASE_RELEASED else f"ended at {keep_until_ms}"


def _stale_epoch(producer_id: int, epoch: int, producer: Producer) -> StaleEpoch:
    by = f"epoch {producer.epoch} at offset {producer.last_offset}"
    return StaleEpoch(producer_id, epoch, f"producer {producer_id}: epoch {epoch} was fenced by {by}")
