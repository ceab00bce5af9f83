"""A partition's log: segments in Kafka's layout, one writer, many readers.

Durability: `append` reaches the page cache. `sync` makes everything appended so far durable; its first call also covers
the files' names. `checkpoint` makes the indexes durable and writes a snapshot of the producers, from which recovery
starts. A name, an index entry or a snapshot is never durable before the bytes that it refers to.
"""

from __future__ import annotations

import errno
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from hapax.core.partition.aborted_index import AbortedIndex, AbortedTransaction
from hapax.log.config import UNLIMITED, LogConfig
from hapax.log.durable import sync_file, sync_folder
from hapax.log.index import MAX_RELATIVE_OFFSET, OFFSET_ENTRY
from hapax.log.layout import (
    HAS_GAPS,
    LEADER_EPOCH_CHECKPOINT,
    SNAPSHOT,
    TXN_INDEX,
    encode_leader_epochs,
    offset_name,
)
from hapax.log.reading import MANY_BATCHES, BatchFinder, Cold, Fetched
from hapax.log.segment import Segment
from hapax.log.segment_list import SegmentList
from hapax.log.soundness import NOWHERE, Damage
from hapax.log.survey import Surveys
from hapax.log.txn_index import append_aborted, cut_aborted, encode_aborted
from hapax.runtime.ports import Disk, Folder, FolderClosed, OpenFolder

Bytes = bytes | bytearray | memoryview

_SNAPSHOTS_KEPT: Final = 2
_SCAN_COST_OF_BATCH: Final = 256
"""Bytes. Recovery spends about this much effort on each batch in addition to its size."""


class Unsynced(NamedTuple):
    """The part of a log that one sync makes durable."""

    segments: list[Segment]
    generations: list[int]
    """For each segment, how many syncs had begun before its last write. A later write belongs to a later sync."""
    end_offset: int
    cuts: int
    """`cuts` of the log. A log that was cut since may have other bytes below `end_offset`."""


class SegmentLog(SegmentList):
    """See above. Made empty by `create`, or from files by `hapax.log.recovery`."""

    def __init__(self, disk: Disk, folder: str | OpenFolder, config: LogConfig) -> None:
        """`folder`: its name, or its handle, which is closed with the log. The log accesses its files through the
        handle, because the name may belong to another topic's folder before the log is closed."""
        super().__init__()
        self.folder = disk.folder(folder) if isinstance(folder, str) else folder
        self._parent: Folder = disk
        self.config = config
        self.synced_offset = 0
        """Everything below is durable."""
        self.declared_start = 0
        """Records below this offset are deleted, as the folder said when it was opened."""
        self.scan_cost = 0
        """The cost of a recovery: bytes since the last checkpoint, plus `_SCAN_COST_OF_BATCH` for each batch."""
        self.snapshot_offsets: list[int] = []
        self.on_roll: Callable[[int], None] | None = None
        """Called with the new segment's base offset, before anything is appended to it."""
        self.committed_offset = 0
        """The log is never cut below this offset. So the newest snapshot at or below it is kept: a cut log restarts
        from it."""
        self.surveys = Surveys(self)
        self.has_gaps = self.folder.exists(HAS_GAPS)
        """The folder records that offsets are missing on purpose, whatever the topic's cleanup policy is now."""
        self.pinned = False
        """Closed segments must not be removed: compaction is reading them."""
        self._torn = False
        """Bytes of a failed write lie behind the end of the active segment, because cutting them off failed too."""
        self._closed = False
        self._unsynced: dict[Segment, int] = {}
        """Changed segments -> how many syncs had begun when they were last changed. Sizes would not do: a file that was
        cut may have grown to its former size by the end of a sync that has not seen its present content."""
        self._syncs_begun = 0
        self._unsynced_files: dict[str, int] = {}
        self._unsynced_folders: dict[Folder, int] = {}
        """Files and folders to sync for their names or content -> number of the newest request to do so."""
        self._wishes = 0
        self._unindexed: list[Segment] = []
        self._unwritten_aborted = AbortedIndex()
        self._reading = BatchFinder(self)
        self._recent_offsets, self._recent_positions = self._reading.offsets, self._reading.positions

    # --- make and open --------------------------------------------------------------------------------------------

    def create(self, small_files: Sequence[tuple[str, bytes]]) -> None:
        """Fills an empty log's folder, including some small files. Durable with the first `sync`."""
        self._want_folder_synced(self._parent)
        for name, data in small_files:
            self._write_unsynced(name, data)
        self.add_segment(Segment(self.folder, 0, self.config.index_interval_bytes, create=True))
        self.opened()
        self._want_folder_synced(self.folder)

    def opened(self) -> None:
        """All segments are there: appends go to the last one."""
        self._active.set_roll_age(self.config.segment_ms)
        self._reading.opened()

    def _write_unsynced(self, name: str, data: bytes) -> None:
        """A small file, replaced as a whole. Durable with the next sync."""
        file = self.folder.open(name + ".tmp", create=True)
        file.truncate(0)
        file.append([data])
        file.close()
        self.folder.rename(name + ".tmp", name)
        self._wishes += 1
        self._unsynced_files[name] = self._wishes
        self._want_folder_synced(self.folder)

    def _want_folder_synced(self, folder: Folder) -> None:
        self._wishes += 1
        self._unsynced_folders[folder] = self._wishes

    @property
    def was_compacted(self) -> bool:
        """Records may be missing: the log is compacted, or was compacted before its topic's cleanup policy changed."""
        return self.config.compact or self.has_gaps

    # --- write ----------------------------------------------------------------------------------------------------

    def append(self, batch: Bytes, base_offset: int, last_offset: int, timestamp: int) -> None:
        """Writes one batch, whose offsets are final, at the end of the log. `timestamp` is its maximum timestamp.

        Raises OSError if the disk is full or broken. The log then ends where it ended before. Raises FolderClosed.
        """
        self._check_open()
        if self._torn:
            self._cut_torn()
        if base_offset != self.end_offset:
            self.note_gaps()
        segment = self._active
        size = len(batch)
        before = segment.file.size()
        if last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
            segment, before = self.roll(base_offset), 0  # compaction may leave gaps of billions of offsets
        elif (before + size > self.config.segment_bytes or timestamp > segment.roll_after) and before:
            segment, before = self.roll(), 0
        try:
            segment.file.append((batch,))
        except OSError:
            self._torn = True
            with suppress(OSError):
                self._cut_torn()
            raise
        segment.note(before, size, last_offset, timestamp)
        self._recent_offsets.append(base_offset)
        self._recent_positions.append(before)
        if len(self._recent_offsets) >= MANY_BATCHES:
            self._after_many_batches(segment)
        self.end_offset = last_offset + 1
        self.scan_cost += size + _SCAN_COST_OF_BATCH
        self._unsynced[segment] = self._syncs_begun

    def note_gaps(self) -> None:
        """Offsets are missing before the next batch or in it, because the log is a copy of a compacted one. Raises
        OSError."""
        if not self.has_gaps:
            self._write_unsynced(HAS_GAPS, b"")
            self.has_gaps = True

    def _cut_torn(self) -> None:
        """Removes the bytes of a failed write behind the end of the segment. Called before anything else is written,
        and before the file is closed. Raises OSError."""
        self._active.file.truncate(self._active.size)
        self._torn = False

    def _after_many_batches(self, segment: Segment) -> None:
        self._reading.trim()
        if len(segment.index) * OFFSET_ENTRY >= self.config.index_bytes:
            segment.roll_after = -1

    def roll(self, base_offset: int | None = None) -> Segment:
        """Begins a new segment, by default at the end of the log. Raises OSError, and in that case nothing has changed.
        """
        if self._torn:
            self._cut_torn()
        base = self.end_offset if base_offset is None else base_offset
        segment = Segment(self.folder, base, self.config.index_interval_bytes, create=True)
        segment.file.truncate(0)
        self._active.close_for_writing()
        self._active.closed()
        if self._active not in self._unindexed:
            self._unindexed.append(self._active)
        self.add_segment(segment)
        self.opened()
        self._want_folder_synced(self.folder)
        if self.on_roll is not None:
            self.on_roll(segment.base_offset)
        return segment

    def note_aborted(self, aborted: AbortedTransaction) -> None:
        """Adds an entry to the `.txnindex`. It is durable with the next checkpoint. Until then, recovery finds the
        marker itself."""
        self._unwritten_aborted.add(aborted)

    def is_aborted_written(self, marker: int) -> bool:
        """Whether the marker's entry was written to the files, if the log was given one."""
        return not self._unwritten_aborted or marker < self._unwritten_aborted[0].last_offset

    def rewrite_aborted(self, entries: Sequence[AbortedTransaction]) -> None:
        """Replaces all entries of the `.txnindex` files. `entries` are in the order of their markers. Durable with the
        next `sync`."""
        self._unwritten_aborted.truncate_to(0)
        ends = [*self.bases[1:], NOWHERE]
        markers = [entry.last_offset for entry in entries]
        for segment, end in zip(self.segments, ends, strict=True):
            mine = entries[bisect_left(markers, segment.base_offset) : bisect_left(markers, end)]
            if mine or self.folder.exists(segment.path(TXN_INDEX)):
                self._write_unsynced(offset_name(segment.base_offset, TXN_INDEX), encode_aborted(mine))

    def write_leader_epochs(self, epochs: Iterable[tuple[int, int]]) -> None:
        """Replaces the leader-epoch checkpoint: (leader epoch, start offset). Durable with the next `sync`."""
        self._write_unsynced(LEADER_EPOCH_CHECKPOINT, encode_leader_epochs(epochs))

    @property
    def needs_sync(self) -> bool:
        return self.synced_offset < self.end_offset and not self._closed

    async def sync(self) -> None:
        """Makes everything appended before the call durable. Raises SyncFailed, and FolderClosed if the log is closed
        before the end of it."""
        self._check_open()
        unsynced = self.begin_sync()
        try:
            for segment in unsynced.segments:
                await sync_file(segment.file)
            await self.sync_names()
        finally:
            self.release(unsynced)
        self._check_open()
        self.finish_sync(unsynced)

    def begin_sync(self) -> Unsynced:
        """Returns the scope of a sync. The caller calls `sync_names`, then `release` and `finish_sync` once the files
        are synced.

        Concurrent syncs repeat each other's work, and neither relies on the result of the other.
        """
        segments = list(self._unsynced)
        for segment in segments:
            segment.hold()
            if segment not in self._unindexed:
                self._unindexed.append(segment)
        self._syncs_begun += 1
        return Unsynced(segments, list(self._unsynced.values()), self.end_offset, self.cuts)

    def release(self, unsynced: Unsynced) -> None:
        for segment in unsynced.segments:
            segment.release()

    def finish_sync(self, unsynced: Unsynced) -> None:
        """Does nothing if the log has been closed."""
        if self._closed:
            return
        for segment, generation in zip(unsynced.segments, unsynced.generations, strict=True):
            if self._unsynced.get(segment) == generation:
                del self._unsynced[segment]
        if unsynced.end_offset > self.synced_offset and unsynced.cuts == self.cuts:
            self.synced_offset = unsynced.end_offset

    @property
    def has_unsynced_names(self) -> bool:
        return bool(self._unsynced_files or self._unsynced_folders)

    async def sync_names(self) -> None:
        """Makes new files' names and small files durable. Raises SyncFailed."""
        files, folders = dict(self._unsynced_files), dict(self._unsynced_folders)
        try:
            for name in files:
                await self._sync_small(name)
        except FolderClosed:
            return  # the log was closed, and its files are not needed any more
        for folder in folders:
            await sync_folder(folder)
        for name, wish in files.items():
            if self._unsynced_files.get(name) == wish:
                del self._unsynced_files[name]
        for folder, wish in folders.items():
            if self._unsynced_folders.get(folder) == wish:
                del self._unsynced_folders[folder]

    async def _sync_small(self, name: str) -> None:
        if not self.folder.exists(name):
            return  # the file was removed since
        file = self.folder.open(name)
        try:
            await sync_file(file)
        finally:
            file.close()

    # --- checkpoint -----------------------------------------------------------------------------------------------

    async def checkpoint(self, offset: int, snapshot: bytes) -> None:
        """Makes `snapshot`, the state as of `offset`, the starting point of recovery's scan.

        Raises OSError if the disk is full. Nothing is lost in that case, and the next checkpoint makes up for it.
        Raises SyncFailed, FolderClosed.
        """
        if self._torn:
            self._cut_torn()  # recovery does not look for torn bytes after a clean stop
        while self.synced_offset < offset or self.has_unsynced_names:
            await self.sync()
        for segment in list(self._unindexed):
            await segment.flush_indexes()
        self._unindexed = [s for s in self._unindexed if s is self._active or not s.indexes_flushed]
        while self._unwritten_aborted:
            await self._write_aborted(self.segment_of(self._unwritten_aborted[0].last_offset))
        await sync_folder(self.folder)  # no snapshot without the indexes of what it covers
        await self.folder.write_atomically(offset_name(offset, SNAPSHOT), snapshot)
        self.snapshot_offsets = sorted({*self.snapshot_offsets, offset})
        while len(self.snapshot_offsets) > _SNAPSHOTS_KEPT and self.snapshot_offsets[1] <= self.committed_offset:
            self.folder.remove(offset_name(self.snapshot_offsets.pop(0), SNAPSHOT))

    async def _write_aborted(self, segment: Segment) -> None:
        """Writes the entries at the front of the list that belong to one segment."""
        waiting = self._unwritten_aborted
        mine = [a for a in waiting if self.segment_of(a.last_offset) is segment]
        waiting.advance_start(mine[-1].last_offset + 1)
        try:
            await append_aborted(self.folder, segment.path(TXN_INDEX), mine)
        except OSError:
            self._unwritten_aborted = AbortedIndex([*mine, *waiting])
            raise

    @property
    def covered(self) -> int:
        """No recovery needs the log below this offset, because the newest snapshot covers it."""
        return self.snapshot_below(self.end_offset)

    def snapshot_below(self, offset: int) -> int:
        """Offset of the newest snapshot that a cut at `offset` would leave. -1: there would be none."""
        return max((at for at in self.snapshot_offsets if at <= offset), default=-1)

    def remove_snapshots(self, below: int) -> None:
        for offset in [at for at in self.snapshot_offsets if at < below]:
            self.folder.remove(offset_name(offset, SNAPSHOT))
            self.snapshot_offsets.remove(offset)

    def checkpoint_started(self) -> None:
        self.scan_cost = 0

    # --- read -----------------------------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool = True, warmed: bool = False
    ) -> Fetched:
        """See `BatchFinder.read`. Raises Cold, Damaged."""
        return self._reading.read(offset, max_bytes, end_offset, at_least_one=at_least_one, warmed=warmed)

    async def warm(self, cold: Cold) -> None:
        """Loads and checks the range that a read was missing, off the loop. Raises OSError."""
        segment = cold.segment
        segment.hold()
        try:
            if cold.position < 0:
                await segment.warm_indexes()
                self._unload_others(segment)
            else:
                await self.surveys.check(segment, cold.position, cold.size)
        finally:
            segment.release()

    @property
    def damages(self) -> list[Damage]:
        return [segment.damage for segment in self.segments if segment.damage is not None]

    def _unload_others(self, segment: Segment) -> None:
        """Keeps the indexes of the active segment and of two closed ones in memory."""
        closed = [s for s in self.segments[:-1] if s.index.loaded and s is not segment and s not in self._unindexed]
        for other in closed[:-1]:
            if other.damage is None and not self.surveys.is_running(other):
                other.unload_indexes()

    # --- retention ------------------------------------------------------------------------------------------------

    def retire(self, now_ms: int, limit: int, covered: int = NOWHERE) -> list[Segment]:
        """Removes the oldest segments from the log, by size and by age. Keeps segments with offsets >= `limit` or >=
        `covered`, because recovery would need them.

        The caller has nothing to persist, because the first segment's name is the log's start. Returns the removed
        segments.
        """
        if not self.config.delete or self.pinned:
            return []
        active = self._active
        expired = self._expired(active, now_ms) and self.end_offset <= limit
        if active.size and (expired or active.is_undated_for(self.config.segment_ms, now_ms)):
            self.roll()
        excess = self.size() - self.config.retention_bytes if self.config.retention_bytes != UNLIMITED else 0
        dropped: list[Segment] = []
        limit = min(limit, covered)
        for segment, following in zip(self.segments, self.bases[1:], strict=False):
            too_large = 0 < segment.size <= excess
            if following > limit or not (too_large or self._expired(segment, now_ms)):
                break
            excess -= segment.size
            dropped.append(segment)
        self.drop_first(len(dropped))
        return dropped

    def _expired(self, segment: Segment, now_ms: int) -> bool:
        newest = segment.newest_ms
        return self.config.retention_ms != UNLIMITED and newest >= 0 and now_ms - newest > self.config.retention_ms

    def drop_first(self, count: int) -> None:
        """Removes the first segments. Their files are removed when their readers are done."""
        dropped = self.segments[:count]
        del self.segments[:count], self.bases[:count]
        self._unwritten_aborted.advance_start(self.start_offset)
        for segment in dropped:
            self._unindexed = [s for s in self._unindexed if s is not segment]
            self._unsynced.pop(segment, None)
            segment.drop(remove=True)

    def drop_below(self, offset: int) -> int:
        """Removes the segments that are completely below `offset`, because the leader's log start has moved. Returns
        their number."""
        if self.pinned:
            return 0
        count = max(0, bisect_right(self.bases, offset) - 1)
        if count:
            self.drop_first(count)
        return count

    def drop_last(self, count: int) -> None:
        """Removes the last segments. The cut was before them or within them."""
        dropped = self.segments[len(self.segments) - count :]
        del self.segments[len(self.segments) - count :], self.bases[len(self.bases) - count :]
        self._active = self.segments[-1]
        for segment in dropped:
            self._unindexed = [s for s in self._unindexed if s is not segment]
            self._unsynced.pop(segment, None)
            segment.drop(remove=True)

    # --- cut ------------------------------------------------------------------------------------------------------

    async def truncate_to(self, offset: int) -> int:
        """Cuts everything from `offset` on, which is a boundary of batches above the log's start. The cut is durable
        when this returns. Otherwise later appends could be on the disk before the changes of names, and files of the
        former history could come back beside them.

        Returns the offset from which the state must be replayed: that of the newest snapshot left, else the log's
        start. Entries of the indexes of aborted transactions from there on are removed. Except for a sync, nothing else
        may be at work in the log. Raises OSError, SyncFailed.
        """
        self.cuts += 1
        if self._torn:
            self._cut_torn()
        ahead = [at for at in self.snapshot_offsets if at > offset]
        for snapshot in ahead:
            self.folder.remove(offset_name(snapshot, SNAPSHOT))
            self.snapshot_offsets.remove(snapshot)
        if ahead:
            await sync_folder(self.folder)
        replay_from = self.snapshot_offsets[-1] if self.snapshot_offsets else self.start_offset
        self.drop_last(len(self.bases) - max(1, bisect_right(self.bases, offset)))
        segment = self._active
        segment.load_indexes()
        place = segment.find(offset)
        if place is not None:
            segment.truncate(place.position, place.base_offset)
        for each in self.segments[max(0, bisect_right(self.bases, replay_from) - 1) :]:
            cut_aborted(self.folder, each.path(TXN_INDEX), replay_from)
        self._unwritten_aborted.truncate_to(replay_from)
        self.end_offset = offset
        self.synced_offset = min(self.synced_offset, offset)
        self._unsynced[segment] = self._syncs_begun
        if segment not in self._unindexed:
            self._unindexed.append(segment)
        self.opened()
        self._want_folder_synced(self.folder)
        await self.sync()
        return replay_from

    def restart_at(self, offset: int) -> None:
        """Removes all segments and starts an empty log at `offset`, above the old end. Durable with the next sync."""
        self.cuts += 1
        for snapshot in self.snapshot_offsets:
            self.folder.remove(offset_name(snapshot, SNAPSHOT))
        self.snapshot_offsets.clear()
        former = self.segments[:]
        self._torn = False
        self.segments.clear()
        self.bases.clear()
        self._unsynced.clear()
        self._unindexed.clear()
        self._unwritten_aborted.truncate_to(0)
        for segment in former:
            segment.drop(remove=True)
        self.add_segment(Segment(self.folder, offset, self.config.index_interval_bytes, create=True))
        self.end_offset = self.synced_offset = offset
        self.scan_cost = 0
        self.opened()
        self._want_folder_synced(self.folder)

    async def recovered(self, scanned: Sequence[Segment]) -> None:
        """Makes the segments durable that recovery has scanned and written again. They count only after that."""
        self._unsynced = dict.fromkeys(scanned, self._syncs_begun)
        self._unindexed = list(scanned)
        for segment in scanned:
            segment.closed()
            segment.markers_checked = segment.sound.trusted_from == 0
        self._want_folder_synced(self.folder)
        await self.sync()
        self.synced_offset = self.end_offset
        self.scan_cost = sum(segment.size for segment in scanned)

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Puts a compacted segment in the place of the closed segments that it was made from. It has the base offset of
        the first one. The old files have been replaced by renames, or are removed here."""
        new.closed()
        at = self.segments.index(old[0])
        self.segments[at : at + len(old)] = [new]
        self.bases[at : at + len(old)] = [new.base_offset]
        for segment in old:
            self._unindexed = [s for s in self._unindexed if s is not segment]
            self._unsynced.pop(segment, None)
            segment.drop(remove=segment.base_offset != new.base_offset)

    # --- end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes each file as soon as its readers are done. What waits for a sync is given up: it may still wait in the
        queue of the group commit, which would find closed files."""
        self._closed = True
        self._unsynced.clear()
        self._unsynced_files.clear()
        self._unsynced_folders.clear()
        for segment in self.segments:
            segment.drop(remove=False)
        self.folder.close()

    def _check_open(self) -> None:
        if self._closed:
            raise FolderClosed(errno.ENOENT, "the log was closed", self.folder.path)
