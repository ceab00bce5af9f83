"""Compaction keeps only the last record of each key. Offsets never change.

The compacted range lies below the last stable offset, so every transaction in it is decided. Records of aborted
transactions are removed. A marker is removed when no remaining record needs it. The last shard fence is kept.

The work is done in slices, so that the loop is never blocked. The result replaces the old segments in one step: first
the new files are made complete and durable, then a small swap file records what they replace, then files are renamed.
After a crash at any point, either the old segments are there, or recovery completes the swap.

A tombstone is removed no sooner than `delete.retention.ms` after the first run that kept it. That run writes the time
of removal, the delete horizon, into the batch (KIP-534). The same holds for a marker whose records are all gone. Each
replica compacts its own log, so horizons differ among replicas; a record that two replicas have is the same in both.

A batch with a valid CRC may still hold unreadable records. Such a batch is kept unchanged, and so are all tombstones
after it, because it may hold an older value of their keys.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar

from crc32c import crc32c

from hapax.codec.batch import crc_matches, iterate_batches, read_header
from hapax.codec.control import decode_control
from hapax.codec.raw_records import KEY, OFFSET_DELTA, TOMBSTONE, raw_records, rewritten
from hapax.core.batch import COMPRESSION_MASK, CONTROL, TRANSACTIONAL, BatchHeader
from hapax.core.control import Marker, ShardFence
from hapax.core.errors import Refusal
from hapax.core.partition.machine import AbortedTransaction
from hapax.log.durable import SwapFailed, sync_file, sync_folder
from hapax.log.index import MAX_RELATIVE_OFFSET
from hapax.log.layout import HAS_GAPS, LOG, SEGMENT_SUFFIXES, TXN_INDEX, offset_name
from hapax.log.segment import Segment
from hapax.log.segment_log import SegmentLog
from hapax.log.soundness import Damaged
from hapax.log.txn_index import append_aborted
from hapax.runtime import supervision
from hapax.runtime.ports import Folder, FolderClosed

CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"

_SLICE_BYTES: Final = 64 << 10
_MAX_DIRTY_BYTES: Final = 64 << 20
"""Maximum dirty bytes of one run, compressed or not. Its first segment may be larger."""
_MAX_KEYS: Final = 1 << 20
"""Maximum keys of one run, plus those of one batch. The run may end in the middle of a segment. About 200 MB of
memory."""
_LONG_KEY: Final = 64
"""Bytes. For longer keys, only a digest is held in memory."""
_RECORDS_ON_LOOP: Final = 1000
"""A batch with more records, or a compressed one, is decoded off the loop."""
_LEAST_DIRTY_RATIO: Final = 0.2
"""Minimum ratio of dirty to clean bytes at which a run is worth its writes."""


@dataclass(slots=True)
class Compacted:
    """The result of a run."""

    up_to: int
    """Below this offset every key occurs once."""
    bytes_before: int = 0
    bytes_after: int = 0
    segments_before: int = 0
    segments_after: int = 0


_T = TypeVar("_T")


class Rules(NamedTuple):
    """Input of a run that the log itself does not contain."""

    limit: int
    """Compact below this offset: the last stable offset, at most the newest snapshot's."""
    aborted: Sequence[AbortedTransaction]
    """The transactions that overlap the compacted range."""
    is_last_of_producer: Callable[[int, int], bool]
    """(producer id, offset): whether that marker is the producer's last entry in the log."""
    now_ms: int
    delete_retention_ms: int
    """Milliseconds from the first run that keeps a tombstone to the first that may remove it."""
    marker_retention_ms: int
    """The same for a marker, from the first run that finds no record of its transaction."""
    condemn: Callable[[int, Refusal], None]
    """Called with the base offset of each batch whose records cannot be read. The batch is kept unchanged."""
    forget: Callable[[frozenset[int]], None]
    """Called with the offsets of abort markers at the moment when these and all records of their transactions are
    removed. Their entries of the aborted-transaction index must be removed at the same moment."""


def dirty_segments(log: SegmentLog, compacted_to: int, limit: int) -> list[Segment]:
    """The closed segments that the next run would compact. Empty if a run is not worth it yet."""
    dirty: list[Segment] = []
    dirty_bytes = clean_bytes = 0
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        if following.base_offset <= compacted_to:
            clean_bytes += segment.size
        elif following.base_offset <= limit and dirty_bytes < _MAX_DIRTY_BYTES:
            dirty.append(segment)
            dirty_bytes += segment.size
        else:
            break
    return dirty if dirty_bytes > clean_bytes * _LEAST_DIRTY_RATIO else []


async def compact(log: SegmentLog, compacted_to: int, rules: Rules) -> Compacted | None:
    """One run; None if there is nothing to do. Raises OSError (for example a full disk) and Damaged, both with the log
    unchanged, and SyncFailed."""
    dirty = dirty_segments(log, compacted_to, rules.limit)
    if not dirty or log.damages:
        return None
    try:
        return await _Run(log, rules, dirty, compacted_to).run()
    except Refusal as refusal:
        raise Damaged(log.folder.path, dirty[0].base_offset) from refusal


class _Run:
    def __init__(self, log: SegmentLog, rules: Rules, dirty: Sequence[Segment], compacted_to: int) -> None:
        self.log = log
        self.noted_to = compacted_to
        """Everything below this offset was examined by this run or earlier ones. Batches above it stay as they are."""
        self.rules = rules
        self.dirty = dirty
        last = log.segments.index(dirty[-1])
        self.sources = log.segments[: last + 1]
        bases = [segment.base_offset for segment in log.segments[: last + 2]]
        self.following = dict(pairwise(bases))
        """The base offset of the segment after each source."""
        self.latest: dict[bytes, int] = {}
        self.seen_bytes = 0
        """Decompressed bytes of the records in dirty batches."""
        self.last_fence = -1
        self.aborted: dict[int, list[AbortedTransaction]] = {}
        for transaction in rules.aborted:
            self.aborted.setdefault(transaction.producer_id, []).append(transaction)
        self.kept_transactions: set[int] = set()
        """Producers with records that were kept since their last marker."""
        self.has_unreadable = False
        """There is an unreadable batch further down. It may hold any key."""
        self.crc = 0
        self.forgotten: set[int] = set()
        """Abort markers that the segment being written leaves out."""

    async def run(self) -> Compacted:
        held = self.sources
        for segment in held:
            segment.hold()
        self.log.pinned = True
        try:
            last = await self._note_dirty()
            self.sources = held[: held.index(last) + 1]
            result = Compacted(self.noted_to, segments_before=len(self.sources))
            for group in self._groups():
                result.bytes_before += sum(segment.size for segment in group)
                result.bytes_after += await self._replace(group)
                result.segments_after += 1
        finally:
            self.log.pinned = False
            for segment in held:
                segment.release()
        return result

    def _groups(self) -> list[list[Segment]]:
        """Neighbouring segments that fit into one segment together, by their present sizes and by their offsets: an
        index has 32 bits for the distance from the segment's base."""
        groups: list[list[Segment]] = []
        size = 0
        for segment in self.sources:
            if (
                not groups or size + segment.size > self.log.config.compacted_segment_bytes
                or self.following[segment.base_offset] - 1 - groups[-1][0].base_offset > MAX_RELATIVE_OFFSET
            ):
                groups.append([])
                size = 0
            groups[-1].append(segment)
            size += segment.size
        return groups

    # --- first pass: which record of a key is the last ------------------------------------------------------------

    async def _note_dirty(self) -> Segment:
        """Returns the last segment of this run. The keys of further ones would not fit into the memory limit."""
        for segment in self.dirty:
            async with aclosing(_batches(segment, self.following[segment.base_offset])) as batches:
                async for batch, header in batches:
                    if header.base_offset >= self.noted_to:
                        await self._note_latest(segment, batch, header)
                        self.noted_to = header.next_offset
                        if len(self.latest) >= _MAX_KEYS:
                            return segment
            self.noted_to = self.following[segment.base_offset]
            if self.seen_bytes > _MAX_DIRTY_BYTES:
                break
        return segment

    async def _note_latest(self, segment: Segment, batch: memoryview, header: BatchHeader) -> None:
        if header.attributes & CONTROL:
            if isinstance(_control(batch, header), ShardFence):
                self.last_fence = header.base_offset
            return
        if self._is_aborted(header):
            return
        try:
            await _looking(self.log.folder, header, lambda: self._note_keys(batch, header))
        except Refusal:
            return  # the second pass reports it when it reaches the batch

    def _note_keys(self, batch: memoryview, header: BatchHeader) -> None:
        data, records = raw_records(batch, header)
        self.seen_bytes += len(data)
        latest, base_offset = self.latest, header.base_offset
        for _, _, _, _, delta, key, _ in records:
            if key is not None:
                latest[_held(key)] = base_offset + delta

    def _is_aborted(self, header: BatchHeader) -> bool:
        if not header.attributes & TRANSACTIONAL:
            return False
        return any(
            t.first_offset <= header.base_offset <= t.last_offset for t in self.aborted.get(header.producer_id, ())
        )

    # --- second pass: write what is kept ------------------------------------------------------------------------------

    async def _replace(self, group: Sequence[Segment]) -> int:
        """Writes the kept records of some segments and puts the new segment in their place. Returns its size."""
        log = self.log
        cleaned = Segment(
            log.folder, group[0].base_offset, log.config.index_interval_bytes, create=True, ending=CLEANED
        )
        try:
            await self._rewrite(group, cleaned)
            await self._make_durable(group, cleaned)
            await self._announce(group, cleaned)
        except BaseException:
            cleaned.drop(remove=True)
            raise
        await self._swap(group, cleaned)
        return cleaned.size

    async def _rewrite(self, group: Sequence[Segment], cleaned: Segment) -> None:
        cleaned.file.truncate(0)
        self.forgotten.clear()
        self.crc = 0
        for segment in group:
            async with aclosing(_batches(segment, self.following[segment.base_offset])) as batches:
                async for batch, header in batches:
                    kept = await self._kept(segment, batch, header)
                    if kept is not None:
                        position = cleaned.file.append([kept])
                        self.crc = crc32c(kept, self.crc)
                        cleaned.note(position, len(kept), header.last_offset, read_header(kept).max_timestamp)
        cleaned.close_for_writing()

    async def _kept(
        self, segment: Segment, batch: memoryview, header: BatchHeader
    ) -> bytearray | memoryview | None:
        """The batch as it is kept. None: it is removed."""
        if header.base_offset >= self.noted_to:
            return batch
        try:
            if header.attributes & CONTROL:
                return self._kept_control(batch, header)
            if self._is_aborted(header):
                return None
            kept = await _looking(self.log.folder, header, lambda: self._without_superseded(batch, header))
        except Refusal as refusal:
            self.has_unreadable = True
            self.rules.condemn(header.base_offset, refusal)
            kept = batch
        if kept is not None and header.attributes & TRANSACTIONAL:
            self.kept_transactions.add(header.producer_id)
        return kept

    def _without_superseded(self, batch: memoryview, header: BatchHeader) -> bytearray | memoryview | None:
        """The batch without the removed records. Raises Refusal."""
        latest, base_offset, horizon = self.latest, header.base_offset, header.delete_horizon_ms
        tombstones_go = horizon is not None and horizon <= self.rules.now_ms and not self.has_unreadable
        data, records = raw_records(batch, header)
        kept = [
            record for record in records
            if (key := record[KEY]) is None
            or (
                latest.get(_held(key), -1) <= base_offset + record[OFFSET_DELTA]
                and not (tombstones_go and record[TOMBSTONE])
            )
        ]
        if not kept:
            return None
        first_cleaned = horizon is None and any(record[TOMBSTONE] and record[KEY] is not None for record in kept)
        if len(kept) == len(records) and not first_cleaned:
            return batch
        return rewritten(
            header, data, kept, self.rules.now_ms + self.rules.delete_retention_ms if first_cleaned else None)

    def _kept_control(self, batch: memoryview, header: BatchHeader) -> bytearray | memoryview | None:
        """Raises Refusal."""
        control = _control(batch, header)
        if isinstance(control, ShardFence):
            return batch if self.last_fence < 0 or header.base_offset == self.last_fence else None
        if not isinstance(control, Marker):
            return batch
        needed = header.producer_id in self.kept_transactions
        self.kept_transactions.discard(header.producer_id)
        if needed or self.rules.is_last_of_producer(header.producer_id, header.base_offset):
            return batch
        horizon = header.delete_horizon_ms
        if horizon is None:  # a reader that has read a record of the transaction must still find its end
            return rewritten(header, *raw_records(batch, header), self.rules.now_ms + self.rules.marker_retention_ms)
        if horizon > self.rules.now_ms:
            return batch
        if not control.commit:
            self.forgotten.add(header.base_offset)
        return None

    # --- swap -----------------------------------------------------------------------------------------------------

    async def _make_durable(self, group: Sequence[Segment], cleaned: Segment) -> None:
        await sync_file(cleaned.file)
        await cleaned.flush_indexes()
        await self._write_txn_index(cleaned, group)
        await sync_folder(self.log.folder)

    async def _announce(self, group: Sequence[Segment], cleaned: Segment) -> None:
        """After this, a crash leads to the new segment, because recovery completes the swap."""
        if not self.log.has_gaps:  # recovery must know this even if the topic is no longer compacted
            await self.log.folder.write_atomically(HAS_GAPS, b"")
            self.log.has_gaps = True
        content = {
            "v": 1, "replaces": [segment.base_offset for segment in group], "size": cleaned.size, "crc32c": self.crc,
            "files": [suffix for suffix in SEGMENT_SUFFIXES if self.log.folder.exists(cleaned.path(suffix))],
        }
        await self.log.folder.write_atomically(self._swap_path(cleaned), json.dumps(content).encode())

    @staticmethod
    def _swap_path(cleaned: Segment) -> str:
        return offset_name(cleaned.base_offset, SWAP)

    async def _swap(self, group: Sequence[Segment], cleaned: Segment) -> None:
        """Raises SwapFailed, SyncFailed. If the process continued after an error here, the swap file would stay, and a
        later recovery would apply it to segments that are no longer the ones that it names. For the same reason, a run
        that is cancelled here completes the swap first."""
        log, folder = self.log, self.log.folder
        try:
            files = [suffix for suffix in SEGMENT_SUFFIXES if folder.exists(cleaned.path(suffix))]
            _rename(folder, cleaned.base_offset, [segment.base_offset for segment in group], files)
            cleaned.set_ending("")
            log.replace(group, cleaned)
            self.rules.forget(frozenset(self.forgotten))
            await _uninterrupted(sync_folder(folder), lambda: folder.remove(self._swap_path(cleaned)))
        except FolderClosed:
            raise  # the topic was deleted, and its whole folder is about to be removed
        except OSError as error:
            raise SwapFailed(cleaned.file.path, error) from error

    async def _write_txn_index(self, cleaned: Segment, group: Sequence[Segment]) -> None:
        first, following = group[0].base_offset, self.log.base_after(group[-1])
        entries = [
            transaction for transaction in self.rules.aborted
            if first <= transaction.last_offset < following and transaction.last_offset not in self.forgotten
        ]
        cleaned.folder.remove(cleaned.path(TXN_INDEX))
        if entries:
            await append_aborted(cleaned.folder, cleaned.path(TXN_INDEX), entries)


async def _uninterrupted(work: Coroutine[Any, Any, None], then: Callable[[], None]) -> None:
    """Waits for `work` and calls `then`, even if it is cancelled meanwhile; then raises CancelledError."""
    task, cancelled = supervision.judged(work), False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    then()
    if cancelled:
        raise asyncio.CancelledError


def finish_swaps(folder: Folder) -> None:
    """Called when a log is opened: completes swaps that a crash interrupted and removes incomplete files."""
    for name in folder.list():
        if name.endswith(SWAP):
            base = int(name.removesuffix(SWAP))
            swap = json.loads(_content(folder, name))
            if _is_complete(folder, base, swap):
                _rename(folder, base, swap["replaces"], swap.get("files", SEGMENT_SUFFIXES))
            folder.remove(name)
    for name in folder.list():
        if name.endswith(CLEANED):
            folder.remove(name)


def _is_complete(folder: Folder, base: int, swap: dict[str, Any]) -> bool:
    """Whether the new log file is there, under its old name or its new one. It is not there if a run was cancelled
    while its swap file was being written."""
    path = offset_name(base, LOG)
    for candidate in (path + CLEANED, path):
        if folder.exists(candidate):
            data = _content(folder, candidate)
            if len(data) == swap["size"] and crc32c(data) == swap["crc32c"]:
                return True
    return False


def _content(folder: Folder, path: str) -> bytes:
    file = folder.open(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def _rename(folder: Folder, base: int, replaced: Sequence[int], files: Sequence[str]) -> None:
    """Gives the cleaned files their names and removes the files that they replace. It may be repeated.

    `files`: the suffixes of the new segment's files. If a listed cleaned file is missing, it was renamed before a
    crash, and the file that has its name is the new one. Swap files of earlier versions have no such list. In that case
    nothing is removed, and a survey finds an index of aborted transactions that should have been removed.
    """
    for suffix in reversed(SEGMENT_SUFFIXES):  # the log last: until then, the old log shows what is missing
        path = offset_name(base, suffix)
        if folder.exists(path + CLEANED):
            folder.rename(path + CLEANED, path)
        elif suffix not in files:
            folder.remove(path)
    for other in replaced:
        if other != base:
            for suffix in SEGMENT_SUFFIXES:
                folder.remove(offset_name(other, suffix))


# --- batches and records ------------------------------------------------------------------------------------------


def _held(key: bytes) -> bytes:
    """The form in which a key is held in memory. A short key is never as long as a digest with its suffix, so they
    differ."""
    return key if len(key) <= _LONG_KEY else blake2b(key).digest() + b"#"


async def _looking(folder: Folder, header: BatchHeader, look: Callable[[], _T]) -> _T:
    """Returns the result of `look`, which decodes a client's batch. Runs off the loop where that may take long."""
    if header.record_count <= _RECORDS_ON_LOOP and not header.attributes & COMPRESSION_MASK:
        return look()
    return await folder.off_loop(look)


async def _batches(segment: Segment, following: int) -> AsyncGenerator[tuple[memoryview, BatchHeader], None]:
    """The batches of a segment. The next segment begins at `following`. Yields to the loop after each slice. Raises
    Damaged, OSError.

    No CRC covers a batch's offset. If an offset was damaged, the batch's records could seem newer than all others of
    their keys. So the whole run ends where offsets do not ascend, which may show only after the damaged batch.
    """
    position, want, expected = 0, _SLICE_BYTES, segment.base_offset
    while position < segment.size:
        await segment.file.read_ahead(position, want)
        data = memoryview(segment.file.read(position, want))
        done = 0
        for at, header in iterate_batches(data):
            in_order = expected <= header.base_offset <= header.last_offset < following
            if not in_order or not crc_matches(data, header, at):
                raise Damaged(segment.file.path, expected)
            done, expected = at + header.size, header.next_offset
            yield data[at:done], header
        position += done
        larger = 0 if done else read_header(data).size  # a batch larger than a slice
        if not done and not want < larger <= segment.size - position:
            raise Damaged(segment.file.path, segment.base_offset)
        want = max(_SLICE_BYTES, larger)
        await asyncio.sleep(0)


def _control(batch: memoryview, header: BatchHeader) -> object:
    try:
        return decode_control(batch, header)
    except Refusal:
        return None
