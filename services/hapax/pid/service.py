"""The PID allocator: blocks of producer ids for nodes, and single ones on lease for producers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from hapax.codec.metadata import NodeRecord, PidLeaseRecord
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.producer.leases import LeaseRequest
from hapax.core.sequence import advance
from hapax.core.types import NO_PRODUCER_ID, NodeId, PartitionIndex, TopicIdPartition
from hapax.pid.blocks import BlockAllocator
from hapax.pid.leased_partitions import Holding, LeasedPartitions
from hapax.pid.leases import Leases
from hapax.pid.metrics import BLOCKS, IDS_BELOW, LEASES_GRANTED, LEASES_REFUSED
from hapax.rpc.gen.hapax.internal.v1 import pid_pb2
from hapax.rpc.gen.hapax.v1 import lease_pb2
from hapax.runtime import supervision, telemetry
from hapax.runtime.cluster import ClusterView
from hapax.runtime.node_ids import claim_folder, fixed_id, open_ids
from hapax.runtime.own_cluster import answers_own
from hapax.runtime.ports import MetadataUnavailable, Ports, RpcError, RpcServer, Task
from hapax.runtime.registration import Registration, register
from hapax.runtime.seen import HighestSeen, StoreRefused
from hapax.runtime.settings import Address, Settings
from hapax.wire.events import EventLog
from hapax.wire.metrics import FENCINGS

log = telemetry.logger("pid")

ALLOCATOR: Final = "/hapax.internal.v1.PidAllocator/"
LEASES: Final = "/hapax.v1.ProducerLeases/"

_FENCE_TIMEOUT_S: Final = 10.0
_FORGET_AFTER_MS: Final = 30 * 86_400_000
_TIDY_EVERY_S: Final = 3600.0

_T = TypeVar("_T")
_Wanted = list[tuple[lease_pb2.Partition, TopicIdPartition | None]]


class PidService:
    """Composed by `start`. `ready()` is "" while it serves; `close()` gives the registration up at once."""

    def __init__(self, ports: Ports, settings: Settings, view: ClusterView, metrics: telemetry.Metrics) -> None:
        self.view = view
        self.registration: Registration | None = None
        self._settings = settings
        self._random = ports.random
        self._ports = ports
        self._server: RpcServer | None = None
        self._events: EventLog | None = None
        self._tidier: Task | None = None
        self._blocks_allocated = metrics.counter(BLOCKS)
        self._leases_granted = metrics.counter(LEASES_GRANTED)
        self._leases_refused = metrics.counters(LEASES_REFUSED)
        self._ids_below = metrics.gauge(IDS_BELOW)
        self._takeovers = metrics.counters(FENCINGS).labels("lease_taken")
        self._metrics = metrics
        self.blocks = BlockAllocator(ports.metadata, view.keys, view.seen, ports.random)
        self.leases = Leases(
            ports.metadata, view.keys, ports.clock, self.blocks, LeasedPartitions(ports.network, view),
            max_expire_ms=settings.pid_lease_max_ms,
            rest_after_ms=settings.producer_id_expiration_ms // 2,
            forget_after_ms=_FORGET_AFTER_MS,
            fence_timeout_s=_FENCE_TIMEOUT_S,
            taken_over=self._taken_over,
        )

    @property
    def rpc_address(self) -> str:
        return "" if self._server is None else self._server.address

    def ready(self) -> str:
        return "" if self.registration is not None else "registration"

    async def serve(self, identity: str, http_address: str, on_lost: Callable[[str], None]) -> None:
        ports, settings = self._ports, self._settings
        listen, own = settings.rpc_address, settings.cluster_id
        self._server = await ports.network.serve_rpc(listen.host, listen.port, {
            ALLOCATOR + "AllocateBlock": answers_own(own, pid_pb2.AllocateBlockRequest, self._allocate_block),
            LEASES + "LeasePid": answers_own(own, lease_pb2.LeasePidRequest, self._lease_pid),
            LEASES + "RenewLease": answers_own(own, lease_pb2.RenewLeaseRequest, self._renew_lease),
            LEASES + "ReleaseLease": answers_own(own, lease_pb2.ReleaseLeaseRequest, self._release_lease),
            LEASES + "ListLeases": answers_own(own, lease_pb2.ListLeasesRequest, self._list_leases),
            LEASES + "GetProducerProgress": answers_own(
                own, lease_pb2.GetProducerProgressRequest, self._get_producer_progress),
        })
        advertised = settings.advertised_rpc(Address.parse(self._server.address))
        record = NodeRecord(
            NodeId(settings.node_id), "pid", advertised.host, 0, str(advertised), http_address,
            rack=settings.broker_rack or "", identity=identity,
        )
        self.registration = await register(
            ports.metadata, self.view.keys, record, random=ports.random, on_lost=on_lost,
            ttl_s=settings.broker_session_timeout_ms / 1000, among=open_ids(settings))
        self._tidier = supervision.keep(self._tidy, "lease-tidier", self._random)

    async def drain(self) -> None:
        """Nothing waits here for long: what runs is finished by `close`."""

    async def close(self) -> None:
        if self._tidier is not None:
            self._tidier.cancel()
            await asyncio.gather(self._tidier, return_exceptions=True)
        if self._events is not None:
            await self._events.close()
        if self.registration is not None:
            await self.registration.close()
        if self._server is not None:
            await self._server.close(grace=1.0)
        await self.view.close()

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(_TIDY_EVERY_S * (0.5 + self._random.random()))
            try:
                await self.leases.tidy()
            except (MetadataUnavailable, TimeoutError) as error:
                log.warning("leases were not tidied", error=error)

    def _taken_over(self, lease: PidLeaseRecord, former_holder: str) -> None:
        if self._events is None:
            registration = self.registration
            assert registration is not None
            self._events = EventLog(
                self._ports.network, self._ports.clock, self.view, self._random, registration.record.node_id,
                registration.epoch, registration.record.session, self._metrics)
        self._takeovers.add()
        self._events.record(
            "lease_taken_over", name=lease.name, producer_id=lease.producer_id, generation=lease.generation,
            by=lease.holder, former_holder=former_holder)

    # --- blocks

    async def _allocate_block(self, request: pid_pb2.AllocateBlockRequest) -> bytes:
        self.view.seen.saw_producer_id(request.in_use_below - 1)
        try:
            block = await self.blocks.allocate(request.size or self._settings.pid_block_size)
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

    # --- leases

    async def _lease_pid(self, request: lease_pb2.LeasePidRequest) -> bytes:
        name = request.name or f"lease-{self._random.randbytes(8).hex()}"
        wanted = self._resolve(request.partitions)
        resumes = request.HasField("resume_producer_id")

        async def answer() -> lease_pb2.LeasePidResponse:
            lease, former, held = await self.leases.acquire(LeaseRequest(
                name, tuple(partition for _, partition in wanted if partition is not None), request.expire_ms,
                request.holder,
                request.resume_producer_id if resumes else -1,
                request.resume_generation if resumes else -1,
                request.unless_held,
            ))
            self._leases_granted.add()
            return lease_pb2.LeasePidResponse(
                name=name, former_holder=former, partitions=self._leased(lease, held, wanted))

        def refused(code: int, reason: str) -> lease_pb2.LeasePidResponse:
            return lease_pb2.LeasePidResponse(error=code, reason=reason, name=name)

        return (await _answered(answer, refused)).SerializeToString()

    async def _renew_lease(self, request: lease_pb2.RenewLeaseRequest) -> bytes:

        async def answer() -> lease_pb2.RenewLeaseResponse:
            lease = await self.leases.renew(
                request.name, request.producer_id, request.generation, request.expire_ms)
            return lease_pb2.RenewLeaseResponse(expires_at_ms=lease.expires_at_ms)

        def refused(code: int, reason: str) -> lease_pb2.RenewLeaseResponse:
            return lease_pb2.RenewLeaseResponse(error=code, reason=reason)

        return (await _answered(answer, refused)).SerializeToString()

    async def _release_lease(self, request: lease_pb2.ReleaseLeaseRequest) -> bytes:

        async def answer() -> lease_pb2.ReleaseLeaseResponse:
            await self.leases.release(request.name, request.producer_id, request.generation)
            return lease_pb2.ReleaseLeaseResponse()

        def refused(code: int, reason: str) -> lease_pb2.ReleaseLeaseResponse:
            return lease_pb2.ReleaseLeaseResponse(error=code, reason=reason)

        return (await _answered(answer, refused)).SerializeToString()

    async def _list_leases(self, request: lease_pb2.ListLeasesRequest) -> bytes:
        try:
            listed = await self.leases.list(request.prefix)
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
                held = await self.leases.progress(request.name, known if wanted else ())
            else:
                held = await self.leases.progress_of(request.producer_id, known)
            return lease_pb2.GetProducerProgressResponse(partitions=[
                _progress(name, held.get(partition, _NO_TOPIC) if partition else _NO_TOPIC)
                for name, partition in wanted or [
                    (self._named(p), p) for p in held if held[p].error != ErrorCode.UNKNOWN_TOPIC_ID]
            ])

        def refused(code: int, reason: str) -> lease_pb2.GetProducerProgressResponse:
            return lease_pb2.GetProducerProgressResponse(error=code, reason=reason)

        return (await _answered(answer, refused)).SerializeToString()

    # --- names and ids

    def _resolve(self, partitions: Sequence[lease_pb2.Partition]) -> _Wanted:
        """Each partition by its topic's id; None where there is no such topic or partition."""
        wanted: _Wanted = []
        for partition in partitions:
            topic = self.view.topic(partition.topic)
            exists = topic is not None and 0 <= partition.partition < topic.partitions and not topic.internal
            wanted.append((
                partition,
                TopicIdPartition(topic.topic_id, PartitionIndex(partition.partition)) if topic and exists else None,
            ))
        return wanted

    def _named(self, partition: TopicIdPartition) -> lease_pb2.Partition:
        topic = self.view.topic_by_id(partition.topic_id)
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


async def _answered(answer: Callable[[], Awaitable[_T]], refused: Callable[[int, str], _T]) -> _T:
    try:
        return await answer()
    except Refusal as refusal:
        return refused(refusal.code, refusal.reason)
    except StoreRefused as refusal:
        log.error(str(refusal))
        return refused(ErrorCode.UNKNOWN_SERVER_ERROR, str(refusal))
    except (MetadataUnavailable, TimeoutError) as error:
        return refused(ErrorCode.REQUEST_TIMED_OUT, f"the metadata store did not answer: {error}")


async def start(
    ports: Ports, settings: Settings, *, on_lost: Callable[[str], None], http_address: str = "",
    metrics: telemetry.Metrics | None = None,
) -> PidService:
    """Returns once the allocator serves and is registered. `on_lost` is called with one sentence when it must end.

    Raises FolderRefused, StoreRefused, NodeIdTaken, OSError.
    """
    identity = ""
    if ports.disk is not None:
        folder = await claim_folder(ports.disk, settings.cluster_id, fixed_id(settings), ports.random)
        identity = folder.directory_id
    view = ClusterView(
        ports.metadata, settings.cluster_id, ports.random, HighestSeen(settings.cluster_id, ports.disk),
        on_refused=lambda refusal: on_lost(str(refusal)),
    )
    service = PidService(ports, settings, view, metrics or telemetry.Metrics())
    try:
        await view.start()
        with contextlib.suppress(MetadataUnavailable):  # checked again at every block
            await service.blocks.check()
        await service.serve(identity, http_address, on_lost)
    except BaseException:
        await service.close()
        raise
    return service
