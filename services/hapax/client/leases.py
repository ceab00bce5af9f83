"""Leases of producer identities, for programs that manage their own recovery (Hapax only).

A lease has a name. A client that takes a name over raises its generation and fences the former holder on every
partition. A holder that restarts asks how many of its records each partition holds, and continues from there:

    async with Leases({"bootstrap.servers": "127.0.0.1:9092"}) as leases:
        lease = await leases.take("loader", partitions, expire_ms=60_000)
        async with Producer({...}, start_from=lease.start_from()) as producer:
            ... # write record number lease.progress[partition] first
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from hapax.client.connected import Connected
from hapax.client.environment import ClientPorts
from hapax.client.errors import FatalError, FencedError, RetriableError, from_code
from hapax.client.producer import StartFrom
from hapax.client.settings import Options, Settings
from hapax.core.errors import ErrorCode
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.rpc.gen.hapax.v1 import lease_pb2 as pb

SERVICE = "/hapax.v1.ProducerLeases/"

_Request: TypeAlias = (
    pb.LeasePidRequest | pb.RenewLeaseRequest | pb.ReleaseLeaseRequest | pb.ListLeasesRequest
    | pb.GetProducerProgressRequest
)


class Lease(NamedTuple):
    """`progress`: the number of records of this producer that each partition holds, over all generations."""

    name: str
    producer_id: int
    generation: int
    expires_at_ms: int
    """Wall clock."""
    next_sequences: dict[TopicPartition, int]
    progress: dict[TopicPartition, int]
    former_holder: str | None

    def start_from(self) -> StartFrom:
        return StartFrom(self.producer_id, self.generation, self.next_sequences, leased=True)


class Progress(NamedTuple):
    """What a partition holds of a producer. `last_offset` and `last_sequence` are -1 if it holds no record of it."""

    records: int
    generation: int
    last_sequence: int
    last_offset: int


class LeaseInfo(NamedTuple):
    name: str
    producer_id: int
    generation: int
    holder: str
    expires_at_ms: int
    partitions: tuple[TopicPartition, ...]


class Leases(Connected):
    """Settings as for an admin client. Calls raise HapaxError, and NotHapaxError where the cluster is another
    system."""

    def __init__(self, settings: Settings, *, ports: ClientPorts | None = None) -> None:
        options = Options(settings, "a")
        super().__init__(options, options["default.api.timeout.ms"], ports)
        self._address: str | None = None

    async def _after_start(self) -> None:
        await self._cluster.within(self._timeout, "finding the allocator", self._find)

    async def take(
        self,
        name: str,
        partitions: Iterable[TopicPartition],
        *,
        expire_ms: int = 60_000,
        holder: str = "",
        resume: tuple[int, int] | None = None,
        unless_held: bool = False,
    ) -> Lease:
        """Takes a lease. If another client holds it, that client is fenced. An empty name makes a new lease.

        `resume`: a saved (producer id, generation) to continue with; raises FencedError if another client has taken the
        lease over since. `holder`: shown to the client that loses the lease. `unless_held`: if another client holds
        the lease, fences no client and raises FatalError.
        """
        request = pb.LeasePidRequest(
            name=name,
            partitions=[pb.Partition(topic=p.topic, partition=p.partition) for p in partitions],
            expire_ms=expire_ms,
            holder=holder,
            unless_held=unless_held,
            call_id=self._ports.random.randbytes(16),
        )
        if resume is not None:
            request.resume_producer_id, request.resume_generation = resume
        answer = pb.LeasePidResponse.FromString(await self._call("LeasePid", request))
        self._check(answer.error, f"lease {name!r}", answer.reason)
        if not answer.partitions:
            raise FatalError(f"lease {name!r}: name at least one partition")
        for p in answer.partitions:
            self._check(p.error, f"lease {name!r} on {p.partition.topic}-{p.partition.partition}", p.reason)
        first = answer.partitions[0]
        return Lease(
            answer.name,
            first.producer_id,
            first.generation,
            first.expires_at_ms,
            {_partition(p.partition): p.next_sequence for p in answer.partitions},
            {_partition(p.partition): p.record_count for p in answer.partitions},
            answer.former_holder or None,
        )

    async def renew(self, lease: Lease, expire_ms: int = 60_000) -> Lease:
        """Extends the lease. Raises FencedError if another client has taken it over."""
        request = pb.RenewLeaseRequest(
            name=lease.name, producer_id=lease.producer_id, generation=lease.generation, expire_ms=expire_ms
        )
        answer = pb.RenewLeaseResponse.FromString(await self._call("RenewLease", request))
        self._check(answer.error, f"renewing lease {lease.name!r}", answer.reason)
        return lease._replace(expires_at_ms=answer.expires_at_ms)

    async def release(self, lease: Lease) -> None:
        request = pb.ReleaseLeaseRequest(
            name=lease.name, producer_id=lease.producer_id, generation=lease.generation
        )
        answer = pb.ReleaseLeaseResponse.FromString(await self._call("ReleaseLease", request))
        self._check(answer.error, f"releasing lease {lease.name!r}", answer.reason)

    async def list(self, prefix: str = "") -> list[LeaseInfo]:
        request = pb.ListLeasesRequest(prefix=prefix)
        answer = pb.ListLeasesResponse.FromString(await self._call("ListLeases", request))
        return [
            LeaseInfo(
                lease.name,
                lease.producer_id,
                lease.generation,
                lease.holder,
                lease.expires_at_ms,
                tuple(_partition(p) for p in lease.partitions),
            )
            for lease in answer.leases
        ]

    async def progress(
        self, producer: int | str, partitions: Iterable[TopicPartition] = ()
    ) -> dict[TopicPartition, Progress]:
        """What partitions hold of a producer id, or of a lease by its name (by default in all its partitions)."""
        request = pb.GetProducerProgressRequest(
            partitions=[pb.Partition(topic=p.topic, partition=p.partition) for p in partitions]
        )
        if isinstance(producer, int):
            request.producer_id = producer
        else:
            request.name = producer
        answer = pb.GetProducerProgressResponse.FromString(
            await self._call("GetProducerProgress", request)
        )
        self._check(answer.error, f"progress of {producer!r}", answer.reason)
        found = {}
        for p in answer.partitions:
            self._check(p.error, f"progress on {p.partition.topic}-{p.partition.partition}", p.reason)
            found[_partition(p.partition)] = Progress(p.record_count, p.generation, p.last_sequence, p.last_offset)
        return found

    async def _find(self) -> None:
        """Raises RetriableError if no allocator is available, NotHapaxError if the peer is another system."""
        _, self._address = await self._cluster.rpc_addresses()
        if self._address is None:
            raise RetriableError(
                "no allocator of producer ids is available", code=ErrorCode.COORDINATOR_NOT_AVAILABLE,
                advice="Try again; if it fails again, check that an allocator is running")

    async def _call(self, method: str, request: _Request) -> bytes:
        self._check_usable()
        message = request.SerializeToString()
        seconds = self._options["request.timeout.ms"] / 1000

        async def attempt() -> bytes:
            if self._address is None:
                await self._find()
            address, self._address = self._address, None
            assert address is not None
            answer = await self._cluster.channel(address).call(SERVICE + method, message, seconds)
            self._address = address  # kept for the next call, since it answered
            return answer

        return await self._cluster.within(self._timeout, method, attempt)

    @staticmethod
    def _check(code: int, what: str, reason: str) -> None:
        if code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
            raise FencedError(f"{what}: {reason}", code=code)
        if code:
            raise from_code(code, what, reason)


def _partition(p: pb.Partition) -> TopicPartition:
    return TopicPartition(p.topic, PartitionIndex(p.partition))
