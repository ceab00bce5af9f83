"""One partition on this node: the machine that decides, the log that persists, and the calls that wait for either.

This node leads the partition (`lead`), copies it from its leader (`hapax.broker.copying`), or does neither. Everything
here runs on the loop without waiting, so the partition has one writer without a queue: a write is decided, appended and
replayed within one call. Only its answer waits, for the commit of the record that it depends on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from hapax.broker.aborted_listing import AbortedListing
from hapax.broker.accepting import check_accepting
from hapax.broker.barrier import Barrier
from hapax.broker.inheritance import Inheritance
from hapax.broker.intake import Intake, rules_of
from hapax.broker.log_maintenance import LogMaintenance
from hapax.broker.parked_writes import ParkedWrite, ParkedWrites
from hapax.broker.partition_views import ReadRange
from hapax.broker.record_counter import RecordCounter
from hapax.broker.repeats import compares
from hapax.broker.replica_context import ReplicaContext
from hapax.broker.subscribers import CopySubscriber, FollowerSubscriber, Readers
from hapax.broker.waiters import Settles, Waiters, WriteFuture
from hapax.codec.batch import (
    CRC_START,
    CURRENT_MAGIC,
    HEADER_SIZE,
    LENGTH_END,
    check_batch,
    check_client_batch,
    iterate_batches,
    make_header,
    patch_append_time,
    patch_prefix,
    read_header,
)
from hapax.codec.control import decode_control, encode_control
from hapax.codec.snapshot import decode_snapshot
from hapax.core.batch import COMPRESSION_MASK, CONTROL, TRANSACTIONAL, BatchHeader
from hapax.core.control import Control, Marker
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.machine import (
    APPEND,
    CLIENT,
    NEED_VERIFICATION,
    VERIFIED,
    AbortedTransaction,
    Append,
    AppendContext,
    AppendDecision,
    Duplicate,
    PartitionMachine,
)
from hapax.core.partition.replication import Replication
from hapax.core.partition.values import BadRecords, Condition, WriteResult
from hapax.core.partition.verification import Admission, Question
from hapax.core.types import NodeId, RegistrationEpoch, TopicIdPartition
from hapax.log.durable import SyncFailed
from hapax.log.segment import Segment
from hapax.log.segment_log import SegmentLog
from hapax.log.soundness import Damage, Damaged
from hapax.runtime import telemetry
from hapax.runtime.ports import FolderClosed
from hapax.runtime.settings import Settings

log = telemetry.logger("partition")

_PLAIN: Final = COMPRESSION_MASK & 3 | TRANSACTIONAL
"""Batch attributes that need no further check. zstd has its own bit and is checked further."""
_LEAST_RECORD_BYTES: Final = 7
"""One byte each: length, attributes, timestamp delta, offset delta, key length, value length, header count."""


class Replica:
    """See above. `opening.open_replica` makes one from its folder. It serves once `lead` was called."""

    def __init__(
        self, context: ReplicaContext, topic: str, partition: TopicIdPartition, settings: Settings, *, internal: bool
    ) -> None:
        self.context = context
        self.topic = topic
        self.id = partition
        self.index = partition.partition
        self.name = f"{topic}-{partition.partition}"
        self.leader_epoch = -1
        self.epoch_start = 0  # the log's end when this leadership began
        self.newest_connection = -1
        self.serving = False
        self.internal = internal
        self.storage_error = ""
        self.commit_queued = False
        self.machine: PartitionMachine
        self.log: SegmentLog
        self.parked = ParkedWrites(
            self, context.shard_epochs, ask=self._ask, append=self._append_verified, refuse=self.refuse,
            superseded=self._superseded,
        )
        self.replication: Replication | None = None
        """What the other replicas have, while this node leads. None: there are no other replicas."""
        self.pulls: list[FollowerSubscriber] = []
        self.copying: CopySubscriber | None = None
        self.barrier = Barrier(self, context.barriers)
        self.inheritance = Inheritance(self)
        self.intake = Intake(self, context.intake_gate, context.disk, self.admit)
        self.halted = False
        """Nothing is fetched from the leader: the copy is damaged and will be rebuilt."""
        self.too_few_in_sync = False
        """acks=all is refused: fewer replicas are in sync than min.insync.replicas."""
        self.set_settings(settings)
        self._epoch_begins = False
        self._recovered_aborted: list[AbortedTransaction] = []
        self.waiters = Waiters()
        """Writes that wait for their commit."""
        self._local_waiters = Waiters()
        """Writes that wait for this node's disk only (acks=1)."""
        self.readers = Readers()
        self.maintenance = LogMaintenance(
            self, context.clock, checkpointed=self._checkpointed, sync_failed=self._sync_failed,
            unreadable=self._unreadable, noted=self._start_noted,
        )
        self.record_counter = RecordCounter(self)

    def set_settings(self, settings: Settings) -> None:
        """`settings` are the topic's (`Settings.for_topic`)."""
        self.settings = settings
        self._max_batch = settings.message_max_bytes
        self.intake.set_rules(rules_of(settings))
        self._log_append_time = settings.log_message_timestamp_type == "LogAppendTime"
        self._durable = settings.durability == "fsync"
        self._checkpoint_cost = settings.log_snapshot_interval_bytes
        self._client_context = CLIENT if settings.transaction_partition_verification_enable else VERIFIED
        if self.replication is not None:
            self.replication.require(settings.min_insync_replicas)
        if self.serving:
            self.members_changed()

    # --- callbacks of the parts ---------------------------------------------------------------------------------------

    def _ask(self, question: Question) -> None:
        self.context.ask(self, question)

    def _superseded(self) -> None:
        self.context.superseded()

    def _sync_failed(self, error: SyncFailed) -> None:
        self.context.committer.failed(error)

    def _unreadable(self, offset: int, refusal: Refusal) -> None:
        self.context.unreadable(self, offset, refusal)

    def _mislisted(self, segment: Segment, count: int) -> None:
        self.context.mislisted(self, segment, count)

    def _found_damage(self, damage: Damage) -> None:
        self.context.damaged(self, damage)

    # --- open and close -------------------------------------------------------------------------------------------

    def opened(self, segment_log: SegmentLog, high_watermark: int = 0) -> None:
        """The log is open, replayed and durable. `high_watermark`: the last one that this node knows."""
        self.log = segment_log
        self.note_recovered()
        segment_log.on_roll = self.maintenance.segment_rolled
        segment_log.surveys.leader_epochs = lambda: self.machine.leader_epochs.entries()
        segment_log.surveys.on_wrong_index = self._found_wrong_index
        segment_log.surveys.marker_checker = AbortedListing(
            self, mislisted=self._mislisted, corrected=self.record_counter.forget,
            begin_checkpoint=self.maintenance.begin_checkpoint,
        )
        segment_log.surveys.on_damage = self._found_damage
        for damage in segment_log.damages:
            self._found_damage(damage)
        self.machine.advance_high_watermark(min(high_watermark, segment_log.end_offset))
        self.maintenance.log_start.opened(segment_log)

    def _start_noted(self) -> None:
        if self.copying is not None:
            self.copying.start_noted()

    def _found_wrong_index(self, segment: Segment) -> None:
        log.error("a damaged index was rebuilt from its log", partition=self.name, file=segment.index.path)

    def note_recovered(self) -> None:
        """Adds the aborted transactions that a replay found to the log's index."""
        if self.inheritance.list_aborted():
            self._recovered_aborted.clear()
        if self._recovered_aborted:
            for aborted in self._recovered_aborted:
                self.log.note_aborted(aborted)
            self._recovered_aborted.clear()

    def restore(
        self, snapshot: bytes | None, offset: int, start_offset: int, aborted: Sequence[AbortedTransaction],
        leader_epochs: Sequence[tuple[int, int]],
    ) -> None:
        """`recovery.State`."""
        self.machine = PartitionMachine(
            None if snapshot is None else decode_snapshot(snapshot, offset),
            log_start_offset=start_offset,
            aborted=aborted,
            leader_epochs=leader_epochs,
            expiry_ms=self._producer_expiry_ms(),
        )

    def _producer_expiry_ms(self) -> int:
        """Offsets carry their clients' producer ids. Those must not expire before their transactional ids."""
        settings = self.settings
        if not self.internal:
            return settings.producer_id_expiration_ms
        return max(settings.producer_id_expiration_ms, settings.transactional_id_expiration_ms)

    def replay(self, header: BatchHeader, buffer: memoryview, position: int) -> None:
        """`recovery.State`. Recovery, copying and live operation all replay, so their states cannot differ."""
        if self.inheritance.inherited is not None:
            self.inheritance.comes_to(header.base_offset)
        if header.attributes & CONTROL:
            aborted = self.machine.replay_control(header, decode_control(buffer, header, position))
            if aborted is not None:
                self._recovered_aborted.append(aborted)
        else:
            self.machine.replay(header)

    def lead(self, leader_epoch: int, newest_connection: int, replication: Replication | None = None) -> None:
        """Serves from now on, under this epoch. `newest_connection`: serial of the newest client connection; the order
        of writes on older ones is not known (rule 4). `replication`: None if there are no other replicas."""
        self.leader_epoch = leader_epoch
        self.epoch_start = self.machine.log_end_offset
        self.newest_connection = newest_connection
        self.machine.scopes.forget()
        self.parked.lead()
        self.serving = True
        self._epoch_begins = self.machine.leader_epochs.latest < leader_epoch
        if self.inheritance.renounce():
            log.error("leads without the state of all former producers: no other replica has it", partition=self.name)
        self.replication = replication
        self.members_changed()
        self.advance(self.durable_end)

    def resign(self) -> None:
        """Stops serving. Waiting calls are answered NOT_LEADER_OR_FOLLOWER, so that clients look for the new leader."""
        if not self.serving:
            return
        self.serving = False
        self.replication = None
        self.context.import_parts.forget(self.id)
        self._send_away()
        self.readers.wake()
        for pull in list(self.pulls):
            pull.lost()

    def _send_away(self) -> None:
        result = WriteResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.intake.abandon(result)
        self.parked.resign(result)
        self.waiters.fail(result)
        self._local_waiters.fail(result)
        self.barrier.fail()
        self.maintenance.log_start.fail()

    def members_changed(self) -> None:
        """The in-sync set or min.insync.replicas has changed."""
        replication = self.replication
        in_sync = 1 if replication is None else len(replication.isr)
        required = self.settings.min_insync_replicas
        if self.internal:  # a cluster with fewer brokers than the setting must work too
            required = min(required, 1 if replication is None else len(replication.replicas))
        self.too_few_in_sync = in_sync < required
        self.barrier.check()
        self.maintenance.log_start.check()
        if replication is None:
            return
        if self.too_few_in_sync:
            self.waiters.fail(WriteResult(
                ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, reason=f"replicas still in sync: {in_sync}"
            ))
        self._commit(replication.committed())

    async def close(self, *, checkpoint: bool = True) -> None:
        """With `checkpoint`: a clean stop, after which the next start scans nothing. Without: nothing writes to the
        folder afterwards, so it may be removed. Raises SyncFailed, OSError."""
        self.resign()
        await self.maintenance.stop()
        if checkpoint:
            await self.maintenance.last_checkpoint()
        self.log.close()

    # --- write ----------------------------------------------------------------------------------------------------

    def produce(
        self, batch: memoryview, call: Settles, number: int, transactional_id: str = "", produce_version: int = 0,
        local: bool = False, admission: Admission | None = None, condition: Condition | None = None,
    ) -> None:
        """A client's batch. `number`: the partition's place in the call. `batch` is writable and valid during the call
        only. Settles the write, now or later. `local` (acks=1): as soon as this node has it. `admission`: the
        coordinator's answer about this partition, if it came with the batch. `condition`: of its append."""
        try:
            header = self.checked(batch)
            if header.attributes & TRANSACTIONAL:
                self.parked.check_name(header, transactional_id)
            now_ms = self.context.clock.now_ms()
            intake = self.intake
            if (intake.attentive or header.max_timestamp - now_ms > intake.after_ms) and intake.takes(header, now_ms):
                write = ParkedWrite(bytearray(batch), call, number, local, transactional_id, produce_version, condition)
                intake.take(write, header, now_ms)
                return
            held = header.producer_id >= 0 and self.parked.holds(header.producer_id)
            context = self._client_context.under(condition)
            decision = NEED_VERIFICATION if held else self.machine.decide_append(header, now_ms, context)
            if decision is not NEED_VERIFICATION:
                self.carry_out(decision, batch, header, call, number, local, condition)
            elif not held and self.parked.admits(header, admission, now_ms):
                decision = self.machine.decide_append(header, now_ms, VERIFIED.under(condition))
                self.carry_out(decision, batch, header, call, number, local, condition)
                assert admission is not None
                self.parked.admitted(admission)
            else:
                self.parked.park(batch, header, call, number, transactional_id, produce_version, local, condition)
        except Refusal as refusal:
            self.refuse(batch, refusal, call, number, transactional_id)

    def admit(self, write: ParkedWrite, bad: Refusal | None) -> None:
        """A client's batch comes out of the intake, and is judged as if it came now. `bad`: what is wrong with its
        records. A batch that is stored already is answered as the first time all the same."""
        batch, call, number, local, transactional_id, produce_version, condition = write
        view = memoryview(batch)
        try:
            header = self.checked(view)
            self.parked.check_name(header, transactional_id)
            self._check_client_write(header, local)
            superseded = self.parked.gave_way(write) if header.attributes & TRANSACTIONAL else None
            if superseded is not None:
                self.context.superseded()
                call.drop(superseded.reason)
                return
            held = bad is None and header.producer_id >= 0 and self.parked.holds(header.producer_id)
            decision = NEED_VERIFICATION if held else self.machine.decide_append(
                header, self.context.clock.now_ms(), self._client_context.under(condition))
            if bad is not None and not isinstance(decision, Duplicate):
                raise bad
            if decision is NEED_VERIFICATION:
                self.parked.park(view, header, call, number, transactional_id, produce_version, local, condition)
            else:
                self.carry_out(decision, view, header, call, number, local, condition)
        except Refusal as refusal:
            self.refuse(view, refusal, call, number, transactional_id)

    def _check_client_write(self, header: BatchHeader, local: bool) -> None:
        """What was checked when the write came and may have changed since. Raises Refusal."""
        if not self.serving:
            raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self.too_few_in_sync and not local:
            self.machine.note_refused(header)
            raise Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, "fewer replicas are in sync than min.insync.replicas")

    def checked(self, batch: memoryview) -> BatchHeader:
        """The header of a client's batch, after checking that the batch is whole and allowed. Raises Refusal.

        The hot path: one condition that almost every batch meets. For any other batch the codec's checks find out what
        is wrong.
        """
        header = read_header(batch)
        base_offset, length, _, magic, crc, attributes, delta, _, _, producer_id, epoch, sequence, count = header
        size = length + LENGTH_END
        if not (
            magic == CURRENT_MAGIC
            and size == len(batch) <= self._max_batch
            and base_offset == 0
            and 0 < count == delta + 1
            and ((producer_id >= 0 and epoch >= 0 and sequence >= 0) or producer_id == -1)
            and attributes & ~_PLAIN == 0
            and crc32c(batch[CRC_START:]) == crc
        ):
            self._check_closely(batch, header)
        if count * _LEAST_RECORD_BYTES > size - HEADER_SIZE and not attributes & COMPRESSION_MASK:
            raise Refusal(ErrorCode.INVALID_RECORD, f"{count} records do not fit into {size} bytes")
        if self.storage_error:
            self.machine.note_refused(header)
            raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, self.storage_error)
        return header

    def _check_closely(self, batch: memoryview, header: BatchHeader) -> None:
        check_batch(batch, header)
        if header.size != len(batch):
            raise Refusal(ErrorCode.INVALID_RECORD, "a partition takes one batch in a request")
        check_client_batch(header)
        if len(batch) > self._max_batch:
            raise Refusal(
                ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {len(batch)} bytes; max.message.bytes is {self._max_batch}")

    def carry_out(
        self, decision: AppendDecision, batch: memoryview, header: BatchHeader, call: Settles, number: int, local: bool,
        condition: Condition | None = None,
    ) -> None:
        error = 0
        if decision is APPEND:
            base_offset, append_time = self._append(batch, header)
            end_offset = base_offset + header.last_offset_delta + 1
            if condition is not None:
                self.machine.scopes.appended(condition.scope, base_offset, end_offset)
        else:
            assert isinstance(decision, Duplicate)
            base_offset, append_time, error = decision.base_offset, -1, int(decision.error)
            self.context.duplicates.count(too_old=error != 0)
            end_offset = decision.wait_for + 1
        machine = self.machine
        result = WriteResult(error, base_offset, append_time, machine.log_start_offset)
        if end_offset <= machine.high_watermark:
            call.settle(number, result)
        elif not local:
            self.waiters.append((end_offset, call, number, result))
        elif end_offset <= self.durable_end:
            call.settle(number, result)
        else:
            self._local_waiters.append((end_offset, call, number, result))

    def _append_verified(self, parked: ParkedWrite) -> BatchHeader:
        """A parked write whose transaction the coordinator has confirmed. It is checked as if it came now. Raises
        Refusal."""
        batch = memoryview(parked.batch)
        header = self.checked(batch)
        decision = self.machine.decide_append(header, self.context.clock.now_ms(), VERIFIED.under(parked.condition))
        self.carry_out(decision, batch, header, parked.call, parked.number, parked.local, parked.condition)
        return header

    def _append(self, batch: memoryview, header: BatchHeader) -> tuple[int, int]:
        """Appends and replays one data batch; returns (base offset, log-append time or -1)."""
        append_time = -1
        if self._log_append_time and not self.internal:
            append_time = self.context.clock.now_ms()
            patch_append_time(batch, append_time)
            header = read_header(batch)
        machine = self.machine
        base_offset = machine.log_end_offset
        patch_prefix(batch, base_offset, self.leader_epoch)
        header = make_header((base_offset, header[1], self.leader_epoch, *header[3:]))
        self._persist(batch, header)
        machine.replay(header)
        self._written()
        return base_offset, append_time

    def _persist(self, batch: memoryview | bytearray, header: BatchHeader) -> None:
        base_offset = header.base_offset
        try:
            self.log.append(batch, base_offset, base_offset + header.last_offset_delta, header.max_timestamp)
        except FolderClosed as closed:
            raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the replica has left this node") from closed
        except OSError as error:
            self.context.storage.failed(self, error)
            self.machine.note_refused(header)
            raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, self.storage_error) from error

    def _written(self) -> None:
        """To be called after each append and its replay."""
        if self.log.scan_cost >= self._checkpoint_cost:
            self.maintenance.begin_checkpoint()
        if self._epoch_begins:
            self._note_leader_epoch()
        if self.pulls:
            for pull in self.pulls:
                pull.appended()
        if not self._durable:
            self.advance(self.log.end_offset)
        elif not self.commit_queued:
            self.context.committer.request(self)

    def copied(self, *, new_epoch: bool) -> None:
        """Records were copied from the leader, or the copy was cut. The change becomes durable as for a write here."""
        self.inheritance.comes_to(self.machine.log_end_offset)
        self.note_recovered()
        if self.log.scan_cost >= self._checkpoint_cost or self.inheritance.wants_checkpoint:
            self.maintenance.begin_checkpoint()
        if new_epoch:
            self._note_leader_epoch()
        if not self._durable:
            self.advance(self.log.end_offset)
        elif not self.commit_queued:
            self.context.committer.request(self)

    def _checkpointed(self) -> None:
        """A snapshot was written. Raises OSError."""
        self.inheritance.checkpointed()
        self.maintenance.log_start.drop()

    def _note_leader_epoch(self) -> None:
        """The first batch of an epoch was appended: writes it to the checkpoint file."""
        self._epoch_begins = False
        try:
            self.log.write_leader_epochs(self.machine.leader_epochs.entries())
        except OSError as error:  # the log contains the epoch too, and the next checkpoint writes the file
            log.warning("the leader-epoch checkpoint was not written", partition=self.name, error=error)

    def refuse(
        self, batch: memoryview | bytearray, refusal: Refusal, call: Settles, number: int, transactional_id: str
    ) -> None:
        if not compares(self, batch, refusal, call, number, transactional_id):
            self.context.settle_refused(call, number, self.refused(batch, refusal, call), refusal, transactional_id)

    def refused(self, batch: memoryview | bytearray, refusal: Refusal, call: Settles) -> WriteResult:
        self.context.refused(self, batch, refusal, call)
        errors = refusal.errors if isinstance(refusal, BadRecords) else ()
        return WriteResult(refusal.code, -1, -1, self.machine.log_start_offset, refusal.reason, errors)

    # --- write, internal ------------------------------------------------------------------------------------------

    def produce_internal(self, batches: memoryview, call: Settles, number: int, shard_epoch: int) -> None:
        """One or more batches of a registered node of the cluster (rule 1). Settles the write."""
        try:
            check_accepting(self)
            first, last = -1, -1
            position = 0
            for position, header in iterate_batches(batches):
                batch = batches[position : position + header.size]
                check_batch(batch, header)
                base_offset, last = self._append_internal(batch, header, shard_epoch)
                first = base_offset if first < 0 else first
                position += header.size
            if position != len(batches) or position == 0:
                raise Refusal(ErrorCode.CORRUPT_MESSAGE, f"{len(batches) - position} bytes are not a batch")
        except Refusal as refusal:
            call.settle(number, self.refused(batches, refusal, call))
            return
        self.when_committed(last + 1, call, number, WriteResult(0, first, -1, self.machine.log_start_offset))

    def _append_internal(self, batch: memoryview, header: BatchHeader, shard_epoch: int) -> tuple[int, int]:
        """(base offset, last offset) of the batch, or of the stored batch that it repeats."""
        if header.attributes & CONTROL:
            control = decode_control(batch, header)
            decision = self.machine.decide_control(control, shard_epoch)
            if isinstance(decision, Duplicate):
                return decision.base_offset, decision.wait_for
            offset = self._append_control(bytearray(batch), control)
            return offset, offset
        decided = self.machine.decide_append(
            header, self.context.clock.now_ms(), AppendContext(internal=True, shard_epoch=shard_epoch))
        if isinstance(decided, Duplicate):
            return decided.base_offset, decided.wait_for
        base_offset, _ = self._append(batch, header)
        return base_offset, base_offset + header.last_offset_delta

    def _append_control(self, batch: bytearray, control: Control) -> int:
        """Appends and replays a control batch; returns its offset."""
        offset = self.machine.log_end_offset
        patch_prefix(batch, offset, self.leader_epoch)
        header = read_header(batch)
        self._persist(batch, header)
        aborted = self.machine.replay_control(header, control)
        if aborted is not None:
            self.log.note_aborted(aborted)
        self._written()
        self.parked.appended(control)
        self.intake.appended(control)
        return offset

    def append_control(self, control: Control) -> int:
        """Appends a control record that `machine.decide_*` has just returned. Returns its offset. Raises
        Refusal(KAFKA_STORAGE_ERROR, NOT_ENOUGH_REPLICAS)."""
        check_accepting(self)
        return self._append_control(encode_control(control, self.context.clock.now_ms()), control)

    def write_markers(self, markers: Sequence[Marker]) -> list[tuple[int, Refusal | None]]:
        """Writes the markers of one request. Returns for each (offset after the marker, None) or (-1, refusal)."""
        results: list[tuple[int, Refusal | None]] = []
        for marker, decision in zip(markers, self.machine.decide_markers(markers), strict=True):
            if isinstance(decision, Refusal):
                results.append((-1, decision))
            elif isinstance(decision, Append):
                try:
                    results.append((self.append_control(marker) + 1, None))
                except Refusal as refusal:
                    results.append((-1, refusal))
            else:
                results.append((decision.wait_for + 1, None))
            if marker.shard >= 0:
                self.context.shard_epochs.admit(marker.shard, marker.coordinator_epoch)
        return results

    # --- commit ---------------------------------------------------------------------------------------------------

    def when_committed(self, end_offset: int, call: Settles, number: int, result: WriteResult) -> None:
        """Settles the write with `result` once everything below `end_offset` is committed."""
        if end_offset <= self.machine.high_watermark:
            call.settle(number, result)
        else:
            self.waiters.append((end_offset, call, number, result))

    async def committed(self, end_offset: int) -> None:
        """Returns once everything below `end_offset` is committed. Raises Refusal if the leadership is lost."""
        result = await self.commitment(end_offset)
        if result.error:
            raise Refusal(ErrorCode(result.error), result.reason)

    def commitment(self, end_offset: int) -> asyncio.Future[WriteResult]:
        """`committed`, from now on, as a future. Its result is an error if the leadership is lost."""
        settled = WriteFuture()
        self.when_committed(end_offset, settled, 0, WriteResult(0))
        return settled.future

    @property
    def durable_end(self) -> int:
        """This node has everything below this offset, by the durability setting."""
        return self.log.synced_offset if self._durable else self.log.end_offset

    def advance(self, offset: int) -> None:
        """Everything below `offset` is durable on this node."""
        replication = self.replication
        self._local_waiters.settle(offset)  # whether or not others have a part by now
        if replication is not None:
            replication.synced(offset)
            offset = replication.committed()
        elif not self.serving:
            if self.copying is not None:
                self.copying.synced()
            return
        self._commit(offset)

    def fetched(self, node: NodeId, registration: RegistrationEpoch, end: int, start: int = 0) -> bool:
        """A follower has synced everything below `end`, and its log durably begins at `start`. False: it is not a
        replica of this partition."""
        replication = self.replication
        if replication is None or not replication.fetched(node, registration, end, start):
            return False
        self.maintenance.log_start.check()
        self._commit(replication.committed())
        if replication.may_join(node, self.machine.high_watermark):
            self.context.reconsider(self)
        return True

    def _commit(self, offset: int) -> None:
        """Advances the high watermark: everything below `offset` is committed."""
        if not self.machine.advance_high_watermark(offset):
            return
        self.waiters.settle(offset)
        if self.readers:
            self.readers.wake()
        for pull in self.pulls:
            pull.committed()

    # --- intent against state (rule 25): for `sweep` ------------------------------------------------------------------

    @property
    def committable(self) -> int:
        """Everything below this offset is durable on every replica that counts."""
        return self.durable_end if self.replication is None else self.replication.committed()

    @property
    def wants_sync(self) -> bool:
        """Some writes are not durable, and no sync of them is queued."""
        return self._durable and self.log.needs_sync and not self.commit_queued

    def overdue_write(self) -> int:
        """The offset of a waiting write that should have been answered: what it waits for has happened, or this node no
        longer leads. -1: there is none."""
        for waiters, reached in ((self.waiters, self.machine.high_watermark), (self._local_waiters, self.durable_end)):
            if waiters and (waiters[0][0] <= reached or not self.serving):
                return waiters[0][0]
        return -1

    def settle_overdue(self) -> None:
        if self.serving:
            self.waiters.settle(self.machine.high_watermark)
            self._local_waiters.settle(self.durable_end)
        else:
            self._send_away()

    # --- read -----------------------------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, *, committed: bool, at_least_one: bool, warmed: bool = False
    ) -> ReadRange:
        """Records from `offset` on that a consumer may see. Raises Cold, and Refusal: OFFSET_OUT_OF_RANGE; for damaged
        bytes KAFKA_STORAGE_ERROR if there are other replicas, CORRUPT_MESSAGE if not."""
        machine = self.machine
        if not machine.log_start_offset <= offset <= machine.log_end_offset:
            raise Refusal(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset}; the log has {machine.log_start_offset} to {machine.log_end_offset}",
            )
        end = machine.last_stable_offset if committed else machine.high_watermark
        if offset >= end:
            return ReadRange(None, 0, offset, ())
        try:
            fetched = self.log.read(offset, max_bytes, end, at_least_one=at_least_one, warmed=warmed)
        except Damaged as damage:
            raise self.damaged(damage) from damage
        found = fetched.range
        if found is None:
            return ReadRange(None, 0, offset, ())
        aborted = machine.aborted_transactions(offset, fetched.next_offset) if committed else ()
        return ReadRange(found, found.size, fetched.next_offset, aborted)

    def damaged(self, damage: Damaged) -> Refusal:
        """Clients retry after KAFKA_STORAGE_ERROR, and give up after CORRUPT_MESSAGE: no replica has the records."""
        only = self.serving and self.replication is None
        code = ErrorCode.CORRUPT_MESSAGE if only else ErrorCode.KAFKA_STORAGE_ERROR
        return Refusal(code, str(damage))
