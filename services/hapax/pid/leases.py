"""Leases of producer ids: decide (core) -> persist (compare-and-swap) -> fence the partitions -> answer.

A crash between any two steps is harmless: the generation is in the store before the first fence leaves, and the next
take-over of the lease fences all of its partitions again. Any allocator serves any lease.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from hapax.codec.metadata import Keys, PidLeaseRecord
from hapax.core.control import LEASE_COUNTED, LEASE_RELEASED
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.producer import leases
from hapax.core.producer.leases import LeaseRequest
from hapax.core.types import NO_PRODUCER_ID, ProducerId, TopicIdPartition
from hapax.pid.blocks import BlockAllocator
from hapax.pid.leased_partitions import Holding, LeasedPartitions
from hapax.runtime import telemetry
from hapax.runtime.ports import Clock, Compare, Delete, MetadataStore, MetadataUnavailable, Put

log = telemetry.logger("leases")

_STORE_TIMEOUT_S: Final = 10.0
"""Bounds a compare-and-swap loop, whatever its competitors do."""

_TOLD: Final = frozenset({
    ErrorCode.NONE,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_PRODUCER_ID,  # told before, and forgotten since
})
Held = dict[TopicIdPartition, Holding]


class Leases:
    """The leases of a cluster as one allocator sees them: nothing is kept in memory between two calls.

    `rest_after_ms`: time from a lease's expiry until it is closed and counted. `forget_after_ms`: time from its expiry
    until a lease at rest that counts nothing is removed. `taken_over` hears of each lease that was taken from a holder,
    of that holder, and of the outcome: `done`, or `unknown` where the store did not answer.
    """

    def __init__(
        self, store: MetadataStore, keys: Keys, clock: Clock, blocks: BlockAllocator, partitions: LeasedPartitions,
        *, max_expire_ms: int, rest_after_ms: int, forget_after_ms: int, fence_timeout_s: float,
        taken_over: Callable[[PidLeaseRecord, str, str], None],
    ) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._blocks = blocks
        self._partitions = partitions
        self._max_expire_ms = max_expire_ms
        self._rest_after_ms = rest_after_ms
        self._forget_after_ms = forget_after_ms
        self._fence_timeout_s = fence_timeout_s
        self._taken_over = taken_over

    # --- calls

    async def acquire(self, request: LeaseRequest) -> tuple[PidLeaseRecord, str, Held]:
        """The lease, the holder that this call fenced ("" for none), and what each of its partitions holds.

        Raises Refusal, MetadataUnavailable.
        """
        leases.check_request(request, self._max_expire_ms)
        lease, former = await self._grant(request)
        if former:
            self._taken_over(lease, former, "done")
        held = await self._fence(lease)
        for holding in held.values():
            if holding.error in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
                raise Refusal(
                    ErrorCode.PRODUCER_FENCED, f"lease {lease.name!r} was taken over meanwhile: {holding.reason}")
        return lease, former, _with_carried(lease, held)

    async def renew(self, name: str, producer_id: int, generation: int, expire_ms: int) -> PidLeaseRecord:
        """Raises Refusal, MetadataUnavailable."""
        leases.check_duration(expire_ms, self._max_expire_ms)
        lease = await self._change(
            name, lambda lease: leases.renew(lease, producer_id, generation, expire_ms, self._clock.now_ms()))
        await self._fence_all(lease)
        return lease

    async def release(self, name: str, producer_id: int, generation: int) -> PidLeaseRecord:
        """Raises Refusal, MetadataUnavailable."""
        lease = await self._change(
            name, lambda lease: leases.release(lease, producer_id, generation, self._clock.now_ms()))
        await self._fence_all(lease, LEASE_RELEASED)
        return lease

    async def list(self, prefix: str) -> list[PidLeaseRecord]:
        """By name; those at rest have no producer id. Raises MetadataUnavailable."""
        kvs, _ = await self._store.list(self._keys.pid_lease(prefix))
        return [PidLeaseRecord.decode(kv.value) for kv in kvs]

    async def progress(self, name: str, partitions: Sequence[TopicIdPartition]) -> Held:
        """What the partitions (empty: all of the lease) hold under all the producer ids that the name ever had.

        Raises Refusal, MetadataUnavailable.
        """
        lease, _ = await self._read(name)
        if lease is None:
            raise _unknown(name)
        if lease.closing:
            lease = await self._settle(lease)
        asked = list(partitions) or list(lease.partitions)
        held = dict.fromkeys(asked, Holding())
        if not lease.rests:
            held = await self.progress_of(lease.producer_id, asked)
        return _with_carried(lease, held)

    async def progress_of(self, producer_id: int, partitions: Sequence[TopicIdPartition]) -> Held:
        return await self._partitions.describe(partitions, producer_id, self._fence_timeout_s)

    async def tidy(self) -> None:
        """Brings long expired leases to rest and forgets those at rest for long that count nothing.

        Raises MetadataUnavailable.
        """
        for lease in await self.list(""):
            now = self._clock.now_ms()
            if lease.rests and any(map(self._partitions.is_deleted, lease.partitions)):
                with contextlib.suppress(Refusal):  # forgotten by another allocator
                    lease = await self._change(lease.name, self._without_deleted)
            for producer_id in lease.counted:
                await self._tell_counted(lease, producer_id)
            if leases.forgettable(lease, now, self._forget_after_ms):
                await self._forget(lease.name)
            elif leases.may_rest(lease, now, self._rest_after_ms):
                try:
                    await self._settle(await self._change(lease.name, self._close_expired))
                    log.info("lease at rest", name=lease.name, producer_id=lease.producer_id)
                except Refusal as refusal:  # its partitions are away, or it was taken over: another time
                    log.info("lease cannot rest yet", name=lease.name, reason=refusal.reason)

    async def restore(self, name: str, carried: Mapping[TopicIdPartition, int]) -> None:
        """Creates a lease of a backup, at rest. Does nothing where it was created before and is as it was then.
        Raises Refusal, MetadataUnavailable."""
        leases.check_name(name)
        now = self._clock.now_ms()
        restored = leases.restored(PidLeaseRecord(
            name, NO_PRODUCER_ID, leases.CLOSED_GENERATION, "", now, now), carried)
        before, revision = await self._read(name)
        if before is None and not await self._swap(restored, revision):
            before, _ = await self._read(name)
        if before is not None and (before.producer_id, before.carried) != (NO_PRODUCER_ID, restored.carried):
            raise Refusal(ErrorCode.INVALID_REQUEST, f"there is a lease named {name!r} already, in use in this cluster")

    # --- steps

    async def _grant(self, request: LeaseRequest) -> tuple[PidLeaseRecord, str]:
        fresh = NO_PRODUCER_ID
        async with asyncio.timeout(_STORE_TIMEOUT_S + self._fence_timeout_s):
            while True:
                before, revision = await self._read(request.name)
                now = self._clock.now_ms()
                if before is not None:
                    if leases.repeats(before, request, now):
                        return before, ""
                    leases.check_free(before, request, now)
                if before is not None and leases.must_close(before, request):
                    await self._settle(before if before.closing else await self._put(leases.close(before), revision))
                    continue
                if before is None and request.resumes:
                    raise _unknown(request.name)
                if fresh == NO_PRODUCER_ID and (before is None or (before.rests and not request.resumes)):
                    fresh = (await self._blocks.allocate(1)).first
                if before is None:
                    before = PidLeaseRecord(request.name, NO_PRODUCER_ID, leases.CLOSED_GENERATION, "", now, now)
                after = leases.acquire(self._without_deleted(before), request, now, fresh)
                former = leases.former_holder(before, after, now)
                try:
                    if await self._swap(after, revision):
                        return after, former
                except MetadataUnavailable:
                    if former:  # the call, sent again, would find the lease as its own
                        self._taken_over(after, former, "unknown")
                    raise

    async def _change(self, name: str, step: Callable[[PidLeaseRecord], PidLeaseRecord]) -> PidLeaseRecord:
        """Raises Refusal where there is no such lease, or `step` refuses."""
        async with asyncio.timeout(_STORE_TIMEOUT_S):
            while True:
                before, revision = await self._read(name)
                if before is None:
                    raise _unknown(name)
                after = step(before)
                if after == before or await self._swap(after, revision):
                    return after

    def _without_deleted(self, lease: PidLeaseRecord) -> PidLeaseRecord:
        return leases.without(lease, [each for each in lease.partitions if self._partitions.is_deleted(each)])

    def _close_expired(self, lease: PidLeaseRecord) -> PidLeaseRecord:
        if lease.closing:
            return lease
        if not leases.may_rest(lease, self._clock.now_ms(), self._rest_after_ms):
            raise Refusal(ErrorCode.CONCURRENT_TRANSACTIONS, f"lease {lease.name!r} is in use again")
        return leases.close(lease)

    async def _settle(self, lease: PidLeaseRecord) -> PidLeaseRecord:
        """A closed lease at rest: all of its partitions fenced for good, and counted. Raises Refusal."""
        held = await self._fence(lease)
        counts = {}
        for partition, holding in held.items():
            if not holding.error:
                counts[partition] = holding.record_count
            elif holding.error != ErrorCode.UNKNOWN_TOPIC_ID:
                raise _unfenced(lease, partition, holding)
        return await self._change(
            lease.name, lambda now: leases.settle(now, counts) if now == lease else now)

    async def _tell_counted(self, lease: PidLeaseRecord, producer_id: ProducerId) -> None:
        """The partitions may forget a closed id, and the lease forgets it once they all know."""
        held = await self._partitions.fence(
            lease.partitions, producer_id, leases.CLOSED_GENERATION, LEASE_COUNTED, self._fence_timeout_s)
        if {holding.error for holding in held.values()} <= _TOLD:
            with contextlib.suppress(Refusal):  # the lease is gone: so is what was to be forgotten
                await self._change(lease.name, lambda now: leases.told(now, producer_id))

    async def _fence(self, lease: PidLeaseRecord, keep_until_ms: int | None = None) -> Held:
        """`keep_until_ms`: None for the lease's end."""
        return await self._partitions.fence(
            lease.partitions, lease.producer_id, lease.generation,
            lease.expires_at_ms if keep_until_ms is None else keep_until_ms, self._fence_timeout_s)

    async def _fence_all(self, lease: PidLeaseRecord, keep_until_ms: int | None = None) -> None:
        for partition, holding in (await self._fence(lease, keep_until_ms)).items():
            if holding.error not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID):
                raise _unfenced(lease, partition, holding)

    # --- the store

    async def find(self, name: str) -> PidLeaseRecord | None:
        """Raises MetadataUnavailable."""
        return (await self._read(name))[0]

    async def _read(self, name: str) -> tuple[PidLeaseRecord | None, int]:
        if len(name) > leases.MAX_NAME_LENGTH:  # the store takes no key of megabytes, and no lease has such a name
            return None, 0
        kv = await self._store.get(self._keys.pid_lease(name))
        return (None, 0) if kv is None else (PidLeaseRecord.decode(kv.value), kv.mod_revision)

    async def _swap(self, lease: PidLeaseRecord, revision: int) -> bool:
        key = self._keys.pid_lease(lease.name)
        result = await self._store.txn([Compare(key, "mod_revision", revision)], [Put(key, lease.encode())])
        return result.succeeded

    async def _put(self, lease: PidLeaseRecord, revision: int) -> PidLeaseRecord:
        """Stores the lease; where somebody else was faster, what they stored must be closing too. Raises Refusal."""
        if await self._swap(lease, revision):
            return lease
        current, _ = await self._read(lease.name)
        if current is None or not current.closing:
            raise Refusal(ErrorCode.CONCURRENT_TRANSACTIONS, f"lease {lease.name!r} changed meanwhile: ask again")
        return current

    async def _forget(self, name: str) -> None:
        lease, revision = await self._read(name)
        if lease is not None and leases.forgettable(lease, self._clock.now_ms(), self._forget_after_ms):
            key = self._keys.pid_lease(name)
            await self._store.txn([Compare(key, "mod_revision", revision)], [Delete(key)])
            log.info("lease forgotten", name=name)


def _with_carried(lease: PidLeaseRecord, held: Held) -> Held:
    return {
        partition: holding._replace(record_count=holding.record_count + lease.carried.get(partition, 0))
        for partition, holding in held.items()
    }


def _unknown(name: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"there is no lease named {name!r}")


def _unfenced(lease: PidLeaseRecord, partition: TopicIdPartition, holding: Holding) -> Refusal:
    return Refusal(
        ErrorCode(holding.error),
        f"partition {partition.topic_id.hex()}/{partition.partition} of lease {lease.name!r}: {holding.reason}",
    )
