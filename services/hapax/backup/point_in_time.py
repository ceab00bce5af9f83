"""A backup as of an earlier moment: a manifest with earlier ends, and with more transactions that are not in it.

The moment is a time, or an offset of some partitions. Either says which transactions are decided too late. What
depends on these leaves too, by the same rules as in a backup (`core.backup.cut`), so that the result is consistent.
Transactions that were decided long before the moment cannot depend on a later one, so only those around it and after it
are held in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from hapax.backup.errors import BackupError
from hapax.backup.reading import batches_of
from hapax.backup.store import Store
from hapax.backup.transactions import Ids, OffsetsReader, owned_ids, through_of
from hapax.codec.control import decode_control
from hapax.codec.internal_records import decode_batch
from hapax.codec.metadata import OFFSETS_TOPIC, TXN_STATE_TOPIC
from hapax.codec.transaction_log import decode_record
from hapax.core.backup.cut import Decided, Piece, ReadUpTo, Scan, excluded, settle
from hapax.core.backup.manifest import Manifest, PartitionPart
from hapax.core.batch import CONTROL, BatchHeader
from hapax.core.control import Marker
from hapax.core.transaction.record import Transaction
from hapax.core.types import TopicPartition

_MARGIN_MS: Final = 600_000
"""More than the clocks of two nodes may differ."""
_NEVER: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Moment:
    """Exactly one is set."""

    at_ms: int | None = None
    """Wall clock: the coordinators' for transactions, the records' timestamps for other records."""
    offsets: Mapping[TopicPartition, int] | None = None
    """The partitions end here, or before. Others go as far as they can."""

    @property
    def name(self) -> str:
        """Tells two moments apart, in the setting `restoring`."""
        named = sorted((*each, offset) for each, offset in (self.offsets or {}).items())
        return sha256(repr((self.at_ms, named)).encode()).hexdigest()[:8]


@dataclass(slots=True)
class _Seen:
    """What one pass over a partition has found."""

    pieces: list[Piece]
    reads: list[ReadUpTo]
    plain_end: int
    """Base offset of the first batch after the moment."""


def as_of(store: Store, manifest: Manifest, moment: Moment) -> Manifest:
    """Raises BackupError, OSError."""
    _check(manifest, moment)
    around = _around(store, manifest, moment)
    history = _history_begins(manifest)
    if around < history:
        raise BackupError(
            f"the history of transactions and groups begins at {history} (ms since 1970), when the first backup was "
            f"taken at this place, and the moment is {around}: choose a later one")
    from_ms = around - _MARGIN_MS
    ids, shard_ends = _transactions(store, manifest, moment)
    others = [part for part in manifest.partitions if part.topic != TXN_STATE_TOPIC]
    seen = {part.name: _scan(store, part, moment, from_ms) for part in others}
    through = dict(ids.decided.through)
    for name, offset in (moment.offsets or {}).items():
        for piece in seen[name].pieces:
            owner = ids.decided.ids.get(piece.producer_id)
            if piece.marker_offset >= offset and owner is not None:
                through[owner] = min(through[owner], piece.serial - 1)
    decided = Decided(ids.decided.ids, through)
    through = settle(
        decided, {name: each.pieces for name, each in seen.items()},
        [read for each in seen.values() for read in each.reads])
    parts = [
        replace(part, end=shard_ends[part.name]) if part.topic == TXN_STATE_TOPIC
        else _ended(store, part, seen[part.name], decided, through, moment)
        for part in manifest.partitions]
    earlier = replace(
        manifest, backup=f"{manifest.backup}-{moment.name}", partitions=tuple(parts),
        through={**manifest.through, **through})
    return _recounted(store, manifest, earlier)


def _check(manifest: Manifest, moment: Moment) -> None:
    for name, offset in (moment.offsets or {}).items():
        part = manifest.part(name)
        if part is None or name.topic in (TXN_STATE_TOPIC, OFFSETS_TOPIC):
            raise BackupError(f"backup {manifest.backup} has no partition {name.topic}:{name.partition}")
        if not part.start <= offset <= part.end:
            raise BackupError(
                f"{name.topic}:{name.partition} has the offsets {part.start} to {part.end} in backup "
                f"{manifest.backup}: choose one of them instead of {offset}, or another backup")
    if moment.at_ms is not None and moment.at_ms > manifest.taken_ms:
        raise BackupError(
            f"backup {manifest.backup} was taken at {manifest.taken_ms} (ms since 1970), before the time that was "
            "asked for: choose a later backup, or leave the time out")


def _around(store: Store, manifest: Manifest, moment: Moment) -> int:
    """No transaction that was decided long before this time (ms) is affected."""
    if moment.at_ms is not None:
        return moment.at_ms
    earliest = manifest.taken_ms
    for name, offset in (moment.offsets or {}).items():
        part = manifest.part(name)
        assert part is not None
        for _, header in _batches(store, part):
            if header.base_offset >= offset and header.attributes & CONTROL:
                earliest = min(earliest, header.max_timestamp)
                break
    return earliest


def _history_begins(manifest: Manifest) -> int:
    """The internal topics are compacted. Only from the first backup on does the place have all of their records."""
    return max((
        part.since_ms for part in manifest.partitions if part.topic in (TXN_STATE_TOPIC, OFFSETS_TOPIC)), default=0)


def _batches(store: Store, part: PartitionPart) -> Iterator[tuple[memoryview, BatchHeader]]:
    """Up to the part's end."""
    for stored in part.ranges:
        if stored.first >= part.end:
            return
        for batch, header in batches_of(store, stored):
            if header.base_offset >= part.end:
                return
            yield batch, header


def _transactions(
    store: Store, manifest: Manifest, moment: Moment
) -> tuple[Ids, dict[TopicPartition, int]]:
    """The ids that may be affected, with their last transaction at the moment; and where each shard ends."""
    ids: dict[int, str] = {}
    through: dict[str, int] = {}
    ends: dict[TopicPartition, int] = {}
    for part in manifest.parts_of(TXN_STATE_TOPIC):
        end = part.end
        for batch, header in _batches(store, part):
            if moment.at_ms is not None and header.max_timestamp > moment.at_ms:
                end = min(end, header.base_offset)
            if header.attributes & CONTROL:
                continue
            for _, key, value in decode_batch(batch, header):
                record = decode_record(key, value)
                if not isinstance(record, Transaction):
                    continue
                if header.base_offset < end:
                    through[record.transactional_id] = through_of(record)
                else:
                    through.setdefault(record.transactional_id, 0)
                ids |= dict.fromkeys(owned_ids(record), record.transactional_id)
        ends[part.name] = end
    for name, serial in manifest.through.items():
        through[name] = min(through.get(name, serial), serial)
    return Ids(Decided(ids, through), {}, -1), ends


def _scan(store: Store, part: PartitionPart, moment: Moment, from_ms: int) -> _Seen:
    at_ms, left_out = moment.at_ms, frozenset(part.excluded)
    scan, seen = Scan(), _Seen([], [], (moment.offsets or {}).get(part.name, _NEVER))
    offsets = OffsetsReader() if part.topic == OFFSETS_TOPIC else None
    for batch, header in _batches(store, part):
        beyond = header.next_offset > seen.plain_end or (at_ms is not None and header.max_timestamp > at_ms)
        if header.attributes & CONTROL:
            control = decode_control(batch, header)
            reads = [] if offsets is None else offsets.control(header, control)
            if not isinstance(control, Marker):
                continue
            piece = scan.marker(header, control)
            if piece is not None and header.base_offset not in left_out and header.max_timestamp >= from_ms:
                seen.pieces.append(piece)
                seen.reads += reads
            continue
        scan.data(header)
        if beyond and header.base_offset < seen.plain_end:
            seen.plain_end = header.base_offset
        if offsets is not None:
            offsets.data(batch, header)
    seen.plain_end = min(seen.plain_end, part.end)
    return seen


def _ended(
    store: Store, part: PartitionPart, seen: _Seen, decided: Decided, through: Mapping[str, int], moment: Moment
) -> PartitionPart:
    out = excluded(decided, through, seen.pieces)
    gone = frozenset(out)
    last = max((each.marker_offset + 1 for each in seen.pieces if each.marker_offset not in gone), default=0)
    end = max(part.start, seen.plain_end, last)
    if end >= part.end:
        return replace(part, excluded=tuple(sorted({*part.excluded, *out})))
    scan = Scan()
    for batch, header in _batches(store, replace(part, end=end)):
        if not header.attributes & CONTROL:
            scan.data(header)
        elif isinstance(control := decode_control(batch, header), Marker):
            scan.marker(header, control)
    return replace(
        part, end=end, opened=scan.opened,
        excluded=tuple(sorted(each for each in {*part.excluded, *out} if each < end)))


def _recounted(store: Store, manifest: Manifest, earlier: Manifest) -> Manifest:
    """Without the leased producers' records that come after the new ends."""
    producers = {each.producer_id for each in manifest.leases if each.producer_id >= 0}
    later: dict[tuple[int, TopicPartition], int] = {}
    for before, after in zip(manifest.partitions, earlier.partitions, strict=True):
        if not producers or before.end == after.end:
            continue
        for _, header in _batches(store, before):
            if header.producer_id in producers and header.base_offset >= after.end and not header.attributes & CONTROL:
                key = header.producer_id, before.name
                later[key] = later.get(key, 0) + header.record_count
    return replace(earlier, leases=tuple(
        each._replace(counts=tuple(
            (topic, index, count - sum(
                number for (producer_id, name), number in later.items()
                if producer_id == each.producer_id and name == (topic, index)))
            for topic, index, count in each.counts))
        for each in earlier.leases))
