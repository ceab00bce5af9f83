"""The allocator's gRPC calls: blocks for nodes (proto/hapax/internal/v1/pid.proto), leases for producers
(proto/hapax/v1/lease.proto)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final

from google.protobuf.message import Message

from hapax.codec.metadata import PidLeaseRecord
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.producer.leases import LeaseRequest, name_of
from hapax.core.sequence import advance
from hapax.core.types import NO_PRODUCER_ID, PartitionIndex, TopicId, TopicIdPartition
from hapax.pid.blocks import BlockAllocator
from hapax.pid.leased_partitions import Holding
from hapax.pid.leases import Leases
from hapax.pid.metrics import BLOCKS, IDS_BELOW, LEASES_GRANTED, LEASES_REFUSED
from hapax.rpc.gen.hapax.internal.v1 import pid_pb2
from hapax.rpc.gen.hapax.v1 import lease_pb2, restore_pb2
from hapax.runtime import telemetry
from hapax.runtime.asker import ASKER, ascribed
from hapax.runtime.audit_events import SILENT, Audit
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import MetadataUnavailable, Randomness, RpcError, RpcHandler
from hapax.runtime.rollback_guard import StoreRefused
from hapax.runtime.rpc import decoding

log = telemetry.logger("pid")

ALLOCATOR: Final = "/hapax.internal.v1.PidAllocator/"
LEASES: Final = "/hapax.v1.ProducerLeases/"
RESTORE: Final = "/hapax.v1.Restore/"

_Wanted = list[tuple[lease_pb2.Partition, TopicIdPartition | None]]


class RpcApi:
    def __init__(
        self, blocks: BlockAllocator, leases: Leases, view: ClusterView, block_size: int, random: Randomness,
        metrics: telemetry.Metrics, record: Callable[..., None] = lambda kind, **fields: None, audit: Audit = SILENT,
    ) -> None:
        """`block_size`: producer ids in a block where the request names no size. `record`: an event, by its kind."""
        self._record = record
        self._audit = audit
        self._blocks = blocks
        self._leases = leases
        self._view = view
        self._block_size = block_size
        self._random = random
        self._blocks_allocated = metrics.counter(BLOCKS)
        self._leases_granted = metrics.counter(LEASES_GRANTED)
        self._leases_refused = metrics.counters(LEASES_REFUSED)
        self._ids_below = metrics.gauge(IDS_BELOW)

    def handlers(self) -> dict[str, RpcHandler]:
        return {ALLOCATOR + "AllocateBlock": decoding(pid_pb2.AllocateBlockRequest, self._allocate_block)}

    def public_handlers(self) -> dict[str, RpcHandler]:
        return ascribed({
            LEASES + "LeasePid": decoding(lease_pb2.LeasePidRequest, self._lease_pid),
            LEASES + "RenewLease": decoding(lease_pb2.RenewLeaseRequest, self._renew_lease),
            LEASES + "ReleaseLease": decoding(lease_pb2.ReleaseLeaseRequest, self._release_lease),
            LEASES + "ListLeases": decoding(lease_pb2.ListLeasesRequest, self._list_leases),
            LEASES + "GetProducerProgress": decoding(
                lease_pb2.GetProducerProgressRequest, self._get_producer_progress),
            RESTORE + "ReserveProducerIds": decoding(
                restore_pb2.ReserveProducerIdsRequest, self._reserve_producer_ids),
            RESTORE + "ImportLease": decoding(restore_pb2.ImportLeaseRequest, self._import_lease),
            RESTORE + "NoteBackup": decoding(restore_pb2.NoteBackupRequest, self._note_backup),
        })

    async def lease_topics(self, name: str) -> Iterable[bytes]:
        """The ids of the topics that a lease holds partitions of. Raises RpcError."""
        try:
            lease = await self._leases.find(name)
        except MetadataUnavailable as error:
            raise RpcError("UNAVAILABLE", str(error)) from error
        return () if lease is None else dict.fromkeys(partition.topic_id for partition in lease.partitions)

    # --- blocks

    async def _allocate_block(self, request: pid_pb2.AllocateBlockRequest) -> bytes:
        self._view.rollback_guard.note_producer_id(request.in_use_below - 1)
        try:
            block = await self._blocks.allocate(request.size or self._block_size)
        except ValueError as error:
            raise RpcError("INVALID_ARGUMENT", str(error)) from error
        except StoreRefused as refusal:
            log.error(str(refusal))
            raise RpcError("FAILED_PRECONDITION", str(refusal)) from refusal
        except MetadataUnavailable as error:
            raise RpcError("UNAVAILABLE", str(error)) from error
        self._blocks_allocated.add()
        self._ids_below.set(max(self._ids_below.value, block.first + block.size))
        log.info("block allocated", first=block.first, size=block.size, node=request.node_id)
        return pid_pb2.AllocateBlockResponse(first=block.first, size=block.size).SerializeToString()

    # --- restore

    async def _reserve_producer_ids(self, request: restore_pb2.ReserveProducerIdsRequest) -> bytes:
        floor = request.producer_id_floor

        async def answer() -> restore_pb2.ReserveProducerIdsResponse:
            try:
                counter, former = await self._blocks.reserve(floor)
            except ValueError as error:
                raise Refusal(ErrorCode.INVALID_REQUEST, str(error)) from error
            except MetadataUnavailable:
                self._told("producer_ids_reserved", outcome="unknown", old=None, new=floor)
                raise
            if former < floor:
                self._told("producer_ids_reserved", old=former, new=floor)
            return restore_pb2.ReserveProducerIdsResponse(counter=counter)

        return await self._reply(answer, restore_pb2.ReserveProducerIdsResponse)

    async def _import_lease(self, request: restore_pb2.ImportLeaseRequest) -> bytes:
        async def answer() -> restore_pb2.ImportLeaseResponse:
            await self._leases.restore(request.name, {
                TopicIdPartition(TopicId(each.topic_id), PartitionIndex(each.partition)): each.record_count
                for each in request.counts})
            return restore_pb2.ImportLeaseResponse()

        return await self._reply(answer, restore_pb2.ImportLeaseResponse)

    async def _note_backup(self, request: restore_pb2.NoteBackupRequest) -> bytes:
        asker, event = ASKER.get(), "backup_restored" if request.restored else "backup_taken"
        self._record(event, backup=request.backup, by=str(asker.principal or ""), address=asker.address)
        self._told(event, backup=request.backup)
        return restore_pb2.NoteBackupResponse().SerializeToString()

    def _told(self, event: str, outcome: str = "done", **fields: object) -> None:
        asker = ASKER.get()
        self._audit.record(event, asker.principal, asker.address, call=asker.call, outcome=outcome, **fields)

    # --- leases

    async def _lease_pid(self, request: lease_pb2.LeasePidRequest) -> bytes:
        name = name_of(request.name, request.call_id or self._random.randbytes(8))
        wanted = self._resolve(request.partitions)
        resumes = request.HasField("resume_producer_id")

        async def answer() -> lease_pb2.LeasePidResponse:
            lease, former, held = await self._leases.acquire(LeaseRequest(
                name, tuple(partition for _, partition in wanted if partition is not None), request.expire_ms,
                request.holder,
                request.resume_producer_id if resumes else -1,
                request.resume_generation if resumes else -1,
                request.unless_held,
                request.call_id,
            ))
            self._leases_granted.add()
            return lease_pb2.LeasePidResponse(
                name=name, former_holder=former, partitions=self._leased(lease, held, wanted))

        return await self._reply(answer, partial(lease_pb2.LeasePidResponse, name=name))

    async def _renew_lease(self, request: lease_pb2.RenewLeaseRequest) -> bytes:

        async def answer() -> lease_pb2.RenewLeaseResponse:
            lease = await self._leases.renew(
                request.name, request.producer_id, request.generation, request.expire_ms)
            return lease_pb2.RenewLeaseResponse(expires_at_ms=lease.expires_at_ms)

        return await self._reply(answer, lease_pb2.RenewLeaseResponse)

    async def _release_lease(self, request: lease_pb2.ReleaseLeaseRequest) -> bytes:

        async def answer() -> lease_pb2.ReleaseLeaseResponse:
            await self._leases.release(request.name, request.producer_id, request.generation)
            return lease_pb2.ReleaseLeaseResponse()

        return await self._reply(answer, lease_pb2.ReleaseLeaseResponse)

    async def _list_leases(self, request: lease_pb2.ListLeasesRequest) -> bytes:
        try:
            listed = await self._leases.list(request.prefix)
        except MetadataUnavailable as error:
            raise RpcError("UNAVAILABLE", str(error)) from error
        return lease_pb2.ListLeasesResponse(leases=[
            lease_pb2.Lease(
                name=lease.name, producer_id=lease.producer_id, generation=lease.generation, holder=lease.holder,
                expires_at_ms=lease.expires_at_ms,
                partitions=[self._named(partition) for partition in lease.partitions],
            )
            for lease in listed
        ]).SerializeToString()

    async def _get_producer_progress(self, request: lease_pb2.GetProducerProgressRequest) -> bytes:
        wanted = self._resolve(request.partitions)
        known = [partition for _, partition in wanted if partition is not None]

        async def answer() -> lease_pb2.GetProducerProgressResponse:
            if request.name:
                held = await self._leases.progress(request.name, known if wanted else ())
            else:
                held = await self._leases.progress_of(request.producer_id, known)
            return lease_pb2.GetProducerProgressResponse(partitions=[
                _progress(name, held.get(partition, _NO_TOPIC) if partition else _NO_TOPIC)
                for name, partition in wanted or [
                    (self._named(p), p) for p in held if held[p].error != ErrorCode.UNKNOWN_TOPIC_ID]
            ])

        return await self._reply(answer, lease_pb2.GetProducerProgressResponse)

    async def _reply(self, answer: Callable[[], Awaitable[Message]], refused: Callable[..., Message]) -> bytes:
        """A refusal is part of the response, whose type `refused` is. A status says that the call itself failed."""
        try:
            return (await answer()).SerializeToString()
        except Refusal as refusal:
            code, reason = refusal.code, refusal.reason
        except StoreRefused as error:
            log.error(str(error))
            code, reason = ErrorCode.UNKNOWN_SERVER_ERROR, str(error)
        except (MetadataUnavailable, TimeoutError) as error:
            code, reason = ErrorCode.REQUEST_TIMED_OUT, f"the metadata store did not answer: {error}"
        self._leases_refused.labels(code.name).value += 1
        return refused(error=code, reason=reason).SerializeToString()

    # --- names and ids

    def _resolve(self, partitions: Sequence[lease_pb2.Partition]) -> _Wanted:
        """Each partition by its topic's id; None where there is no such topic or partition."""
        wanted: _Wanted = []
        for partition in partitions:
            topic = self._view.topic(partition.topic)
            exists = topic is not None and 0 <= partition.partition < topic.partitions and not topic.internal
            wanted.append((
                partition,
                TopicIdPartition(topic.topic_id, PartitionIndex(partition.partition)) if topic and exists else None,
            ))
        return wanted

    def _named(self, partition: TopicIdPartition) -> lease_pb2.Partition:
        topic = self._view.topic_by_id(partition.topic_id)
        return lease_pb2.Partition(
            topic=topic.name if topic is not None else partition.topic_id.hex(), partition=partition.partition)

    def _leased(
        self, lease: PidLeaseRecord, held: dict[TopicIdPartition, Holding], wanted: _Wanted
    ) -> list[lease_pb2.LeasedPartition]:
        """What was asked for, in its order, then the rest of the lease but for topics deleted meanwhile."""
        asked = {partition for _, partition in wanted if partition is not None}
        others = [p for p in lease.partitions if p not in asked and held[p].error != ErrorCode.UNKNOWN_TOPIC_ID]
        listed = [*wanted, *((self._named(p), p) for p in others)]
        leased = []
        for name, partition in listed:
            holding = _NO_TOPIC if partition is None else held.get(partition, _NO_TOPIC)
            leased.append(lease_pb2.LeasedPartition(
                partition=name,
                producer_id=NO_PRODUCER_ID if holding.error else lease.producer_id,
                generation=lease.generation,
                next_sequence=advance(holding.last_sequence, 1),
                record_count=holding.record_count,
                expires_at_ms=lease.expires_at_ms,
                error=holding.error,
                reason=holding.reason,
            ))
        return leased


_NO_TOPIC: Final = Holding(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic or partition")


def _progress(name: lease_pb2.Partition, holding: Holding) -> lease_pb2.ProducerProgress:
    return lease_pb2.ProducerProgress(
        partition=name, record_count=holding.record_count, generation=holding.generation,
        last_sequence=holding.last_sequence, last_offset=holding.last_offset, error=holding.error,
        reason=holding.reason,
    )
