"""The services behind the Kafka calls that a broker answers, except Fetch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from struct import Struct
from typing import Final

from hapax.broker.barrier import Unconfirmed
from hapax.broker.importing import check_restored
from hapax.broker.metrics import PRODUCED_BYTES
from hapax.broker.partitions import PartitionSet
from hapax.broker.read_replicas import find_copy
from hapax.broker.replica import Replica
from hapax.codec.batch import CURRENT_MAGIC, HEADER_SIZE, read_header
from hapax.core.batch import BatchHeader
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.machine import OpenTransaction
from hapax.core.partition.values import Condition, WriteResult
from hapax.core.partition.verification import FIRST_VERSION_THAT_ADDS
from hapax.kafka.api.delete_records import HIGH_WATERMARK
from hapax.kafka.api.describe_producers import ActiveProducer
from hapax.kafka.api.list_offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    FoundOffset,
)
from hapax.kafka.api.offset_for_leader_epoch import EpochEnd
from hapax.kafka.api.produce import PartitionRecords, ProduceCall
from hapax.kafka.api.write_txn_markers import WritableMarker
from hapax.kafka.node_proofs import proven
from hapax.kafka.table import CloseConnection, RequestContext
from hapax.log.soundness import Damaged
from hapax.log.times import find_newest_record, find_record
from hapax.runtime import telemetry
from hapax.runtime.metrics import Counter
from hapax.runtime.security_settings import SSL
from hapax.wire.conditions import read_conditions
from hapax.wire.write_pass import read_pass

_NO_CONDITIONS: Final[Mapping[int, Condition]] = {}
_NO_INTERNAL_WRITES: Final = WriteResult(
    ErrorCode.INVALID_TOPIC_EXCEPTION, reason="clients cannot write to an internal topic"
)
_BEGINNINGS: Final = (EARLIEST, EARLIEST_LOCAL)
_TIERED: Final = (LATEST_TIERED, EARLIEST_PENDING_UPLOAD)
"""There is no tiered storage. Kafka answers -1 then, too."""
_FIRST_WITH_NOT_AVAILABLE: Final = 6
"""First ListOffsets version with OFFSET_NOT_AVAILABLE. Kafka returns it from version 5 on, but a client that supports
no later version does not know it."""
AskToAbort = Callable[[Replica, OpenTransaction], Awaitable[Refusal | None]]
_ACKS: Final = (-1, 0, 1)
_TRANSACTIONAL: Final = 0x10
_TOO_FEW: Final = WriteResult(
    ErrorCode.NOT_ENOUGH_REPLICAS, reason="fewer replicas are in sync than min.insync.replicas asks for"
)


_NOT_HANDED_OUT: Final = WriteResult(
    ErrorCode.NOT_ENOUGH_REPLICAS,
    reason="as far as this broker knows, the producer id has not been handed out: InitProducerId gives one",
)
"""Retriable: this broker may learn of a new block of ids after its first user. An invented id must not get into a log:
the store would seem to have gone back behind it (rule 12)."""
_BEFORE_RESTORE: Final = WriteResult(
    ErrorCode.INVALID_PRODUCER_EPOCH,
    reason="the producer id is of before this cluster was restored from a backup: start the producer again",
)
_RESTORING: Final = WriteResult(
    ErrorCode.NOT_LEADER_OR_FOLLOWER, reason="the topic is being restored from a backup: `hapax restore` ends that"
)
_MAGIC_AND_PRODUCER_ID: Final = Struct(">16xb26xq")


def _idempotent_header(body: memoryview, start: int, end: int) -> BatchHeader | None:
    """None: the batch has no producer, or cannot be read."""
    return read_header(body[start:end]) if _producer_id_of(body, start, end) >= 0 else None


def _producer_id_of(body: memoryview, start: int, end: int) -> int:
    """-1: there is no readable header. The partition then refuses the batch with a reason."""
    if end - start < HEADER_SIZE:
        return -1
    magic, producer_id = _MAGIC_AND_PRODUCER_ID.unpack_from(body, start)
    return int(producer_id) if magic == CURRENT_MAGIC else -1


class ProduceService:
    """`kafka.api.produce.PartitionWriter`."""

    def __init__(self, partitions: PartitionSet, metrics: telemetry.Metrics, superseded: Counter) -> None:
        """`superseded` counts writes on connections that a newer connection has superseded."""
        self._partitions = partitions
        self._secured = partitions.settings.security_inter_broker_protocol == SSL
        self._superseded = superseded
        self._bytes = metrics.counter(PRODUCED_BYTES)

    def produce(self, call: ProduceCall, body: memoryview) -> None:
        request, ctx = call.request, call.ctx
        self._bytes.value += len(body)
        if request.acks not in _ACKS:
            for number in range(len(request.partitions)):
                call.settle(number, WriteResult(ErrorCode.INVALID_REQUIRED_ACKS))
            return
        if request.internal is not None and (shard_epoch := self._shard_epoch(ctx, request.internal)) is not None:
            self._produce_internal(call, body, shard_epoch)
            return
        partitions = self._partitions
        transactional_id = request.transactional_id or ""
        below, floor = partitions.view.producer_ids_below, partitions.view.producer_id_floor
        conditions: Mapping[int, Condition] = _NO_CONDITIONS
        if request.conditions is not None:
            try:
                conditions = read_conditions(request.conditions, len(request.partitions))
            except Refusal as unreadable:
                for number in range(len(request.partitions)):
                    call.settle(number, WriteResult(unreadable.code, reason=unreadable.reason))
                return
        admission = None
        if request.write_pass is not None and ctx.api_version >= FIRST_VERSION_THAT_ADDS:
            admission = read_pass(request.write_pass, transactional_id, partitions.view.session_of)
        for number, part in enumerate(request.partitions):
            topic, index, start, end = part
            replica = (
                partitions.by_name.get((topic, index)) if isinstance(topic, str)
                else partitions.by_id.get((topic, index))
            )
            if replica is None:
                refusal = partitions.refusal(topic, index)
                if (header := _idempotent_header(body, start, end)) is not None:
                    partitions.early_writes.note(topic, index, header)
                call.settle(number, WriteResult(refusal.code, reason=refusal.reason))
            elif replica.internal:
                call.settle(number, _NO_INTERNAL_WRITES)
            elif start < 0:
                call.settle(number, WriteResult(ErrorCode.INVALID_RECORD, reason="no records"))
            elif replica.too_few_in_sync and request.acks == -1:
                if (header := _idempotent_header(body, start, end)) is not None:
                    replica.machine.note_refused(header)
                call.settle(number, _TOO_FEW)
            elif (producer_id := _producer_id_of(body, start, end)) >= below:
                replica.machine.note_refused(read_header(body[start:end]))
                call.settle(number, _NOT_HANDED_OUT)
            elif 0 <= producer_id < floor:
                call.settle(number, _BEFORE_RESTORE)
            elif replica.settings.restoring:
                call.settle(number, _RESTORING)
            else:
                batch = body[start:end]
                if transactional_id and ctx.api_version < FIRST_VERSION_THAT_ADDS:
                    self._fence_older_connections(replica, ctx, transactional_id, batch)
                mine = admission is not None and admission[1:3] == (replica.id.topic_id, replica.index)
                replica.produce(
                    batch, call, number, transactional_id, ctx.api_version, request.acks != -1,
                    admission if mine else None, conditions.get(number))

    def _shard_epoch(self, ctx: RequestContext, proof: bytes) -> int | None:
        """Shard epoch of an internal write. None: it is a client's write."""
        shown = proven(self._partitions.view, ctx, proof, self._secured)
        return None if shown is None else shown.shard_epoch

    def _produce_internal(self, call: ProduceCall, body: memoryview, shard_epoch: int) -> None:
        for number, part in enumerate(call.request.partitions):
            try:
                replica = self._internal_replica(part)
            except Refusal as refusal:
                call.settle(number, WriteResult(refusal.code, reason=refusal.reason))
                continue
            replica.produce_internal(body[part.start : part.end], call, number, shard_epoch)

    def _internal_replica(self, part: PartitionRecords) -> Replica:
        replica = self._partitions.find(part.topic, part.partition)
        if not replica.internal:
            raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, "not an internal topic")
        if part.start < 0:
            raise Refusal(ErrorCode.INVALID_RECORD, "no records")
        return replica

    def _fence_older_connections(
        self, replica: Replica, ctx: RequestContext, transactional_id: str, batch: memoryview
    ) -> None:
        """Clients without an epoch per transaction: the newest connection wins (rule 4)."""
        if len(batch) < HEADER_SIZE:
            return
        header = read_header(batch)
        if not header.attributes & _TRANSACTIONAL:
            return
        producer = replica.machine.producers.get(header.producer_id)
        if producer is not None and header.producer_epoch < producer.epoch:
            return  # the batch will be refused, and must not supersede the newer epoch's connection
        superseded = replica.parked.admit(transactional_id, header, ctx.connection.serial)
        if superseded is not None:
            self._superseded.value += 1
            raise CloseConnection(superseded.reason)


class NotAvailable(Refusal):
    """The partition's high watermark is not known yet."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.OFFSET_NOT_AVAILABLE)


def check_high_watermark(replica: Replica) -> None:
    """Raises NotAvailable while a new leader does not know its predecessor's high watermark: its own may be too low
    (KIP-207)."""
    if replica.machine.high_watermark < replica.epoch_start:
        raise NotAvailable


class OffsetService:
    """`kafka.api.list_offsets.OffsetFinder` and `kafka.api.offset_for_leader_epoch.EpochEndFinder`."""

    def __init__(self, partitions: PartitionSet) -> None:
        self._partitions = partitions

    def end_now(self, topic: str, partition: int, leader_epoch: int, committed: bool) -> FoundOffset | None:
        replica = self._leading(topic, partition, leader_epoch)
        machine = replica.machine
        if not replica.barrier.needless or machine.high_watermark < replica.epoch_start:
            return None
        end = machine.last_stable_offset if committed else machine.high_watermark
        return FoundOffset(end, -1, replica.leader_epoch)

    async def list_offset(
        self, ctx: RequestContext, topic: str, partition: int, timestamp: int, leader_epoch: int, committed: bool
    ) -> FoundOffset:
        replica = self._leading(topic, partition, leader_epoch)
        machine = replica.machine
        if timestamp not in _BEGINNINGS:
            try:
                await replica.barrier.passed()  # who is told an end takes it that nothing committed is behind it
                check_high_watermark(replica)
            except (Unconfirmed, NotAvailable) as refusal:
                supported = ctx.api_version >= _FIRST_WITH_NOT_AVAILABLE
                code = ErrorCode.OFFSET_NOT_AVAILABLE if supported else ErrorCode.LEADER_NOT_AVAILABLE
                raise Refusal(code, refusal.reason) from None
        end = machine.last_stable_offset if committed else machine.high_watermark
        if timestamp == LATEST:
            return FoundOffset(end, -1, replica.leader_epoch)
        if timestamp in _BEGINNINGS:
            start = machine.log_start_offset
            return FoundOffset(start, -1, self._epoch_at(replica, start))
        if timestamp in _TIERED:
            return FoundOffset(-1, -1, -1)
        try:
            if timestamp == MAX_TIMESTAMP:
                found = await find_newest_record(replica.log, replica.maintenance.condemn, machine.log_start_offset)
            else:
                found = await find_record(
                    replica.log, timestamp, end, replica.maintenance.condemn, machine.log_start_offset)
        except Damaged as damage:
            raise replica.damaged(damage) from damage
        except OSError as error:
            raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        if found is None or found.offset >= end:
            return FoundOffset(-1, -1, -1)
        return FoundOffset(found.offset, found.timestamp, self._epoch_at(replica, found.offset))

    async def offset_for_leader_epoch(
        self, topic: str, partition: int, current_epoch: int, leader_epoch: int
    ) -> EpochEnd:
        replica = self._leading(topic, partition, current_epoch)
        await replica.barrier.passed()  # a client takes what lies behind the end for lost
        machine = replica.machine
        return EpochEnd(*machine.leader_epochs.answer(leader_epoch, replica.leader_epoch, machine.log_end_offset))

    def _leading(self, topic: str, partition: int, leader_epoch: int) -> Replica:
        """Raises Refusal: this node does not lead the partition, or not under the epoch that the client knows."""
        replica = self._partitions.find(topic, partition)
        check_restored(replica)
        if 0 <= leader_epoch != replica.leader_epoch:
            fenced = leader_epoch < replica.leader_epoch
            raise Refusal(ErrorCode.FENCED_LEADER_EPOCH if fenced else ErrorCode.UNKNOWN_LEADER_EPOCH)
        return replica

    @staticmethod
    def _epoch_at(replica: Replica, offset: int) -> int:
        epoch = -1
        for each, start in replica.machine.leader_epochs.entries():
            if start <= offset:
                epoch = each
        return epoch


class DeletionService:
    """`kafka.api.delete_records.RecordDeleter`."""

    def __init__(self, partitions: PartitionSet) -> None:
        self._partitions = partitions

    async def delete_records(self, topic: str, partition: int, offset: int, timeout_ms: int) -> int:
        replica = self._partitions.find(topic, partition)
        if replica.internal:
            raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, "records of an internal topic cannot be deleted")
        if not replica.log.config.delete:
            raise Refusal(ErrorCode.POLICY_VIOLATION, "the topic's cleanup.policy does not delete")
        try:
            await replica.barrier.passed()  # a high watermark that is too low would refuse, or delete too little
            check_high_watermark(replica)
        except (Unconfirmed, NotAvailable) as refusal:
            raise Refusal(ErrorCode.LEADER_NOT_AVAILABLE, refusal.reason) from None
        committed = replica.machine.high_watermark
        below = committed if offset == HIGH_WATERMARK else offset
        if not 0 <= below <= committed:
            raise Refusal(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {below}; the high watermark is {committed}")
        try:
            return await self._delete(replica, below, timeout_ms)
        except OSError as error:
            raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    @staticmethod
    async def _delete(replica: Replica, below: int, timeout_ms: int) -> int:
        log_start = replica.maintenance.log_start
        log_start.advance(below)
        if replica.replication is not None:
            replica.replication.deleted_below = max(replica.replication.deleted_below, below)
        for pull in replica.pulls:
            pull.start_moved()
        return await log_start.everywhere(below, timeout_ms)


class ProducerService:
    """DescribeProducers and WriteTxnMarkers."""

    def __init__(self, partitions: PartitionSet, ask_to_abort: AskToAbort) -> None:
        self._partitions = partitions
        self._ask_to_abort = ask_to_abort

    async def describe_producers(
        self, topic: str, partition: int, *, leader_only: bool
    ) -> Sequence[ActiveProducer]:
        try:
            replica = self._partitions.find(topic, partition)
            await replica.barrier.passed()
        except Refusal as refusal:
            if leader_only or refusal.code is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise
            replica = find_copy(self._partitions, topic, partition)
        return [
            ActiveProducer(
                p.producer_id, p.producer_epoch, p.last_sequence, p.last_timestamp, p.coordinator_epoch,
                p.txn_first_offset,
            )
            for p in replica.machine.describe_producers()
        ]

    async def write_txn_markers(
        self, ctx: RequestContext, markers: Sequence[WritableMarker]
    ) -> Sequence[Sequence[ErrorCode]]:
        async def one(marker: WritableMarker, topic: str, partition: int) -> ErrorCode:
            try:
                replica = self._partitions.find(topic, partition)
                if replica.internal:
                    raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION)
                opened = next(
                    (t for t in replica.machine.open_transactions() if t.producer_id == marker.producer_id), None
                )
                # Without an open transaction there is nothing to end. A marker would only raise the producer's epoch.
                if opened is None:
                    await replica.barrier.passed()
                else:
                    await self._end_open(replica, opened, marker)
            except Refusal as refused:
                return refused.code
            return ErrorCode.NONE

        return [
            await asyncio.gather(*(one(marker, p.topic, p.partition) for p in marker.partitions)) for marker in markers
        ]

    async def _end_open(self, replica: Replica, opened: OpenTransaction, marker: WritableMarker) -> None:
        """Returns once the transaction is aborted by a durable marker. Raises Refusal otherwise: only its coordinator
        may commit a transaction, and a transaction that its coordinator has open or is deciding is not aborted."""
        if marker.commit:
            raise Refusal(ErrorCode.INVALID_TXN_STATE, "only its coordinator commits a transaction")
        if marker.producer_epoch < opened.producer_epoch:
            raise Refusal(ErrorCode.INVALID_PRODUCER_EPOCH)
        refusal = await self._ask_to_abort(replica, opened)
        if refusal is not None and refusal.code is ErrorCode.CONCURRENT_TRANSACTIONS:
            # Not retriable: the transaction is alive. To abort it, fence its producer (`hapax txn abort`).
            raise Refusal(ErrorCode.INVALID_TXN_STATE, refusal.reason)
        if refusal is not None:
            raise refusal
