"""Takes a backup of a running cluster: see `core.backup.cut` for the order in which the logs are read, and why.

What the last backup has is not read again, but for the transaction log, which is compacted and small. An interrupted
backup leaves objects that no manifest names; `--keep` removes them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final, NamedTuple

from hapax.backup import manifests
from hapax.backup.cluster import BackedUpCluster, LogStartMoved
from hapax.backup.concurrency import for_each
from hapax.backup.errors import BackupError
from hapax.backup.store import Store
from hapax.backup.transactions import AT_REST, Ids, OffsetsReader, ids_of, merged
from hapax.client.admin import TopicInfo
from hapax.client.errors import HapaxError
from hapax.client.leases import Leases
from hapax.codec.batch import check_batch
from hapax.codec.control import decode_control
from hapax.codec.internal_records import decode_batch
from hapax.codec.metadata import OFFSETS_TOPIC, TXN_STATE_TOPIC
from hapax.codec.transaction_log import decode_record as decode_transaction_record
from hapax.core.backup.cut import Decided, Piece, ReadUpTo, Scan, excluded, settle
from hapax.core.backup.manifest import LeasePart, Manifest, PartitionPart, StoredRange, TopicPart, expired
from hapax.core.batch import CONTROL, BatchHeader
from hapax.core.control import Marker
from hapax.core.errors import ErrorCode
from hapax.core.transaction.record import Transaction
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.runtime.package import package_version

OBJECT_BYTES: Final = 16 << 20
"""An object holds about this much, and so does each partition that is being read."""
AT_ONCE: Final = 4
"""Partitions that are read at the same time."""
_MARKERS_WITHIN_S: Final = 60.0
_POLL_S: Final = 0.05
_GONE: Final = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_ABANDONED_MS: Final = 86_400_000
"""A backup that has not said for this long that it runs, and has no manifest, does not run any more."""
_SAID_AGAIN_MS: Final = 600_000


class Taken(NamedTuple):
    manifest: Manifest
    uploaded: int
    """Bytes."""
    removed: tuple[str, ...]
    """Backups that have expired."""


@dataclass(slots=True)
class _Read:
    """What was read of one partition."""

    part: PartitionPart
    scan: Scan
    pieces: list[Piece] = field(default_factory=list)
    """Committed ones, with markers from `watch_from` on."""
    reads: list[ReadUpTo] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)
    """Records of leased producers."""


Progress = Callable[[str], None]
_Watched = dict[int, dict[TopicPartition, int]]
"""Producer id of a lease -> the offset of its last record in each partition when they were counted."""


class BackupTaker:
    def __init__(
        self, cluster: BackedUpCluster, leases: Leases, store: Store, *, now_ms: Callable[[], int],
        randbytes: Callable[[int], bytes], progress: Progress = lambda line: None,
    ) -> None:
        self._cluster = cluster
        self._leases = leases
        self._store = store
        self._now_ms = now_ms
        self._randbytes = randbytes
        self._progress = progress
        self._uploaded = 0
        self._running: dict[str, str] = {}
        self._said_ms = 0

    async def take(self, keep: int = 0) -> Taken:
        """`keep`: removes all but this many of the newest backups afterwards; 0: none. Raises BackupError, HapaxError,
        OSError."""
        began = self._now_ms()
        there = await asyncio.to_thread(manifests.listed, self._store)
        # Backups are ordered by the time in their ids. The clock may have gone back since the last one.
        time_ms = max([began, *(manifests.time_of(each) + 1 for each in there[-1:])])
        backup = f"{time_ms:013d}-{self._randbytes(4).hex()}"
        try:
            base = await self._base(backup, began)
            manifest = await self._read(backup, began, base)
            await self._check_running()
            await self._put(f"{manifests.FOLDER}{backup}.json", manifests.encode(manifest))
            if refused := await self._cluster.note_backup(backup, restored=False):
                self._progress(f"the cluster has no event of this backup: {refused}")
        finally:
            await asyncio.to_thread(self._store.delete, manifests.running(backup))
        removed = await expire(self._store, keep, self._now_ms()) if keep else ()
        return Taken(manifest, self._uploaded, tuple(removed))

    async def _base(self, backup: str, began: int) -> Manifest | None:
        """The newest backup that can be read. It is held first, so that no expiry removes it in between."""
        skipped: set[str] = set()
        while True:
            there = [each for each in await asyncio.to_thread(manifests.listed, self._store) if each not in skipped]
            newest = there[-1] if there else ""
            self._running = {"backup": backup, "base": newest}
            await self._say_running()
            if not newest:
                return None
            try:
                base = await asyncio.to_thread(manifests.read, self._store, newest)
            except BackupError as error:
                self._progress(f"{error}; the backup does not continue it")
                skipped.add(newest)
                continue
            if base.cluster_id != self._cluster.cluster_id:
                raise BackupError(
                    f"holds backups of the cluster {base.cluster_id!r}, and this is {self._cluster.cluster_id!r}: "
                    "give each cluster a place of its own", self._store.address)
            return base

    async def _say_running(self) -> None:
        self._said_ms = self._now_ms()
        running = {**self._running, "began_ms": self._said_ms}
        await self._put(manifests.running(self._running["backup"]), json.dumps(running).encode())

    async def _check_running(self) -> None:
        """Raises BackupError where another backup has taken this one for abandoned, and removed its objects."""
        try:
            await asyncio.to_thread(self._store.get, manifests.running(self._running["backup"]))
        except FileNotFoundError:
            raise BackupError("another backup has removed this one's objects, because it had uploaded nothing for a "
                              "day: take the backup again", self._store.address) from None

    async def _read(self, backup: str, began: int, base: Manifest | None) -> Manifest:
        cluster = self._cluster
        kinds = await cluster.topics_by_kind()
        for topic in kinds[0]:
            async with self._unless_deleted(topic):
                await self._described(topic, internal=False)  # one that is being restored cannot be read
        leases = await self._counted_leases()
        # First of all: a marker that is stored above one of the ends below is older than its COMPLETE record, which is
        # therefore above these ends. So no clock has to say which ids have decided something lately.
        at_first = await self._ends(([], [each for each in kinds[1] if each.name == TXN_STATE_TOPIC]))
        before = await self._ends(kinds)
        shards = list(at_first)
        ids = Ids(Decided({}, {}), {}, -1)
        topics = {each.name: each for kind in kinds for each in kind}
        read: dict[TopicPartition, _Read] = {}
        shard_ends = await self._ends_of(shards)

        async def one(shard: TopicPartition) -> None:
            nonlocal ids
            found, part = await self._read_transactions(
                backup, topics[shard.topic], shard, shard_ends[shard], at_first[shard], base, began)
            ids = merged(ids, found)
            read[shard] = _Read(part, Scan())

        await for_each(shard_ends, one, AT_ONCE)
        await self._markers_stored(ids.preparing)
        groups = [name for name in before if name.topic == OFFSETS_TOPIC]
        await self._copy(backup, topics, await self._ends_of(groups), before, base, began, {}, read)
        clients, _ = await cluster.topics_by_kind()
        other = {each.name for each in clients if each.name in topics and topics[each.name].topic_id != each.topic_id}
        before = {name: end for name, end in before.items() if name.topic not in other}
        leases = {lease: (producer_id, {
            name: (0, -1) if name.topic in other else each for name, each in counts.items()})
            for lease, (producer_id, counts) in leases.items()}
        topics |= {topic.name: topic for topic in clients}
        named = [TopicPartition(t.name, PartitionIndex(p.partition)) for t in clients for p in t.partitions]
        watched = {
            producer_id: {name: last for name, (_, last) in counts.items()}
            for producer_id, counts in leases.values() if producer_id >= 0}
        await self._copy(backup, topics, await self._ends_of(named), before, base, began, watched, read)
        there = {name for name in read if name.topic in topics}
        through = settle(
            ids.decided, {name: each.pieces for name, each in read.items()},
            [each for found in read.values() for each in found.reads])
        parts = [
            replace(read[name].part, opened=read[name].scan.opened,
                    excluded=tuple(
                        each for each in excluded(ids.decided, through, read[name].pieces)
                        if each >= read[name].part.start))
            for name in sorted(there)]
        lacking = {each.topic for each in named if each not in there}  # deleted since they were listed
        kept = {topic.name for topic in clients} - lacking | {TXN_STATE_TOPIC, OFFSETS_TOPIC}
        described = []
        for topic_name in sorted(kept & set(topics)):
            kept.discard(topic_name)
            async with self._unless_deleted(topics[topic_name]):
                described.append(await self._described(
                    topics[topic_name], internal=topic_name in (TXN_STATE_TOPIC, OFFSETS_TOPIC)))
                kept.add(topic_name)
        return Manifest(
            backup=backup, cluster_id=cluster.cluster_id, began_ms=began, taken_ms=self._now_ms(),
            release=package_version(), base=base.backup if base is not None else "",
            highest_producer_id=max([
                ids.highest_producer_id, *(each.scan.highest_producer_id for each in read.values()), *watched,
                base.highest_producer_id if base is not None else -1]),
            topics=tuple(described), partitions=tuple(part for part in parts if part.topic in kept),
            through={name: serial for name, serial in through.items() if serial < ids.decided.through[name]},
            leases=tuple(_lease(name, producer_id, counts, read) for name, (producer_id, counts) in leases.items()),
            acls=await self._acls(), quotas=await self._quotas(), group_configs=await self._group_configs(),
            users=await self._cluster.users())

    # --- logs -----------------------------------------------------------------------------------------------------

    async def _ends(self, kinds: tuple[list[TopicInfo], list[TopicInfo]]) -> dict[TopicPartition, int]:
        names = [
            TopicPartition(topic.name, PartitionIndex(each.partition))
            for kind in kinds for topic in kind for each in topic.partitions]
        return {name: end for name, (_, end) in (await self._ends_of(names)).items()}

    async def _ends_of(self, names: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """(log start, high watermark), as of now. Without the topics that are deleted meanwhile."""
        wanted = list(names)
        while True:
            try:
                found = await self._cluster.partition_offsets(wanted)
            except HapaxError:
                there = {topic.name for kind in await self._cluster.topics_by_kind() for topic in kind}
                left = [name for name in wanted if name.topic in there]
                if len(left) == len(wanted):
                    raise
                wanted = left
            else:
                return {name: (each.first, each.high_watermark) for name, each in found.items()}

    async def _read_transactions(
        self, backup: str, topic: TopicInfo, shard: TopicPartition, ends: tuple[int, int], at_first: int,
        base: Manifest | None, began: int,
    ) -> tuple[Ids, PartitionPart]:
        """The whole shard: what it says of transactional ids, and the objects of what the last backup lacks.
        `at_first`: where the shard ended when the backup began."""
        start, end = ends
        continued = await self._continued(base, topic, shard, ends, began)
        writer = _Writer(self, backup, topic, shard, continued)
        last: dict[str, Transaction] = {}
        highest = -1
        try:
            async for batch, header in self._cluster.batches(shard, topic.topic_id, start, end):
                check_batch(batch, header)
                await writer.add(batch, header)
                if header.attributes & CONTROL:
                    continue
                for _, key, value in decode_batch(batch, header):
                    record = decode_transaction_record(key, value)
                    if isinstance(record, Transaction):
                        highest = max(highest, record.highest_producer_id)
                        if header.next_offset > at_first or record.state not in AT_REST:
                            last[record.transactional_id] = record
                        else:
                            last.pop(record.transactional_id, None)
        except LogStartMoved as moved:
            raise BackupError(
                f"{shard.topic}-{shard.partition} lost its records below {moved.first} while it was read") from None
        return ids_of(last.values(), highest), await writer.finish(end)

    async def _markers_stored(self, preparing: dict[str, int]) -> None:
        """Waits until the markers of these transactions are stored. Raises BackupError."""
        waiting = dict(preparing)
        deadline = asyncio.get_running_loop().time() + _MARKERS_WITHIN_S
        while waiting:
            for name in list(waiting):
                described = await self._cluster.describe(name)
                if described is None or described.serial > waiting[name] or not described.state.startswith("Prepare"):
                    del waiting[name]
            if waiting and asyncio.get_running_loop().time() > deadline:
                raise BackupError(
                    f"the transaction of {next(iter(waiting))!r} is decided, but not all of its markers are stored. Is "
                    "a partition without a leader? `hapax cluster health` shows it")
            if waiting:
                await asyncio.sleep(_POLL_S)

    async def _continued(
        self, base: Manifest | None, topic: TopicInfo, name: TopicPartition, ends: tuple[int, int], began: int
    ) -> PartitionPart:
        """What the last backup has of the partition. Nothing where the cluster has another batch than that backup at
        its end: an unclean election has replaced records, or compaction has rewritten them."""
        start, end = ends
        known = _continued(base, topic, name, start, end, began)
        offset, crc = known.tail
        if known.end == start or offset < start:
            return known
        try:
            async for _, header in self._cluster.batches(name, topic.topic_id, offset, known.end):
                if (header.base_offset, header.crc) == (offset, crc):
                    return known
                break
        except LogStartMoved:
            return known
        self._progress(
            f"{name.topic}-{name.partition} has other records than the last backup: it is read from its start")
        return PartitionPart(topic.name, name.partition, start, start, since_ms=began)

    async def _copy(
        self, backup: str, topics: dict[str, TopicInfo], ends: dict[TopicPartition, tuple[int, int]],
        before: dict[TopicPartition, int], base: Manifest | None, began: int, watched: _Watched,
        into: dict[TopicPartition, _Read],
    ) -> None:
        async def one(name: TopicPartition) -> None:
            topic = topics.get(name.topic)
            if topic is None:
                return
            async with self._unless_deleted(topic):
                into[name] = await self._copy_one(
                    backup, topic, name, ends[name], before.get(name, 0), base, began, watched)
                return
            topics.pop(name.topic, None)  # its part of each transaction counts as done

        await for_each(ends, one, AT_ONCE)

    async def _copy_one(
        self, backup: str, topic: TopicInfo, name: TopicPartition, ends: tuple[int, int], watch_from: int,
        base: Manifest | None, began: int, watched: _Watched,
    ) -> _Read:
        start, end = ends
        continued = await self._continued(base, topic, name, ends, began)
        writer = _Writer(self, backup, topic, name, continued)
        found = _Read(continued, Scan(continued.opened))
        offsets = OffsetsReader()
        offset = continued.end
        # Records below the last backup's end are there already, but what a transaction has committed since must be
        # known from its first offset on.
        if name.topic == OFFSETS_TOPIC:
            offset = min([offset, *(each.first_offset for each in continued.opened)])
        while True:
            try:
                async for batch, header in self._cluster.batches(name, topic.topic_id, max(offset, start), end):
                    check_batch(batch, header)
                    offset = header.next_offset
                    if header.next_offset > continued.end:
                        await writer.add(batch, header)
                        _follow(found, batch, header, watch_from)
                        if header.producer_id in watched:
                            _count(found, header, watched[header.producer_id].get(name, -1))
                    if name.topic != OFFSETS_TOPIC:
                        continue
                    if not header.attributes & CONTROL:
                        offsets.data(batch, header)
                    elif header.base_offset < watch_from:
                        offsets.control(header, decode_control(batch, header))
                    else:
                        found.reads += offsets.control(header, decode_control(batch, header))
                break
            except LogStartMoved as moved:
                offset = start = moved.first
                if moved.first > writer.end:
                    writer.begin_at(moved.first)
                    found.scan = Scan()
        found.part = await writer.finish(end)
        return found

    async def upload(self, name: str, content: bytes) -> None:
        if self._now_ms() - self._said_ms > _SAID_AGAIN_MS:
            await self._check_running()
            await self._say_running()
        await self._put(name, content)
        self._uploaded += len(content)

    async def _put(self, name: str, content: bytes) -> None:
        await asyncio.to_thread(self._store.put, name, content)

    # --- the rest of the state ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _unless_deleted(self, topic: TopicInfo) -> AsyncIterator[None]:
        """Ends the block where the topic is deleted meanwhile. The node that says so may only lag behind the others:
        then its error is raised, because a backup that lacked the topic would look whole."""
        try:
            yield
        except HapaxError as error:
            if error.code not in _GONE:
                raise
            clients, internal = await self._cluster.topics_by_kind()
            if any((each.name, each.topic_id) == (topic.name, topic.topic_id) for each in (*clients, *internal)):
                raise

    async def _described(self, topic: TopicInfo, *, internal: bool) -> TopicPart:
        config = {} if internal else {
            name: each.value for name, each in (await self._cluster.topic_config(topic.name)).items()
            if each.source == "topic" and each.value is not None}
        if config.get("restoring"):
            raise BackupError(
                f"topic {topic.name!r} is being restored from backup {config['restoring']}: finish the restore first")
        return TopicPart(
            topic.name, topic.topic_id, len(topic.partitions), max(len(each.replicas) for each in topic.partitions),
            config, internal)

    async def _counted_leases(self) -> dict[str, tuple[int, dict[TopicPartition, tuple[int, int]]]]:
        """Lease -> its producer id, and for each partition (records, last offset of the producer). Counted before the
        logs are read: the records that come later are counted there."""
        found = {}
        for lease in await self._leases.list():
            progress = await self._leases.progress(lease.name)
            found[lease.name] = lease.producer_id, {
                name: (each.records, each.last_offset) for name, each in progress.items()}
        return found

    async def _acls(self) -> tuple[tuple[object, ...], ...]:
        try:
            return tuple(tuple(each) for each in await self._cluster.list_acls())
        except HapaxError as error:
            if error.code in (ErrorCode.SECURITY_DISABLED, ErrorCode.UNSUPPORTED_VERSION):
                return ()
            raise

    async def _quotas(self) -> tuple[tuple[dict[str, str | None], dict[str, float]], ...]:
        found = await self._cluster.list_quotas()
        return tuple(({kind: name for kind, name in entity}, values) for entity, values in found.items())

    async def _group_configs(self) -> tuple[tuple[str, dict[str, str]], ...]:
        found = []
        for group in await self._cluster.configured_groups():
            config = await self._cluster.group_config(group)
            own = {name: each.value for name, each in config.items() if each.source == "group"}
            found.append((group, {name: value for name, value in own.items() if value is not None}))
        return tuple(found)


def _follow(found: _Read, batch: memoryview, header: BatchHeader, watch_from: int) -> None:
    if not header.attributes & CONTROL:
        found.scan.data(header)
        return
    control = decode_control(batch, header)
    if isinstance(control, Marker):
        piece = found.scan.marker(header, control)
        if piece is not None and piece.marker_offset >= watch_from:
            found.pieces.append(piece)


def _continued(
    base: Manifest | None, topic: TopicInfo, name: TopicPartition, start: int, end: int, began: int
) -> PartitionPart:
    """What the last backup has of the partition, without objects whose records are deleted meanwhile. Nothing where the
    topic is another one of its name, or where its log ends below that: an unclean election has replaced records."""
    known = None if base is None else base.part(name)
    same = base is not None and any(t.name == topic.name and t.topic_id == topic.topic_id for t in base.topics)
    if known is None or not same or known.end > end or known.end < start:
        return PartitionPart(topic.name, name.partition, start, start, since_ms=began)
    return PartitionPart(
        topic.name, name.partition, start, known.end, tuple(each for each in known.ranges if each.end > start),
        known.opened, known.tail, known.since_ms)


class _Writer:
    """Collects batches of one partition into objects."""

    def __init__(
        self, taker: BackupTaker, backup: str, topic: TopicInfo, name: TopicPartition, continued: PartitionPart
    ) -> None:
        self._taker = taker
        self._folder = f"{manifests.OBJECTS}{backup}/{topic.topic_id}/{name.partition}"
        self._part = continued
        self._ranges = list(continued.ranges)
        self._batches: list[bytes] = []
        self._size = 0
        self._first = continued.end
        self._tail = continued.tail
        self.end = continued.end

    def begin_at(self, offset: int) -> None:
        """The records below `offset` are gone, also what is collected."""
        self._part = replace(self._part, start=offset)
        self._ranges, self._batches, self._size = [], [], 0
        self._first = self.end = offset

    async def add(self, batch: memoryview, header: BatchHeader) -> None:
        if header.next_offset <= self.end:
            return
        if not self._ranges and not self._batches:
            # The log may begin within a batch, where records were deleted.
            self._first = min(self._first, header.base_offset)
        self._batches.append(bytes(batch))
        self._size += len(batch)
        self.end, self._tail = header.next_offset, (header.base_offset, header.crc)
        if self._size >= OBJECT_BYTES:
            await self._store(self.end)

    async def _store(self, end: int) -> None:
        content = b"".join(self._batches)
        digest = sha256(content).hexdigest()
        name = f"{self._folder}/{self._first:020d}-{end:020d}-{digest[:16]}"
        await self._taker.upload(name, content)
        self._ranges.append(StoredRange(name, self._first, end, len(content), digest))
        self._batches, self._size, self._first = [], 0, end

    async def finish(self, end: int) -> PartitionPart:
        if end > self._first:
            await self._store(end)  # without a batch where compaction has removed the last ones
        end = max(end, self._part.start)  # where more was deleted meanwhile than was to be read
        return replace(self._part, end=end, ranges=tuple(self._ranges), tail=self._tail)


def _count(found: _Read, header: BatchHeader, counted_to: int) -> None:
    """A leased producer's records above those that were counted before the logs were read."""
    if header.base_offset > counted_to and not header.attributes & CONTROL:
        found.counts[header.producer_id] = found.counts.get(header.producer_id, 0) + header.record_count


def _lease(
    name: str, producer_id: int, counts: dict[TopicPartition, tuple[int, int]], read: dict[TopicPartition, _Read]
) -> LeasePart:
    return LeasePart(name, producer_id, tuple(
        (partition.topic, partition.partition, count + read[partition].counts.get(producer_id, 0))
        for partition, (count, _) in sorted(counts.items()) if partition in read))


async def expire(store: Store, keep: int, now_ms: int) -> Sequence[str]:
    """Removes old backups, then the objects that no backup needs. Manifests go first: an interrupted expiry leaves
    objects too many, never a manifest without its objects. A running backup's own objects stay, and those of the backup
    that it continues. Returns the removed backups. Raises BackupError, OSError."""

    def work() -> Sequence[str]:
        bases = {base for _, base in _running(store, now_ms)}
        there = manifests.listed(store)
        going = expired([(manifests.time_of(each), each) for each in there], keep, frozenset(bases))
        contents = {each: _objects_of(store, each) for each in there}
        for backup in going:
            store.delete(f"{manifests.FOLDER}{backup}.json")
        running = _running(store, now_ms)  # one may have begun to continue a removed one
        held = {backup for backup, _ in running}
        needed = {name for each in there if each not in going or each in {base for _, base in running}
                  for name in contents[each]}
        finished = [each for each in manifests.listed(store) if each not in contents]
        for backup in finished:  # written since
            needed |= _objects_of(store, backup)
            held.add(backup)
        for name in store.list(manifests.OBJECTS):
            if name not in needed and name.split("/")[1] not in held:
                store.delete(name)
        return going

    return await asyncio.to_thread(work)


def _running(store: Store, now_ms: int) -> list[tuple[str, str]]:
    """(backup, the one that it continues)."""
    found = []
    for name in store.list(manifests.RUNNING):
        try:
            running = json.loads(store.get(name))
            if running["began_ms"] + _ABANDONED_MS > now_ms:
                found.append((running["backup"], running["base"]))
            else:
                store.delete(name)
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError) as error:
            raise BackupError(f"cannot be read ({error}): remove it if no backup is running",
                              f"{store.address}/{name}") from None
    return found


def _objects_of(store: Store, backup: str) -> set[str]:
    """None where another expiry has removed the backup."""
    try:
        manifest = manifests.read(store, backup)
    except BackupError:
        if backup in manifests.listed(store):
            raise
        return set()
    return {each.name for part in manifest.partitions for each in part.ranges}
