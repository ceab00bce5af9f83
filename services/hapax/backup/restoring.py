"""Restores a backup into an empty cluster.

In this order, so that an interruption leaves a cluster that serves nothing of the backup, and the same command
finishes:

1. The whole backup is verified. Nothing is changed where a byte is wrong.
2. The counter of producer ids is raised far above every id that the backed-up cluster can have handed out. Brokers
   refuse lower ones, so a producer of the former cluster is refused wherever it comes.
3. The topics are created with `restoring`: clients can neither read nor write them.
4. Transactional ids get new producer ids and their commit tokens; groups get their offsets and no members; partitions
   get their batches. Markers of transactions that are not in the backup become aborts.
5. When every replica in sync has everything, all topics are opened in one step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple
from uuid import UUID

from hapax.backup.cluster import CALL_BYTES, BackedUpCluster
from hapax.backup.concurrency import for_each
from hapax.backup.errors import BackupError
from hapax.backup.point_in_time import Moment, as_of
from hapax.backup.reading import batches_of, check_backup
from hapax.backup.store import Store
from hapax.client.admin import NewTopic
from hapax.client.coordination import OffsetAndMetadata
from hapax.client.errors import FatalError
from hapax.codec.batch import patch_prefix
from hapax.codec.control import decode_control, encode_control
from hapax.codec.internal_records import decode_batch
from hapax.codec.metadata import OFFSETS_TOPIC, TXN_STATE_TOPIC
from hapax.codec.offsets_log import decode_record as decode_group_record
from hapax.codec.transaction_log import decode_key, decode_value
from hapax.core.access.bindings import Binding
from hapax.core.access.principals import Principal
from hapax.core.access.resources import Operation, Pattern, Permission, ResourceType
from hapax.core.backup.manifest import Manifest, PartitionPart
from hapax.core.batch import CONTROL, BatchHeader
from hapax.core.control import Control, Marker, ProducerExpiry
from hapax.core.group.offsets import CommittedOffset, OffsetRecord
from hapax.core.transaction.record import Transaction
from hapax.core.transaction.states import State
from hapax.core.types import ProducerEpoch, ProducerId, TopicPartition
from hapax.rpc.gen.hapax.v1 import restore_pb2 as pb

_AT_ONCE: Final = 4
_IDS_AT_ONCE: Final = 32
_REPLICAS_WITHIN_S: Final = 600.0
_POLL_S: Final = 0.2
_NOTHING: Final = ProducerExpiry(0, 0)
"""A control record that changes nothing. Consumers skip it."""
_UNLIMITED: Final = 1 << 62

_OffsetKey = tuple[str, TopicPartition]


class Restored(NamedTuple):
    topics: int
    partitions: int
    transactional_ids: int
    groups: int
    leases: int
    bytes: int
    without_password: tuple[str, ...]
    """Users who had a SCRAM password in the backed-up cluster, and have none in the restored one."""


class Restorer:
    def __init__(
        self, cluster: BackedUpCluster, store: Store, manifest: Manifest, *, moment: Moment | None = None,
        replication_factor: int = 0, progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`moment`: restores what was committed then; None: all of the backup. `replication_factor`: of all topics; 0:
        as in the backup."""
        self._moment = moment
        self._cluster = cluster
        self._store = store
        self._manifest = manifest
        self._replication_factor = replication_factor
        self._progress = progress
        self._bytes = 0

    async def restore(self) -> Restored:
        """Raises BackupError, HapaxError, OSError."""
        self._progress("verifying the backup")
        _, faults = await asyncio.to_thread(check_backup, self._store, self._manifest)
        if faults:
            raise BackupError(f"{faults[0]} ({len(faults)} faults; nothing was restored)")
        if self._moment is not None:
            self._manifest = await asyncio.to_thread(as_of, self._store, self._manifest, self._moment)
        manifest, cluster = self._manifest, self._cluster
        opened = await self._check_empty()
        await cluster.reserve_producer_ids(manifest.producer_id_floor)
        topics = [each for each in manifest.topics if not each.internal]
        missing = [each for each in topics if each.name not in opened]
        await cluster.create_topics([
            NewTopic(each.name, each.partitions, self._replication_factor or each.replication_factor,
                     {**each.config, "restoring": manifest.backup})
            for each in missing], exist_ok=True)
        await self._check_ours([each.name for each in missing])
        self._ids = await cluster.topic_ids(each.name for each in topics)
        self._progress("restoring transactional ids and groups")
        ids = await self._transactional_ids()
        groups = await self._groups()
        parts = [part for each in missing for part in manifest.parts_of(each.name)]
        await for_each(parts, self._partition, _AT_ONCE)
        await self._leases()
        await self._access()
        if missing:
            await cluster.end_restoring([each.name for each in missing])
        if refused := await cluster.note_backup(manifest.backup, restored=True):
            self._progress(f"the cluster has no event of this restore: {refused}")
        without = await self._without_password()
        return Restored(len(topics), len(parts), ids, groups, len(manifest.leases), self._bytes, without)

    async def _check_empty(self) -> set[str]:
        """The topics of an interrupted restore that are open already. Raises BackupError."""
        cluster, manifest = self._cluster, self._manifest
        clients, _ = await cluster.topics_by_kind()
        names = [topic.name for topic in clients]
        restoring = {name: await self._restoring(name) for name in names}
        others = sorted({each for each in restoring.values() if each and each != manifest.backup})
        if others:
            raise BackupError(
                f"the cluster is being restored from backup {others[0]}: finish that restore, or delete its topics")
        continues = manifest.backup in restoring.values()
        theirs = {each.name for each in manifest.topics if not each.internal}
        strangers = [name for name in names if name not in theirs]
        if strangers or (names and not continues):
            raise BackupError(
                f"the cluster is not empty: it has the topic {(strangers or names)[0]!r}. A backup is restored into a "
                "new cluster" + (
                    ". All topics are those of this backup, and open: if a restore of it was interrupted here, that "
                    "was after its last step, and nothing is left to do" if theirs == {*names} else ""))
        if not continues:
            used = await self._used_ids()
            groups = [each.group for each in await cluster.list_groups()]
            if used or groups:
                what = f"transactional id {used[0]!r}" if used else f"group {groups[0]!r}"
                raise BackupError(
                    f"the cluster is not empty: it has the {what}. A backup is restored into a new cluster")
        return {name for name, value in restoring.items() if not value}

    async def _used_ids(self) -> list[str]:
        """The transactional ids that no interrupted restore of this backup has left. It gives them producer ids that
        the backed-up cluster cannot have, and no transaction. A backup without topics leaves nothing else that tells of
        it; importing an id again compares all else."""
        there = await self._cluster.list_transactions()
        names = await asyncio.to_thread(self._names_of_ids) if there else frozenset()
        floor = self._manifest.producer_id_floor
        return [
            each.transactional_id for each in there
            if each.transactional_id not in names or each.producer_id < floor or each.state != State.EMPTY.kafka_name]

    def _names_of_ids(self) -> frozenset[str]:
        return frozenset(
            name for part in self._manifest.parts_of(TXN_STATE_TOPIC) for name in self._last_transactions(part))

    async def _restoring(self, topic: str) -> str:
        """The backup from which the topic is being restored; empty: none."""
        value = (await self._cluster.topic_config(topic)).get("restoring")
        return value.value or "" if value is not None else ""

    async def _check_ours(self, topics: Iterable[str]) -> None:
        """Raises BackupError where another restore, which began at the same time, has created one of the topics."""
        for name in topics:
            found = await self._restoring(name)
            if found != self._manifest.backup:
                raise BackupError(
                    f"another restore has created the topic {name!r} at the same time"
                    + (f", from backup {found}" if found else "")
                    + ". Restore into a new cluster, by one command")

    # --- coordinators' state --------------------------------------------------------------------------------------

    async def _transactional_ids(self) -> int:
        count = 0
        for part in self._manifest.parts_of(TXN_STATE_TOPIC):
            records = await asyncio.to_thread(self._last_transactions, part)
            await for_each(records.items(), self._transactional_id, _IDS_AT_ONCE)
            count += len(records)
        return count

    async def _transactional_id(self, named: tuple[str, bytes]) -> None:
        await self._cluster.import_transactional_id(*named, self._manifest.producer_id_floor)

    def _last_transactions(self, part: PartitionPart) -> dict[str, bytes]:
        """The last record of each transactional id of one shard that the backup contains."""
        last: dict[str, bytes] = {}
        lacking: set[str] = set()
        for batch, header in self._batches(part):
            if header.attributes & CONTROL:
                continue
            for _, key, value in decode_batch(batch, header):
                name = decode_key(key)
                if name is None:
                    continue
                if value is None:
                    last.pop(name, None)
                    lacking.discard(name)
                    continue
                record = decode_value(name, value)
                if isinstance(record, Transaction) and self._contains(record):
                    last[name] = value
                elif name not in last and self._manifest.through.get(name, 0) > 0:
                    lacking.add(name)
        lacking -= last.keys()
        if lacking:
            raise BackupError(
                f"the state of transactional id {min(lacking)!r} as of this moment was compacted before the backup: "
                "choose a later moment or another backup")
        return last

    def _contains(self, record: Transaction) -> bool:
        """Whether nothing in the record comes from a transaction that is not in the backup."""
        through = self._manifest.through.get(record.transactional_id, _UNLIMITED)
        committed = record.state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)
        return record.serial <= through or (record.serial == through + 1 and not committed)

    async def _groups(self) -> int:
        groups = 0
        for part in self._manifest.parts_of(OFFSETS_TOPIC):
            found = await asyncio.to_thread(self._committed_offsets, part)
            by_group: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
            for (group, partition), value in found.items():
                stored = self._manifest.part(partition)
                if stored is not None and self._is_of(partition.topic, value):
                    by_group.setdefault(group, {})[partition] = OffsetAndMetadata(
                        min(value.offset, stored.end), value.metadata)
            for group, offsets in by_group.items():
                try:
                    await self._cluster.alter_group_offsets(group, offsets)
                except FatalError as error:
                    raise BackupError(
                        f"the offsets of group {group!r} cannot be restored: {error.message}. Stop its consumers and "
                        "run the restore again") from error
            groups += len(by_group)
        return groups

    def _is_of(self, topic: str, value: CommittedOffset) -> bool:
        """The offset is not of an earlier topic of the name."""
        named = next(each for each in self._manifest.topics if each.name == topic)
        return not any(value.topic_id) or UUID(named.topic_id).bytes == value.topic_id

    def _committed_offsets(self, part: PartitionPart) -> dict[_OffsetKey, CommittedOffset]:
        committed: dict[_OffsetKey, CommittedOffset] = {}
        pending: dict[int, dict[_OffsetKey, CommittedOffset]] = {}
        excluded = frozenset(part.excluded)
        for batch, header in self._batches(part):
            if header.attributes & CONTROL:
                control = decode_control(batch, header)
                if isinstance(control, Marker):
                    decided = pending.pop(control.producer_id, {})
                    if control.commit and header.base_offset not in excluded:
                        committed |= decided
                continue
            for _, key, value in decode_batch(batch, header):
                record = decode_group_record(key, value)
                if not isinstance(record, OffsetRecord):
                    continue
                named = record.group, record.partition
                if record.value is None:
                    committed.pop(named, None)
                elif header.producer_id >= 0:
                    pending.setdefault(header.producer_id, {})[named] = record.value
                else:
                    committed[named] = record.value
        return committed

    # --- partitions -----------------------------------------------------------------------------------------------

    async def _partition(self, part: PartitionPart) -> None:
        first = await asyncio.to_thread(self._first, part)
        stored = (await self._import(part, first, b"")).log_end_offset
        pieces = _collected(self._restored(part, stored))
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            await self._import(part, first, piece)
        answer = await self._import(part, first, b"")
        await self._replicated(part, first, answer.log_end_offset)
        if first < part.start:
            await self._cluster.delete_records(part.name, part.start)
        self._progress(f"restored {part.topic}-{part.partition} up to offset {answer.log_end_offset}")

    def _first(self, part: PartitionPart) -> int:
        """The log begins within a batch where records were deleted up to there. The batch is restored, and the same
        records are deleted again."""
        for _, header in self._batches(part):
            if header.next_offset > part.start:
                return min(header.base_offset, part.start)
        return part.start

    async def _import(self, part: PartitionPart, first: int, batches: bytes) -> pb.ImportBatchesResponse:
        self._bytes += len(batches)
        return await self._cluster.import_batches(part.name, self._ids[part.topic], first, batches)

    async def _replicated(self, part: PartitionPart, first: int, end: int) -> None:
        deadline = asyncio.get_running_loop().time() + _REPLICAS_WITHIN_S
        while (await self._import(part, first, b"")).high_watermark < end:
            if asyncio.get_running_loop().time() > deadline:
                raise BackupError(
                    f"the replicas of {part.topic}-{part.partition} do not come in sync; `hapax replicas list` shows "
                    "them. Run the restore again when they are")
            await asyncio.sleep(_POLL_S)

    def _restored(self, part: PartitionPart, stored: int) -> Iterator[bytes]:
        """The partition's batches from offset `stored` on, as the restored cluster gets them."""
        excluded = frozenset(part.excluded)
        end = part.start
        for batch, header in self._batches(part):
            if header.next_offset <= part.start:
                continue
            end = header.next_offset
            if header.next_offset <= stored:
                continue
            if header.attributes & CONTROL:
                control = decode_control(batch, header)
                yield _control(_restored_control(control, header.base_offset in excluded), header.base_offset,
                               header.max_timestamp)
            else:
                yield bytes(batch)
        if end < part.end:  # compaction has removed the last records, whose offsets are not given out again
            yield _control(_NOTHING, part.end - 1, 0)
        for number, each in enumerate(part.opened):
            abort = Marker(ProducerId(each.producer_id), ProducerEpoch(each.producer_epoch), False, 0)
            yield _control(abort, part.end + number, self._manifest.taken_ms)

    def _batches(self, part: PartitionPart) -> Iterator[tuple[memoryview, BatchHeader]]:
        for stored in part.ranges:
            for batch, header in batches_of(self._store, stored):
                if header.base_offset >= part.end:
                    return
                yield batch, header

    # --- the rest -------------------------------------------------------------------------------------------------

    async def _leases(self) -> None:
        for lease in self._manifest.leases:
            await self._cluster.import_lease(pb.ImportLeaseRequest(name=lease.name, counts=[
                pb.ImportedCount(topic_id=UUID(self._ids[topic]).bytes, partition=partition, record_count=count)
                for topic, partition, count in lease.counts if topic in self._ids]))

    async def _access(self) -> None:
        bindings = [_binding(each) for each in self._manifest.acls]
        if bindings:
            await self._cluster.create_acls(bindings)
        for entity, values in self._manifest.quotas:
            await self._cluster.alter_quotas(entity, values)
        for group, config in self._manifest.group_configs:
            await self._cluster.alter_group_config(group, config)

    async def _without_password(self) -> tuple[str, ...]:
        there = set(await self._cluster.users()) if self._manifest.users else set()
        return tuple(dict.fromkeys(name for name, mechanism in self._manifest.users if (name, mechanism) not in there))


def _collected(batches: Iterable[bytes]) -> Iterator[bytes]:
    """As many batches at a time as one call takes, or a larger one alone."""
    collected: list[bytes] = []
    size = 0
    for batch in batches:
        if collected and size + len(batch) > CALL_BYTES:
            yield b"".join(collected)
            collected, size = [], 0
        collected.append(batch)
        size += len(batch)
    if collected:
        yield b"".join(collected)


def _restored_control(control: Control, is_excluded: bool) -> Control:
    """Markers lose the shard and epoch of their coordinator, which the restored cluster counts from the beginning.
    Fences of leases and shards mean nothing there."""
    if not isinstance(control, Marker):
        return _NOTHING
    return Marker(control.producer_id, control.producer_epoch, control.commit and not is_excluded, 0)


def _control(control: Control, offset: int, timestamp_ms: int) -> bytes:
    batch = encode_control(control, timestamp_ms)
    patch_prefix(batch, offset, -1)
    return bytes(batch)


def _binding(stored: tuple[Any, ...]) -> Binding:
    kind, name, pattern, principal, host, operation, permission = stored
    return Binding(
        ResourceType(kind), name, Pattern(pattern), Principal(principal), host, Operation(operation),
        Permission(permission))

