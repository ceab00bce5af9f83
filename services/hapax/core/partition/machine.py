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
from hapax.core.partition.values import (
    APPEND,
    CLIENT,
    NEED_VERIFICATION,
    UNKNOWN_CHECKSUM,
    VERIFIED,
    Append,
    AppendContext,
    AppendDecision,
    Duplicate,
    NeedVerification,
    OpenTransaction,
    PartitionSnapshot,
    ProducerView,
)
from hapax.core.sequence import MAX_SEQUENCE, distance

__all__ = [
    "APPEND", "CLIENT", "NEED_VERIFICATION", "VERIFIED", "AbortedTransaction", "Append", "AppendContext",
    "AppendDecision", "Duplicate", "NeedVerification", "OpenTransaction", "PartitionMachine", "PartitionSnapshot",
    "ProducerView",
]  # fmt: skip

DEFAULT_EXPIRY_MS: Final = 24 * 60 * 60 * 1000
"""producer.id.expiration.ms"""

_EXPIRY_MARKS: Final = 48
"""How finely the end of the log is remembered in time, for expiry: 48 marks in an expiry time, half-hourly."""

_MAX_AWAITED: Final = 1000


class PartitionMachine:
    """The state machine of one partition. All offsets are those of the log; all methods are synchronous and pure."""

    __slots__ = (
        "_awaited", "_marks", "_open", "_undecided", "_undecided_first", "aborted", "expiry_ms", "high_watermark",
        "leader_epochs", "log_end_offset", "log_start_offset", "marker_epochs", "producers", "shard_epoch",
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
        """A new partition, or one as it was at a snapshot: replay the log from `log_end_offset` on.

        `aborted` and `leader_epochs` come from the `.txnindex` files and the checkpoint; what they know beyond the
        snapshot is forgotten here and comes back with the replay. Without a snapshot everything is replayed, from
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
        self._load(snapshot)
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
        # The duplicate check came first: the retry of a conditional append that succeeded must find its own batch,
        # not its condition broken by itself (rule 21).
        if 0 <= context.expected_offset != self.log_end_offset:
            raise Refusal(
                ErrorCode.OPERATION_NOT_ATTEMPTED,
                f"the log ends at {self.log_end_offset}, not at {context.expected_offset}",
            )
        return APPEND

    def _check_stranger(self, header: BatchHeader) -> None:
        """A producer without state here may begin at any sequence: the partition may have expired it. Except where
        its lease ended here, and where an earlier batch of it was refused and is still to come."""
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
        """None: the batch follows on. Raises Refusal."""
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
        # Only what was accepted in this epoch can be a duplicate. A producer without state may have begun anywhere,
        # and what it sends from before that point was never stored: 46 would tell it otherwise, and lose it.
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
                    self._check_repeats(header, place)
                    return Duplicate(entry.first_offset, entry.last_offset)
            else:
                if distance(last, window[-1].first_sequence) > 0:
                    return Duplicate(-1, window[-1].first_offset - 1, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
        raise Refusal(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id}, epoch {producer.epoch}: sequence {base}, expected {expected}",
        )

    def _decided_below(self, header: BatchHeader) -> int:
        """What the producer wrote below this offset belongs to transactions that are decided.

        A client that aborts may number its next transaction's records like those it has given up: librdkafka purges
        what waits to be sent again, stored or not. Those are no duplicates; they would be acknowledged and lost. Of all
        errors UNKNOWN_PRODUCER_ID is the one at which it aborts and takes a new epoch (45 ends it). A retry is never
        refused by this: whoever still waits for an answer has not ended its transaction.
        """
        if not header.attributes & TRANSACTIONAL:
            return 0
        transaction = self._open.get(header.producer_id)
        return self.log_end_offset if transaction is None else transaction.first_offset

    def _check_repeats(self, header: BatchHeader, place: int) -> None:
        """Whether a batch of a transaction is the one that stands under its sequences, `place` batches back.

        A version-1 client that numbers again as in `_decided_below` may have a batch on a connection that it has given
        up. One that comes after the next transaction has been registered, and before that one's own first batch,
        enters that transaction: nothing in it says whose it is. The next transaction's own batch is then no
        duplicate of it. UNKNOWN_PRODUCER_ID makes the client abort, and that removes the stranger. A retry has the
        same bytes.
        """
        transaction = self._open.get(header.producer_id)
        if header.attributes & TRANSACTIONAL and transaction is not None and not transaction.holds(place, header.crc):
            raise Refusal(
                ErrorCode.UNKNOWN_PRODUCER_ID,
                f"producer {header.producer_id}, epoch {header.producer_epoch}: sequence {header.base_sequence} holds "
                f"another batch, sent by an earlier transaction perhaps; abort, the next needs a new epoch",
            )

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
            # The coordinator lets a transaction begin after the last one's markers are stored, so this is a marker
            # under way; the client tries again.
            raise Refusal(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"the transaction of epoch {transaction.producer_epoch} since offset {transaction.first_offset} "
                f"has no marker yet",
            )
        return True

    def _check_shard_epoch(self, shard_epoch: int) -> None:
        """Rule 1. A take-over appends its fence first, or it fences nobody. One whose fence an unclean election took
        was not replaced: it begins again."""
        if shard_epoch != self.shard_epoch:
            above = shard_epoch > self.shard_epoch
            code = ErrorCode.OPERATION_NOT_ATTEMPTED if above else ErrorCode.TRANSACTION_COORDINATOR_FENCED
            raise Refusal(code, f"shard epoch {shard_epoch}; the last fence is {self.shard_epoch}")

    def _check_internal_producer(self, header: BatchHeader) -> None:
        """Transactional offsets bear the client's producer id: no sequences, but epochs count."""
        producer = self.producers.get(header.producer_id)
        if producer is not None and header.producer_epoch < producer.epoch:
            raise _stale_epoch(header.producer_id, header.producer_epoch, producer)

    def decide_marker(self, marker: Marker) -> Append | Duplicate:
        """A transaction marker. Raises Refusal (INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED).

        Without an open transaction it is appended all the same: it keeps late batches of the transaction out, by its
        epoch, and late markers, by its serial.
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
        """All markers of one append, in order; a refused one is returned, not raised, and hinders no other."""
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
        """A control batch of an internal writer: its shard's fence, or its markers for offsets. Raises Refusal."""
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
        """Takes a leased producer over, renews or ends its lease: what to append. Raises Refusal.

        A lease that has ended may be taken over as long as the producer's state is there: until it is closed and its
        counts are stored.
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
        """To be called every ten seconds or so: the expiry to append as a control batch, or None.

        Each call looks at a few pages of producers only, and drops the dead it meets; a million come round in a
        fraction of the expiry time.
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
        """To be called now and then where the partition is copied: drops some of the producers that an expiry in the
        log has forgotten. What is to expire the leader decides."""
        self.producers.sweep(16 + self.producers.pages // 1024, 0)

    def note_refused(self, header: BatchHeader) -> None:
        """The broker refuses this batch for a while (no space, no coordinator), though in itself it is fine.

        A producer without state may begin at any sequence; so that its next batch in flight is not taken for its
        first, the refused one is awaited. Not part of the replicated state: after a restart the client resends in
        order anyway.
        """
        producer_id = header.producer_id
        if producer_id < 0 or header.base_sequence < 0 or self.producers.get(producer_id) is not None:
            return
        epoch, sequence = self._awaited.get(producer_id, (-1, 0))
        if epoch == header.producer_epoch and distance(sequence, header.base_sequence) >= 0:
            return
        if len(self._awaited) >= _MAX_AWAITED:
            del self._awaited[next(iter(self._awaited))]
        self._awaited[producer_id] = (header.producer_epoch, header.base_sequence)

    def name_transaction(self, producer_id: int, serial: int) -> bool:
        """The coordinator has said which transaction the producer has open here (rule 24). The leader's knowledge: no
        record carries it, so another leader asks again at its next batch. False: nothing is open."""
        transaction = self._open.get(producer_id)
        if transaction is None:
            return False
        transaction.verified = True
        if transaction.serial < 0:
            transaction.serial = serial
        return True

    def seal(self, producer_id: int) -> None:
        """What the producer has written here is being counted, for a commit that names it (rule 6). Its next batch is
        asked about again: the coordinator refuses it once the commit is decided."""
        transaction = self._open.get(producer_id)
        if transaction is not None:
            transaction.verified = False

    def seal_all(self) -> None:
        """A leadership begins. What a former leader has sealed, or was told, this one does not know."""
        for transaction in self._open.values():
            transaction.verified = False

    # --- replay ---------------------------------------------------------------------------------------------------

    def replay(self, header: BatchHeader) -> None:
        """A data batch as it stands in the log (`header.base_offset` and `leader_epoch` as assigned).

        Trusts the log: what is in it has been decided. Raises ValueError where the batch lies below the log's end.
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
        """A control batch as it stands in the log. Returns the entry for the `.txnindex` where it aborted something."""
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
        """Makes the producer's row the one to change, in that epoch; returns (record count, serial)."""
        producer = self.producers.get(producer_id)
        if producer is None:
            self.producers.put_new(producer_id, epoch)
            return 0, -1
        if producer.epoch != epoch:
            self.producers.put_epoch(epoch)
        return producer.record_count, producer.serial

    def _leave_undecided(self, first_offset: int, marker_offset: int) -> None:
        """Decided, but a reader may see it only once the marker is below the high watermark: until then a failover
        could still take the marker back."""
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
        """Readers with read_committed see what lies below (exclusive)."""
        stable = self.high_watermark
        if 0 <= self._undecided_first < stable:
            stable = self._undecided_first
        if self._open:
            first_open = next(iter(self._open.values())).first_offset
            if first_open < stable:
                stable = first_open
        return max(stable, self.log_start_offset)

    def aborted_transactions(self, fetch_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Those that overlap [fetch_offset, end_offset); `end_offset` is the end of the returned data."""
        return self.aborted.overlapping(fetch_offset, end_offset)

    def open_transactions(self) -> list[OpenTransaction]:
        """By first offset. Not to be changed."""
        return list(self._open.values())

    @property
    def open_transaction_count(self) -> int:
        return len(self._open)

    def _first_open_offset(self) -> int | None:
        return next(iter(self._open.values())).first_offset if self._open else None

    def describe_producer(self, producer_id: int) -> ProducerView | None:
        """At the end of the log: an answer that others decide on waits until `log_end_offset` is reached by the high
        watermark."""
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
        """Of a producer without a view: whether it may have written here all the same, before it was forgotten."""
        return self.producers.may_have_forgotten(producer_id)

    def describe_producers(self) -> Iterator[ProducerView]:
        """All that live, by id."""
        for producer_id in sorted(self.producers.ids()):
            view = self.describe_producer(producer_id)
            if view is not None:
                yield view

    # --- move -----------------------------------------------------------------------------------------------------

    def advance_high_watermark(self, offset: int) -> bool:
        """Everything below `offset` is committed. Returns whether it moved; it never goes back."""
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        undecided = self._undecided
        if undecided and undecided[0][1] < offset:
            while undecided and undecided[0][1] < offset:
                undecided.popleft()
            self._undecided_first = min((first for first, _ in undecided), default=-1)
        return True

    def advance_log_start(self, offset: int) -> None:
        """Records below are gone (retention, DeleteRecords). Producers' state stays: it is what tells duplicates."""
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = offset
        self.log_end_offset = max(self.log_end_offset, offset)
        self.advance_high_watermark(offset)
        self.aborted.advance_start(offset)
        self.leader_epochs.advance_start(offset)

    def truncate_to(self, offset: int, snapshot: PartitionSnapshot | None) -> None:
        """The log now ends at `offset`. State comes from the newest snapshot at or below it (None: there is none)
        and from replaying the log between `log_end_offset`, as it is after this call, and `offset`."""
        if snapshot is not None and snapshot.offset > offset:
            raise ValueError(f"snapshot at {snapshot.offset} for a log that ends at {offset}")
        self.high_watermark = min(self.high_watermark, offset)
        self._load(snapshot)
        self.leader_epochs.truncate_to(offset)

    def adopt(self, snapshot: PartitionSnapshot, aborted: Iterable[AbortedTransaction]) -> None:
        """The log has been copied up to where another replica took this snapshot: what lies before the copied part is
        in the snapshot alone, and in `aborted`, which are all below it."""
        if snapshot.offset < self.log_end_offset:
            raise ValueError(f"snapshot at {snapshot.offset} for a log that ends at {self.log_end_offset} already")
        self.aborted = AbortedIndex(entry for entry in aborted if entry.last_offset >= self.log_start_offset)
        self._load(snapshot)

    def snapshot(self) -> PartitionSnapshot:
        """The state at the end of the log; costs one copy of the packed table."""
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

    def _load(self, snapshot: PartitionSnapshot | None) -> None:
        if snapshot is None:
            snapshot = PartitionSnapshot(self.log_start_offset)
        self.log_end_offset = max(snapshot.offset, self.log_start_offset)
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


def _stale_epoch(producer_id: int, epoch: int, producer: Producer) -> Refusal:
    return Refusal(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {producer_id}: epoch {epoch} was fenced by epoch {producer.epoch} at offset {producer.last_offset}",
    )
